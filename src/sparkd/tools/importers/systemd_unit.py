"""Reads a systemd unit: what its ExecStart= starts, by systemd.syntax(7), systemd.service(5) and systemd.exec(5)."""

import pwd
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress

from sparkd.tools.importers.docker_line import find_launches
from sparkd.tools.importers.marks import mark, mark_variable
from sparkd.tools.importers.options import Launch, LineError, redact
from sparkd.tools.importers.simple_command import Command
from sparkd.tools.importers.source import Note
from sparkd.tools.importers.variables import CommandError, Variables

_SECTION = re.compile(r"^\s*\[([A-Za-z-]+)\]\s*$")
_SYSTEM_UNIT = re.compile(r"^(?:User=|WantedBy=(?:multi-user|graphical)\.target)", re.MULTILINE)
"""Shows a unit of the system manager, in which %h is root's home, also with User= (systemd.unit(5))."""
_KEYS = ("Environment", "WorkingDirectory", "User", "EnvironmentFile", "ExecStartPre", "ExecStart")
"""In the order in which they count: the first three hold wherever they stand, as in a drop-in behind the unit."""
_SPECIFIER = re.compile(r"%[A-Za-z%]")


def is_unit(text: str) -> bool:
    """Whether the text is a unit, and no script that writes one: it begins with a section."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] not in "#;"]
    return bool(lines and _SECTION.match(lines[0])) and "[Service]" in lines


def read_unit(text: str, variables: Variables) -> list[Launch]:
    """Read what a unit starts. Raises LineError."""
    home = "/root" if _SYSTEM_UNIT.search(text) else variables.value("HOME")
    env: dict[str, str] = {}
    launches: list[Launch] = []
    notes: list[Note] = []
    variables.assign("PWD", mark_variable("PWD"))
    for line, key, value in _read_settings(text):
        try:
            if key in _KEYS[:3]:
                _set_variables(key, value, home, env, variables)
            elif key == "EnvironmentFile":
                notes.append(Note(line, f"EnvironmentFile={value[:80]}: not read: write its variables under env"))
            elif key == "ExecStartPre" and not _makes_way(value):
                reason = f"{key}={redact(value)[:100]}: not run: do it on the node, or in an image"
                notes.append(Note(line, reason))
            elif key == "ExecStart":
                words = _split_exec(_fill_specifiers(value.lstrip("-@:+!|"), home), variables)
                launches += _find_engines(line, words, env, variables) or [_make_other_launch(line, words, env)]
        except (CommandError, ValueError) as error:
            raise LineError(line, f"{key}: {str(error).lower()}") from None
    for launch in launches:
        launch.notes += notes
    return launches


def _set_variables(key: str, value: str, home: str, env: dict[str, str], variables: Variables) -> None:
    """Set what a program gets by Environment=, WorkingDirectory= or User=, which has no part in %h."""
    if key == "Environment":
        for word in shlex.split(value):
            name, _, content = word.partition("=")
            env[name] = _fill_specifiers(content, home)
            variables.assign(name, env[name])
    elif key == "WorkingDirectory":
        variables.assign("PWD", _fill_specifiers(value.removeprefix("-"), home))
    else:
        variables.assign("HOME", mark_variable("HOME"))
        with suppress(KeyError, OverflowError):
            entry = pwd.getpwuid(int(value)) if value.isdecimal() else pwd.getpwnam(value)
            variables.assign("HOME", entry.pw_dir)


def _find_engines(line: int, words: list[str], env: Mapping[str, str], variables: Variables) -> list[Launch]:
    started = find_launches(Command(words, [line] * len(words), dict(env), folder=variables.value("PWD")), {})
    return [launch for launch in started if "compose" not in launch.words]


def _makes_way(command: str) -> bool:
    """Whether it makes way for the container, or pulls its image, which is sparkd's and docker's own task."""
    arguments = re.split(r"\b(?:docker|podman|nerdctl)\b", command, maxsplit=1)[1:]
    return any(re.search(r"\b(?:rm|stop|kill|pull)\b", argument) for argument in arguments)


def _make_other_launch(line: int, words: list[str], env: Mapping[str, str]) -> Launch:
    """The launch of a program that starts no engine by itself, such as a script. The unit's variables are left out."""
    launch, names = Launch(line, words=words, entrypoint=[]), " ".join(env)[:80]
    if names:
        launch.note(line, f"Environment={names}: left out: write what the engine needs of it under env")
    return launch


def _read_settings(text: str) -> list[tuple[int, str, str]]:
    """Line, key and value of each setting in the section Service that no empty value behind it takes back."""
    settings: dict[str, list[tuple[int, str]]] = {}
    section, lines = "", iter(enumerate(text.splitlines(), 1))
    for number, raw in lines:
        line = raw.strip()
        if match := _SECTION.match(line):
            section = match[1]
        if section != "Service" or not line or line[0] in "#;[":
            continue
        while line.endswith("\\"):  # a comment within joined lines is left out, and what follows it is joined
            more = next(lines, (0, ""))[1].strip()
            line = line[:-1] + " " + (more if not more.startswith(("#", ";")) else "\\")
        key, value = map(str.strip, line.partition("=")[::2])
        if value:
            settings.setdefault(key, []).append((number, value))
        else:
            settings.pop(key, None)
    return [(line, key, value) for key in _KEYS for line, value in settings.get(key, ())]


def _fill_specifiers(text: str, home: str) -> str:
    """Fill in %h and %%. Any other specifier becomes a mark, since only systemd knows its value."""
    known = {"%%": "%", "%h": home}
    return _SPECIFIER.sub(lambda match: known.get(match[0]) or mark(match[0]), text)


def _split_exec(text: str, variables: Variables) -> list[str]:
    """Words of ExecStart=. $NAME as a whole word may become several; ${NAME} stays within one."""
    words: list[str] = []
    for word in shlex.split(text):
        filled = variables.fill(word)
        words += filled.split() if re.fullmatch(r"\$\w+", word) else [filled]
    return words
