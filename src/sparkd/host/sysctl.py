"""Kernel settings: what they are now, and which file sets them at boot."""

from __future__ import annotations

from collections.abc import Iterable

from sparkd.host.files import Files

FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
"""In this order: a file hides those of its name in later folders. sysctl.d(5)."""
READABLE = 0o444


def path(name: str) -> str:
    return f"/proc/sys/{name.replace('.', '/')}"


def read(files: Files, name: str) -> str | None:
    """The value now, its words one blank apart; None where this kernel has no such setting. Raises OSError.

    What can only be written, such as vm.compact_memory, has no value: it is a command, not a setting.
    """
    try:
        return plain(files.text(path(name), limit=65536))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        if files.stat(path(name)).permissions & READABLE:
            raise
        return None


def plain(value: str) -> str:
    return " ".join(value.split())


def set_at_boot(files: Files, names: Iterable[str]) -> dict[str, str]:
    """Which file has the last word on each, for those that a file sets. What can't be read is passed over."""
    wanted, found = set(names), dict[str, str]()
    for file in _in_order(files):
        try:
            text = files.text(file, limit=1 << 20)
        except OSError:
            continue
        found |= dict.fromkeys(wanted & assigned(text).keys(), file)
    return found


def assigned(text: str) -> dict[str, str]:
    """Names and values that a file of sysctl.d sets."""
    found = {}
    for raw in text.splitlines():
        line = raw.strip()
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found[key.strip().removeprefix("-").replace("/", ".")] = plain(value)
    return found


def _in_order(files: Files) -> list[str]:
    by_name: dict[str, str] = {}
    for folder in FOLDERS:
        try:
            names = files.names(folder)
        except OSError:
            continue
        for name in names:
            if name.endswith(".conf"):
                by_name.setdefault(name, f"{folder}/{name}")
    return [by_name[name] for name in sorted(by_name)]
