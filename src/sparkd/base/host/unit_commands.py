"""The commands of a unit's Exec lines, by the syntax of systemd.service(5)."""

import re

from msgspec import Struct

_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " ",
    "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip
_PIECE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3})|(.))|.", re.DOTALL)
"""One letter of a word, perhaps escaped: in hexadecimal, octal, or by another letter."""


class CommandLine(Struct, frozen=True):
    words: tuple[str, ...]
    """Program first. The other name that `@` gives the program is left out."""
    ignores_failure: bool


def parse_command_lines(value: str) -> tuple[CommandLine, ...]:
    """The commands of one Exec* value, which a lone `;` separates. Raises ValueError for an open quote."""
    commands: list[list[str]] = [[]]
    for word in _split_words(value):
        if word == (";", False):
            commands.append([])
        else:
            commands[-1].append(";" if word == ("\\;", False) else word[0])
    return tuple(_parse_command(words) for words in commands if words)


def _parse_command(words: list[str]) -> CommandLine:
    program = words[0].lstrip("@-:+!|")
    prefixes = words[0][: len(words[0]) - len(program)]
    rest = words[2:] if "@" in prefixes else words[1:]
    return CommandLine((program, *rest), ignores_failure="-" in prefixes)


def _split_words(value: str) -> list[tuple[str, bool]]:
    """Words, unquoted and unescaped, each with whether any of it was quoted. A bare `\\;` is kept."""
    words: list[tuple[str, bool]] = []
    word, quote, quoted = "", "", False
    for piece in _PIECE.finditer(value):
        letter = piece[0]
        if letter.isspace() and not quote:
            words += [(word, quoted)] if word or quoted else []
            word, quoted = "", False
        elif letter in ("'", '"') and quote in ("", letter):
            quote, quoted = "" if quote else letter, True
        else:
            word += _unescape(piece)
    if quote:
        raise ValueError(f"a {quote} is left open in: {value}")
    return [*words, (word, quoted)] if word or quoted else words


def _unescape(piece: re.Match[str]) -> str:
    """The letter that a piece stands for. An unknown escape is kept as it is."""
    if code := piece[1] or piece[2] or piece[3]:
        return chr(min(int(code, 16), 0x10FFFF))
    return chr(int(piece[4], 8)) if piece[4] else _ESCAPES.get(piece[5], piece[0])
