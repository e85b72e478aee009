"""Absolute paths in the commands of a unit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sparkd.preflight.needed import Needed, NeededPath

if TYPE_CHECKING:
    from sparkd.host.files import Files
    from sparkd.host.unit_files import Unit, UnitCommand

PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where systemd looks for a program that is no path: systemd.exec(5)."""

_SPECIFIER = re.compile(r"%(.)")
_FOLDERS = {
    "%": "%", "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log", "E": "/etc", "T": "/tmp",  # noqa: S108
    "V": "/var/tmp", "h": "/root", "u": "root", "U": "0", "g": "root", "G": "0", "i": "", "I": "",  # noqa: S108
}  # fmt: skip
"""Specifiers of the system manager: systemd.unit(5)."""


def of_unit(unit: Unit, files: Files) -> tuple[tuple[NeededPath, ...], tuple[str, ...]]:
    """Paths that its commands name, and words whose meaning only systemd knows."""
    found: dict[str, NeededPath] = {}
    unknown: list[str] = []
    for command in unit.commands:
        for number, raw in enumerate(command.command.words):
            if number == 0 and not raw.startswith(("/", "%", "$")):
                raw = _looked_up(raw, files)
            path = _path_in(raw)
            if not path:
                continue
            known = _resolved(path, unit.name)
            if known is None:
                unknown.append(f"{raw} in {command.key}")
                continue
            needed = Needed.PROGRAM if number == 0 else Needed.ANYTHING
            found.setdefault(known, _needed(known, command, needed))
    return tuple(found.values()), tuple(unknown)


def _needed(path: str, command: UnitCommand, needed: Needed) -> NeededPath:
    hint = "make it, or mend the unit: systemctl edit, then systemctl daemon-reload"
    return NeededPath(path, f"{command.key} in {command.source}", needed, hint, command.command.ignores_failure)


def _path_in(word: str) -> str:
    """The path that a word is, or that an option has behind its `=`; empty where it holds none."""
    value = word.partition("=")[2] if word.startswith("-") else word
    return value if value.startswith(("/", "%", "$")) else ""


def _resolved(path: str, unit_name: str) -> str | None:
    """None where it depends on what only systemd knows. A word that turns out to be no path resolves to nothing."""
    if "$" in path.replace("$$", ""):
        return None
    stem = unit_name.rpartition(".")[0]
    values = {**_FOLDERS, "n": unit_name, "N": stem, "p": stem, "P": stem, "j": stem.rpartition("-")[2]}
    if any(letter not in values for letter in _SPECIFIER.findall(path)):
        return None
    return _SPECIFIER.sub(lambda found: values[found[1]], path).replace("$$", "$")


def _looked_up(program: str, files: Files) -> str:
    candidates = [f"{folder}/{program}" for folder in PATH]
    return next((path for path in candidates if files.exists(path)), candidates[3])
