"""The effective text of a unit: its file, and the drop-ins over it, as systemd would merge them."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.host.unit_syntax import Assignment, CommandLine, assignments, command_lines

SEARCH_PATH = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
"""Of the system manager, first wins: systemd.unit(5)."""
EXEC_KEYS = (
    "ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecReload", "ExecReloadPost", "ExecStop",
    "ExecStopPost",
)  # fmt: skip


class UnitCommand(Struct, frozen=True):
    key: str
    command: CommandLine
    source: str
    """The file that it stands in."""


class Unit(Struct, frozen=True):
    name: str
    sources: tuple[str, ...]
    """The unit's file, then its drop-ins in the order in which they apply."""
    masked: bool
    commands: tuple[UnitCommand, ...]


def read(files: Files, name: str) -> Unit | None:
    """None where there is no such unit. Raises OSError and ValueError for what cannot be read."""
    main = next((path for folder in SEARCH_PATH if _stands(files, path := f"{folder}/{name}")), None)
    if main is None:
        return None
    if _masks(files, main):
        return Unit(name, (main,), masked=True, commands=())
    sources = (main, *_drop_ins(files, name))
    return Unit(name, sources, masked=False, commands=_commands(files, sources))


def _stands(files: Files, path: str) -> bool:
    return files.exists(path) or _is_null(files, path)


def _masks(files: Files, path: str) -> bool:
    """An empty file or a link to /dev/null takes away what lies behind it in the search path."""
    return _is_null(files, path) or files.stat(path).size_bytes == 0


def _is_null(files: Files, path: str) -> bool:
    try:
        return files.link(path) == "/dev/null"
    except OSError:
        return False


def _drop_ins(files: Files, name: str) -> tuple[str, ...]:
    """In the order of their file names. Of equal names the first folder wins, and a mask takes its name away."""
    chosen: dict[str, str] = {}
    for folder in _drop_in_folders(name):
        try:
            names = files.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for file_name in names:
            if file_name.endswith(".conf"):
                chosen.setdefault(file_name, f"{folder}/{file_name}")
    return tuple(path for _, path in sorted(chosen.items()) if _stands(files, path) and not _masks(files, path))


def _drop_in_folders(name: str) -> tuple[str, ...]:
    """For a-b.service, in each folder of the search path: a-b.service.d, then a-.service.d. All service.d come last.

    So /etc wins over /usr/lib even where it is less specific (seen with systemd 252).
    """
    stem, _, kind = name.rpartition(".")
    parts = stem.split("-")
    prefixes = ["-".join(parts[:count]) + "-" for count in range(len(parts) - 1, 0, -1)]
    own = [f"{name}.d", *(f"{prefix}.{kind}.d" for prefix in prefixes)]
    return (
        *(f"{folder}/{one}" for folder in SEARCH_PATH for one in own),
        *(f"{folder}/{kind}.d" for folder in SEARCH_PATH),
    )


def _commands(files: Files, sources: tuple[str, ...]) -> tuple[UnitCommand, ...]:
    """An empty assignment takes away every command of its key that came before."""
    found: list[UnitCommand] = []
    for source in sources:
        for assignment in assignments(files.text(source)):
            if assignment.section != "Service" or assignment.key not in EXEC_KEYS:
                continue
            if not assignment.value:
                found = [one for one in found if one.key != assignment.key]
                continue
            found += [UnitCommand(assignment.key, command, source) for command in _parsed(assignment, source)]
    return tuple(found)


def _parsed(assignment: Assignment, source: str) -> tuple[CommandLine, ...]:
    try:
        return command_lines(assignment.value)
    except ValueError as error:
        raise ValueError(f"{source}: {assignment.key}: {error}") from None
