"""Finds the paths in a unit's commands, with systemd's specifiers replaced."""

import re
from typing import NamedTuple

from sparkd.agent.preflight.needed_paths import NeededPath, Requirement
from sparkd.base.host.files import Files
from sparkd.base.host.units import Unit

PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Folders in which systemd searches a program that is no path: systemd.exec(5)."""
USUAL_FOLDER = "/usr/bin"
"""The folder that is named for a program that is in none of these."""
SPECIFIERS = {
    "%": "%", "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log", "E": "/etc", "T": "/tmp",  # noqa: S108
    "V": "/var/tmp", "h": "/root", "u": "root", "U": "0", "g": "root", "G": "0", "i": "", "I": "",  # noqa: S108
}  # fmt: skip
"""Values of specifiers (%t) in units of the system: systemd.unit(5)."""
_SPECIFIER = re.compile(r"%(.)")
_VARIABLE = re.compile(r"\$\$|\$\{\w+\}|\$\w+")
_SHELL = re.compile(r"[\s;&|<>()*]")
"""Characters that mark a word as shell code, not a path."""
UNKNOWN = "\0"
"""Stands around a part of a word of which only systemd knows the value. No path has this character."""


class UnitPaths(NamedTuple):
    needed: tuple[NeededPath, ...]
    unknown: tuple[str, ...]
    """Words of which the path is not known, each with its place."""


def paths_of_unit(unit: Unit, files: Files) -> UnitPaths:
    """The programs of all commands and all absolute paths among their arguments; apart, the words that may be paths."""
    needed, unknown = dict[str, NeededPath](), list[str]()
    hint = "make it, or fix the unit: sudo systemctl edit UNIT"
    for command in unit.commands:
        for number, word in enumerate(command.command.words):
            is_program = number == 0
            text = _replace_specifiers(word.partition("=")[2] if word.startswith("-") else word, unit.name)
            path = _find_program(text, files) if is_program else _find_argument(text, files)
            if UNKNOWN in path:
                unknown.append(f"{word} in {command.key}")
            elif path:
                where = f"{command.key} in {command.source}"
                requirement = Requirement.PROGRAM if is_program else Requirement.ANYTHING
                use = NeededPath(path, where, requirement, hint, command.command.ignores_failure)
                needed[path] = max(needed.get(path, use), use, key=_strictness)
    return UnitPaths(tuple(needed.values()), tuple(unknown))


def _strictness(use: NeededPath) -> tuple[bool, bool]:
    """Order of uses of one path. The strictest is judged: what may fail in one command may not in another."""
    return not use.may_fail, use.requirement is Requirement.PROGRAM


def _replace_specifiers(word: str, unit_name: str) -> str:
    """Replace specifiers by their values, and mark the ones without, and variables, by UNKNOWN."""
    stem = unit_name.rpartition(".")[0]
    values = {**SPECIFIERS, "n": unit_name, "N": stem, "p": stem, "P": stem, "j": stem.rpartition("-")[2]}

    def replace_specifier(match: re.Match[str]) -> str:
        return values.get(match[1], f"{UNKNOWN}{match[0]}{UNKNOWN}")

    def replace_variable(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else f"{UNKNOWN}{match[0]}{UNKNOWN}"

    return _VARIABLE.sub(replace_variable, _SPECIFIER.sub(replace_specifier, word))


def _find_argument(word: str, files: Files) -> str:
    """The path that an argument is; empty where it is none, UNKNOWN where that can't be known, as with shell code."""
    if not word.startswith("/") and not (word.startswith(UNKNOWN) and "/" in word):
        return ""
    if UNKNOWN in word or (_SHELL.search(word) and not _exists(files, word)):
        return UNKNOWN
    return _find_mount_source(word, files)


def _find_program(name: str, files: Files) -> str:
    """The path of a program, below USUAL_FOLDER where no folder has it; a name of which a part is UNKNOWN, as it is."""
    if name.startswith("/") or UNKNOWN in name:
        return name
    candidates = (f"{folder}/{name}" for folder in PROGRAM_FOLDERS)
    return next((path for path in candidates if files.exists(path)), f"{USUAL_FOLDER}/{name}")


def _find_mount_source(word: str, files: Files) -> str:
    """The source in a word of docker's `-v SOURCE:TARGET`, where it exists; else the word, which may be a path."""
    source, colon, _ = word.partition(":")
    return source if colon and not _exists(files, word) and _exists(files, source) else word


def _exists(files: Files, path: str) -> bool:
    try:
        return files.exists(path)
    except OSError:  # such as a word that is too long for a path
        return False
