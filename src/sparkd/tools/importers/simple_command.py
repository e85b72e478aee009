"""A simple command of a shell: its words with their lines, and what its assignments set."""

import re

from msgspec import Struct, field

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=([\s\S]*)", re.ASCII)
"""NAME=VALUE, or NAME+=VALUE to append."""
_DECLARING = ("export", "declare", "readonly", "local", "typeset")
_EXPORTING = re.compile(r"export|\w+ -[a-z]*x")
"""The first words of a command that exports, such as `declare -x`."""


class Command(Struct):
    """A simple command that a shell may run."""

    words: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """The line of each word."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that are exported so far, and those that are assigned right before the program."""
    assigned: int = 0
    """The number of its words that are assignments, also behind `export`."""
    arrays: list[tuple[str, list[str], bool]] = field(default_factory=list)
    """Arrays that it sets: name, words, and whether these are appended."""
    block: int = 0
    """Line where a block begins that decides whether the command runs; 0 outside of any."""
    folder: str = ""
    """The current folder; empty, or with a mark, where it is not known."""

    @property
    def is_declaration(self) -> bool:
        """Whether it is `export`, `declare` or similar: its words may be names alone."""
        return bool(self.words) and self.words[0] in _DECLARING

    @property
    def is_export(self) -> bool:
        return self.is_declaration and bool(_EXPORTING.match(" ".join(self.words[:2])))

    def declared_words(self) -> list[str]:
        """Its assignments without a program, or the words of a declaration; empty for a command that runs a program."""
        if self.is_declaration:
            return [word for word in self.words[1:] if not word.startswith("-")]
        return self.words if all(map(ASSIGNMENT.fullmatch, self.words)) else []

    def drop_words(self, count: int) -> None:
        """Drop its first words."""
        del self.words[:count], self.lines[:count]

    def take_prefix(self) -> None:
        """Move the assignments before a program to the command's variables."""
        count = 0
        while count + 1 < len(self.words) and (assignment := ASSIGNMENT.fullmatch(self.words[count])):
            self.env[assignment[1]], count = assignment[3], count + 1
        self.drop_words(count)
