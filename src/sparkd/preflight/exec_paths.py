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
_VARIABLE = re.compile(r"\$\$|\$\{\w+\}|\$\w+")
_OPEN = re.compile("\0")
_SHELL = re.compile(r"[\s;&|<>()*]")
"""In a word that is no path by itself: a line for a shell."""
_FOLDERS = {
    "%": "%", "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log", "E": "/etc", "T": "/tmp",  # noqa: S108
    "V": "/var/tmp", "h": "/root", "u": "root", "U": "0", "g": "root", "G": "0", "i": "", "I": "",  # noqa: S108
}  # fmt: skip
"""Specifiers of the system manager: systemd.unit(5)."""


def of_unit(unit: Unit, files: Files) -> tuple[tuple[NeededPath, ...], tuple[str, ...]]:
    """Paths that its commands name, and paths in which only systemd knows what a part means."""
    found: dict[str, NeededPath] = {}
    unknown: list[str] = []
    for command in unit.commands:
        for number, word in enumerate(command.command.words):
            path = _resolved(word.partition("=")[2] if word.startswith("-") else word, unit.name)
            if number == 0 and not path.startswith("/"):
                path = _looked_up(path, files)
            if not path.startswith("/"):
                continue
            if _OPEN.search(path) or (number > 0 and _SHELL.search(path) and not _exists(files, path)):
                unknown.append(f"{word} in {command.key}")
                continue
            needed = Needed.PROGRAM if number == 0 else Needed.ANYTHING
            found.setdefault(path, _needed(path, command, needed))
    return tuple(found.values()), tuple(unknown)


def _needed(path: str, command: UnitCommand, needed: Needed) -> NeededPath:
    hint = "make it, or mend the unit: systemctl edit, then systemctl daemon-reload"
    return NeededPath(path, f"{command.key} in {command.source}", needed, hint, command.command.ignores_failure)


def _resolved(word: str, unit_name: str) -> str:
    """The word with what is known of a unit in its place; what is not stays, marked by NULs."""
    stem = unit_name.rpartition(".")[0]
    values = {**_FOLDERS, "n": unit_name, "N": stem, "p": stem, "P": stem, "j": stem.rpartition("-")[2]}
    word = _SPECIFIER.sub(lambda found: values.get(found[1], f"\0{found[0]}\0"), word)
    return _VARIABLE.sub(lambda found: "$" if found[0] == "$$" else f"\0{found[0]}\0", word)


def _exists(files: Files, path: str) -> bool:
    try:
        return files.exists(path)
    except OSError:  # too long for a path, say
        return False


def _looked_up(program: str, files: Files) -> str:
    candidates = [f"{folder}/{program}" for folder in PATH]
    return next((path for path in candidates if files.exists(path)), candidates[3])
