"""The syntax of systemd's unit files and of the command lines in them."""

from __future__ import annotations

import re

from msgspec import Struct

_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " ",
    "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3})")
_PREFIXES = "@-:+!|"


class Assignment(Struct, frozen=True):
    section: str
    key: str
    value: str


class CommandLine(Struct, frozen=True):
    """One command of an Exec* line, with what its prefixes say."""

    words: tuple[str, ...]
    """Program first. Where `@` gave the program another name for itself, that name is left out."""
    ignores_failure: bool


def assignments(text: str) -> tuple[Assignment, ...]:
    """`key=value` lines in order. What systemd would ignore with a warning is left out."""
    found = []
    section = ""
    for line in _logical_lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        if equals and section:
            found.append(Assignment(section, key.strip(), value.strip()))
    return tuple(found)


def _logical_lines(text: str) -> list[str]:
    """A backslash at the end joins a line and the next; comment lines between them are passed over."""
    found: list[str] = []
    pending = ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not pending):
            continue
        if raw.rstrip("\r\n").endswith("\\"):
            pending += line[:-1] + " "
            continue
        found.append((pending + line).strip())
        pending = ""
    return [*found, pending.strip()] if pending.strip() else found


def command_lines(value: str) -> tuple[CommandLine, ...]:
    """The commands of one Exec* value: a lone `;` separates them. Raises ValueError where a quote is left open."""
    commands: list[list[str]] = [[]]
    for word in _words(value):
        if word == (";", False):
            commands.append([])
        else:
            commands[-1].append(";" if word == ("\\;", False) else word[0])
    return tuple(_command(words) for words in commands if words)


def _command(words: list[str]) -> CommandLine:
    program = words[0].lstrip(_PREFIXES)
    prefixes = words[0][: len(words[0]) - len(program)]
    rest = words[2:] if "@" in prefixes else words[1:]
    return CommandLine((program, *rest), ignores_failure="-" in prefixes)


def _words(value: str) -> list[tuple[str, bool]]:
    """Words, unquoted and unescaped, each with whether any of it was quoted. A bare `\\;` is kept as it stands."""
    found: list[tuple[str, bool]] = []
    at = 0
    while at < len(value):
        if value[at].isspace():
            at += 1
            continue
        word, quote, quoted = "", "", False
        while at < len(value) and (quote or not value[at].isspace()):
            letter = value[at]
            if letter == "\\" and at + 1 < len(value):
                piece, at = _escaped(value, at + 1)
                word += piece
                continue
            at += 1
            if letter in "\"'" and quote in ("", letter):
                quote, quoted = ("", True) if quote else (letter, True)
            else:
                word += letter
        if quote:
            raise ValueError(f"a {quote} is left open in: {value}")
        found.append((word, quoted))
    return found


def _escaped(value: str, at: int) -> tuple[str, int]:
    """What the escape at `at` (behind its backslash) stands for, and where it ends. Unknown ones stand as written."""
    code = _CODE.match(value, at)
    if code:
        digits, base = (code[4], 8) if code[4] else (code[1] or code[2] or code[3], 16)
        return chr(min(int(digits, base), 0x10FFFF)), code.end()
    return _ESCAPES.get(value[at], f"\\{value[at]}"), at + 1
