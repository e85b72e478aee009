"""Splits a foreign recipe's command into words as bash would, without running it, and parses its `vllm serve`.

Parts that only a shell can expand (variables, file name patterns) make a command unclear, with the reason.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from sparkd.base.vllm.args import kebab_case
from sparkd.base.vllm.flag import SHORT
from sparkd.tools.importers.source import CommandError

_NUMBER = re.compile(r"-\.?[0-9]")
_LEVEL = re.compile(r"-O=?([0-3])")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_EXPANDS = re.compile(r"\$[A-Za-z0-9_{(@*#?!$\-]")
_TOKEN = re.compile(
    r"(?P<end>&&|\|\||;|\n)|(?P<blank>[ \t])|(?P<joins>[|&<>()])|\\(?P<escaped>[\s\S]?)"
    r"""|'(?P<single>[^']*)'|"(?P<double>(?:\\[\s\S]|[^"\\])*)"|(?P<bare>[\s\S])"""
)
_IN_DOUBLE_QUOTES = re.compile(r"""\\([$`"\\\n])|([\s\S])""")
"""An escaped character, or any other."""
_QUOTED = "\0"
WITHOUT_EFFECT = ([":"], ["["], ["[["], ["break"], ["cd"], ["echo"], ["exit"], ["set"], ["sleep"], ["test"], ["true"])
"""Programs that the engine needs nothing of."""


class Command(Struct):
    words: list[str] = field(default_factory=list)
    unclear: str = ""
    """Why bash would run something other than these words; empty if it runs them."""


def split_commands(text: str) -> list[Command]:
    """The simple commands in `text`, in order. Raises CommandError."""
    return [command for command in _Reader(text).read() if command.words or command.unclear]


class _Reader(Struct):
    text: str
    found: list[Command] = field(default_factory=lambda: [Command()])
    word: list[str] | None = None
    bare: list[str] = field(default_factory=list)
    """The word with quoted characters masked: the part that bash would expand."""

    def read(self) -> list[Command]:
        at = 0
        while token := _TOKEN.match(self.text, at):
            kind, start, at = str(token.lastgroup), token.start(), token.end()
            value = token[kind]
            if kind in ("end", "blank", "joins"):
                self._end_word()
                if kind == "end":
                    self.found.append(Command())
                elif kind == "joins":
                    self._unclear(f"{value} joins it to something else")
            elif kind == "escaped":
                if value not in ("", "\n"):
                    self._add(value, quoted=True)
            elif kind == "single":
                self._add(value, quoted=True)
            elif kind == "double":
                self._add_double_quoted(value, start + 1)
            elif value == "#" and self.word is None:
                end = self.text.find("\n", at)
                at = len(self.text) if end < 0 else end
            elif value in "'\"":
                raise CommandError(f"the quote {value} has no end: {self._near(start)}")
            else:
                self._check_expansion(start, before_quote="'\"")
                self._add(value, quoted=False)
        self._end_word()
        return self.found

    def _add_double_quoted(self, text: str, start: int) -> None:
        self._add("", quoted=True)
        for piece in _IN_DOUBLE_QUOTES.finditer(text):
            if piece[1]:
                self._add(piece[1].replace("\n", ""), quoted=True)
            else:
                self._check_expansion(start + piece.start(), before_quote="")
                self._add(piece[2], quoted=True)

    def _check_expansion(self, at: int, before_quote: str) -> None:
        char, after = self.text[at], self.text[at + 1 : at + 2]
        if _EXPANDS.match(self.text, at) or (char == "$" and after and after in before_quote):
            self._unclear(f"what {self._near(at)} stands for is known to the shell alone: write its value")
        elif char == "`":
            self._unclear(f"{self._near(at)} is a program's output: write its value")

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
        elif is_brace_list(bare):
            self._unclear(f"bash makes several words of {word[:60]}: put it in quotes")
        self.found[-1].words.append(word)
        self.word = None

    def _unclear(self, reason: str) -> None:
        self.found[-1].unclear = self.found[-1].unclear or reason

    def _near(self, at: int) -> str:
        return self.text[at : at + 40].split("\n")[0]


def is_brace_list(bare: str) -> bool:
    inner = bare[bare.find("{") + 1 : bare.rfind("}")] if "{" in bare else ""
    return "," in inner or ".." in inner


class Flag(Struct, frozen=True):
    name: str
    """In kebab case, without leading dashes; includes a `no-` prefix."""
    values: tuple[str, ...]


class Serve(Struct, frozen=True):
    env: dict[str, str]
    """Variable assignments before the program."""
    entrypoint: tuple[str, ...]
    model: str
    flags: tuple[Flag, ...]


def is_serve(command: Command) -> bool:
    return _end_of_program(command.words) > 0


def exported_variables(command: Command) -> dict[str, str]:
    """Of `export NAME=literal ...`; empty for any other command."""
    found = [_ASSIGNMENT.fullmatch(word) for word in command.words[1:]]
    is_export = command.words[:1] == ["export"] and not command.unclear and all(found)
    return {one[1]: one[2] for one in found if one} if is_export else {}


def _end_of_program(words: list[str]) -> int:
    """Number of words before the model; 0 without a `vllm serve`."""
    for at in range(1, len(words)):
        if words[at] == "serve" and words[at - 1].rpartition("/")[2] == "vllm":
            return at + 1
    return 0


def parse_serve(words: list[str]) -> Serve:
    """Raises CommandError."""
    end = _end_of_program(words)
    program, rest = words[:end], words[end:]
    env: dict[str, str] = {}
    if program[0] == "env" and _ASSIGNMENT.fullmatch(program[1]):
        program = program[1:]
    while found := _ASSIGNMENT.fullmatch(program[0]):
        env[found[1]] = found[2]
        program = program[1:]
    if program[0] == "exec":
        program = program[1:]
    model = ""
    if rest and not _is_flag(rest[0]):
        model, rest = rest[0], rest[1:]
    flags = _parse_flags(rest)
    if not model:
        named = [flag.values[0] for flag in flags if flag.name == "model" and any(flag.values)]
        if not named:
            where = ", but a file of flags, --config: write them out" * ("config" in {flag.name for flag in flags})
            raise CommandError(f"names no model right behind `serve`{where}")
        model = named[-1]
    return Serve(env, tuple(program), model, tuple(flag for flag in flags if flag.name != "model"))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)


def _parse_flags(words: list[str]) -> list[Flag]:
    found: list[tuple[str, list[str]]] = []
    closed = False
    for word in words:
        if _is_flag(word):
            name, equals, value = _split_flag(word)
            found.append((name, [value] if equals else []))
            closed = bool(equals)
        elif not found or closed:
            raise CommandError(f"{word[:60]} belongs to no flag")
        else:
            found[-1][1].append(word)
    return [Flag(name, tuple(values)) for name, values in found]


def _split_flag(word: str) -> tuple[str, str, str]:
    name, equals, value = word.partition("=")
    if name.startswith("--"):
        return kebab_case(name[2:]), equals, value
    if level := _LEVEL.fullmatch(word):
        return "optimization-level", "=", level[1]
    head, dot, fields = name.partition(".")
    if head not in SHORT:
        raise CommandError(f"the short flag {name[:60]} is not known: write its long form")
    return SHORT[head] + dot + fields, equals, value
