"""systemd's units: the effective text of one, as systemd merges it, and the services that start by themselves."""

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.unit_commands import CommandLine, parse_command_lines

OWN_UNITS = ("sparkd-head.service", "sparkd-worker.service")
SEARCH_PATH = (
    "/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient",
    "/run/systemd/generator.early", "/etc/systemd/system", "/etc/systemd/system.attached", "/run/systemd/system",
    "/run/systemd/system.attached", "/run/systemd/generator", "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/generator.late",
)  # fmt: skip
"""Folders of the system manager's units; the first one wins: systemd.unit(5)."""
ENABLING_FOLDERS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
)  # fmt: skip
"""Where links enable a unit. Units of generators are left out: mounts and old init scripts."""
EXEC_KEYS = (
    "ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecReload", "ExecReloadPost", "ExecStop",
    "ExecStopPost",
)  # fmt: skip


class Assignment(NamedTuple):
    section: str
    key: str
    value: str


class UnitCommand(Struct, frozen=True):
    key: str
    command: CommandLine
    source: str


class Unit(Struct, frozen=True):
    name: str
    sources: tuple[str, ...]
    """The unit's file, then its drop-ins in the order in which they apply."""
    masked: bool
    commands: tuple[UnitCommand, ...]


class EnablingLink(NamedTuple):
    by: str
    """The unit that wants it, such as multi-user.target."""
    shipped: bool
    """Whether a package ships such a link, which `systemctl disable` leaves in place."""


def read_unit(files: Files, name: str) -> Unit | None:
    """A unit as systemd merges it; None where there is no such unit. Raises OSError, ValueError."""
    for folder in SEARCH_PATH:
        main = f"{folder}/{name}"
        is_masked = _is_mask(files, main)
        if is_masked is None:
            continue
        if is_masked:
            return Unit(name, (main,), masked=True, commands=())
        sources = (main, *find_drop_ins(files, drop_in_folders(name)))
        return Unit(name, sources, masked=False, commands=_read_commands(files, sources))
    return None


def find_drop_ins(files: Files, folders: Iterable[str]) -> tuple[str, ...]:
    """Drop-ins in the order of their file names. Of equal names the first folder wins; a mask removes its name."""
    chosen: dict[str, str] = {}
    for folder in folders:
        for name in files.names_if_any(folder):
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{folder}/{name}")
    return tuple(path for _, path in sorted(chosen.items()) if _is_mask(files, path) is False)


def enabled_services(files: Files) -> dict[str, EnablingLink]:
    """Services that another unit wants or requires, by name."""
    enabled: dict[str, EnablingLink] = {}
    for folder in ENABLING_FOLDERS:
        for name in files.names_if_any(folder):
            by, dot, kind = name.rpartition(".")
            if dot and kind in ("wants", "requires", "upholds"):
                for wanted in files.names_if_any(f"{folder}/{name}"):
                    if wanted.endswith(".service"):
                        first = enabled.get(wanted, EnablingLink(by, shipped=False))
                        enabled[wanted] = EnablingLink(first.by, first.shipped or folder.startswith("/usr/"))
    return enabled


def _is_mask(files: Files, path: str) -> bool | None:
    """Whether it is an empty file or a link to /dev/null, which hides files in later folders. None: there is none."""
    with suppress(OSError):
        if files.link(path) == "/dev/null":
            return True
    return files.stat(path).size_bytes == 0 if files.exists(path) else None


def drop_in_folders(name: str) -> list[str]:
    """Folders of drop-ins: for a-b.service, in each folder of the search path a-b.service.d, then a-.service.d.

    All service.d come last. So /etc wins over /usr/lib even where it is less specific (observed with systemd 252).
    """
    stem, _, kind = name.rpartition(".")
    parts = stem.split("-")
    prefixes = ["-".join(parts[:count]) + "-" for count in range(len(parts) - 1, 0, -1)]
    specific = [f"{name}.d", *(f"{prefix}.{kind}.d" for prefix in prefixes)]
    return [f"{path}/{folder}" for folders in (specific, [f"{kind}.d"]) for path in SEARCH_PATH for folder in folders]


def _read_commands(files: Files, sources: Iterable[str]) -> tuple[UnitCommand, ...]:
    """The commands of a unit's files. An empty assignment removes every earlier command of its key."""
    commands: list[UnitCommand] = []
    for source in sources:
        for section, key, value in parse_assignments(files.text(source)):
            if section != "Service" or key not in EXEC_KEYS:
                continue
            if not value:
                commands = [earlier for earlier in commands if earlier.key != key]
            try:
                commands += [UnitCommand(key, command, source) for command in parse_command_lines(value)]
            except ValueError as error:
                raise ValueError(f"{source}: {key}: {error}") from None
    return tuple(commands)


def parse_assignments(text: str) -> tuple[Assignment, ...]:
    """`key=value` lines in order, without lines that systemd ignores with a warning."""
    assignments = []
    section = ""
    for line in _join_lines(text):
        key, equals, value = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif equals and section:
            assignments.append(Assignment(section, key.strip(), value.strip()))
    return tuple(assignments)


def _join_lines(text: str) -> list[str]:
    """Lines without comments, where a backslash at the end joins a line and the next, even over comment lines."""
    lines: list[str] = []
    pending = ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not pending):
            continue
        if raw.endswith("\\"):
            pending += line[:-1] + " "
        else:
            lines.append((pending + line).strip())
            pending = ""
    return [*lines, pending.strip()] if pending.strip() else lines
