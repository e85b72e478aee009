"""The commands and words that bash makes of a text, without running it: quotes, comments and continued lines.

What only a shell can know (variables, file names that a pattern matches) makes a command unclear, with the reason.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

_EXPANDS = re.compile(r"\$[A-Za-z0-9_{(@*#?!$\-]")
_SEPARATORS = ("&&", "||", ";", "\n")
_QUOTED = "\0"
_IN_DOUBLE_QUOTES = '$`"\\\n'
"""What a backslash takes the meaning of, within double quotes."""


class ShellError(Exception):
    """The text is no shell command; says why."""


class Command(Struct):
    words: list[str] = field(default_factory=list)
    unclear: str = ""
    """Why the words alone do not say what bash would run; empty where they do."""


def commands(text: str) -> list[Command]:
    """The simple commands in `text`, in their order. Raises ShellError."""
    reader = _Reader(text)
    reader.read()
    return [command for command in reader.found if command.words or command.unclear]


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found = [Command()]
        self.word: list[str] | None = None
        self.bare: list[str] = []
        """The word with quoted characters hidden: what bash would still look into."""

    def read(self) -> None:
        while self.at < len(self.text):
            char = self.text[self.at]
            separator = next((one for one in _SEPARATORS if self.text.startswith(one, self.at)), "")
            if separator:
                self._end_word()
                self.found.append(Command())
                self.at += len(separator)
            elif char in " \t":
                self._end_word()
                self.at += 1
            elif char == "#" and self.word is None:
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in "|&<>()":
                self._end_word()
                self._unclear(f"{char} joins it to something else")
                self.at += 1
            else:
                self._character(char)
        self._end_word()

    def _character(self, char: str) -> None:
        if char == "\\":
            escaped = self.text[self.at + 1 : self.at + 2]
            if escaped and escaped != "\n":
                self._add(escaped, quoted=True)
            self.at += 2
        elif char == "'":
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise ShellError(f"the quote ' has no end: {self._near()}")
            self._add(self.text[self.at + 1 : end], quoted=True)
            self.at = end + 1
        elif char == '"':
            self._double_quoted()
        else:
            self._look_into(next_is_quote="'\"")
            self._add(char, quoted=False)
            self.at += 1

    def _double_quoted(self) -> None:
        start = self.at
        self.at += 1
        self._add("", quoted=True)
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in tuple(_IN_DOUBLE_QUOTES):
                self._add(self.text[self.at + 1].replace("\n", ""), quoted=True)
                self.at += 2
                continue
            self._look_into(next_is_quote="")
            self._add(char, quoted=True)
            self.at += 1
        self.at = start
        raise ShellError(f'the quote " has no end: {self._near()}')

    def _look_into(self, next_is_quote: str) -> None:
        char, after = self.text[self.at], self.text[self.at + 1 : self.at + 2]
        if _EXPANDS.match(self.text, self.at) or (char == "$" and after and after in next_is_quote):
            self._unclear(f"what {self._near()} stands for is known to the shell alone: write its value")
        elif char == "`":
            self._unclear(f"{self._near()} is a program's output: write its value")

    def _add(self, text: str, quoted: bool) -> None:
        if self.word is None:
            self.word, self.bare = [], []
        self.word.append(text)
        self.bare.append(_QUOTED * max(1, len(text)) if quoted else text)

    def _end_word(self) -> None:
        if self.word is None:
            return
        word, bare = "".join(self.word), "".join(self.bare)
        if re.search(r"[*?]", bare) or bare.startswith("~"):
            self._unclear(f"{word[:60]} may stand for names of files: put it in quotes")
        elif _is_brace_list(bare):
            self._unclear(f"bash makes several words of {word[:60]}: put it in quotes")
        self.found[-1].words.append(word)
        self.word = None

    def _unclear(self, reason: str) -> None:
        self.found[-1].unclear = self.found[-1].unclear or reason

    def _near(self) -> str:
        return self.text[self.at : self.at + 40].split("\n")[0]


def _is_brace_list(bare: str) -> bool:
    inner = bare[bare.find("{") + 1 : bare.rfind("}")] if "{" in bare else ""
    return "," in inner or ".." in inner
