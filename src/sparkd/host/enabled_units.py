"""Services that are started by themselves: wanted or required by another unit, such as multi-user.target."""

from __future__ import annotations

from collections.abc import Iterator

from sparkd.host.files import Files

FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)
"""Where links make it so. What a generator makes is left out: those are mounts and old init scripts."""
SUFFIXES = (".wants", ".requires", ".upholds")


def wanted(files: Files) -> dict[str, str]:
    """Name of each such service, and of the unit that wants it."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for by, name in _links(files, folder):
            if name.endswith(".service"):
                found.setdefault(name, by)
    return found


def _links(files: Files, folder: str) -> Iterator[tuple[str, str]]:
    for name in _names(files, folder):
        by, dot, kind = name.rpartition(".")
        if dot and f".{kind}" in SUFFIXES:
            for wanted_name in _names(files, f"{folder}/{name}"):
                yield by, wanted_name


def _names(files: Files, folder: str) -> tuple[str, ...]:
    try:
        return files.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return ()
