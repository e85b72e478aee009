"""Reads the plain commands of a shell script, with its variables filled in. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from sparkd.base.vllm.args import LONGEST_TEXT_BYTES as LONGEST
from sparkd.tools.importers.variables import CommandError, Variables, hide, mark, shown

OF_IMAGE = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables with folders, which an image and a node set by themselves."""
_QUOTED = "\0"
_TOKEN = re.compile(
    r"(?P<joined>\\(?:\r?\n|\Z))|(?P<end>&&|\|\||;;?|\||&(?!>)|\r?\n|[()])|(?P<blank>[ \t\r])|\\(?P<escaped>[\s\S])"
    r"|'(?P<single>[^']*)'|(?P<double>\")|(?P<bare>[\w=./:,@%+{}\[\]-]+|[\s\S])"
)
_REDIRECT = re.compile(r"(?:[0-9]{0,2}|&)(?:<<<|>>|>|<(?!<))(?P<to>&[0-9-])?")
_OUTPUT = re.compile(r"&?>")
_TO_FILL_IN = re.compile(r"<\w[\w./:-]{0,60}>(?=\s|\Z)")
"""As in <model>, which a person is to fill in."""
_HERE_DOCUMENT = re.compile(r"[0-9]?<<-?[ \t]*['\"\\]?(\w+)['\"]?")
_ARRAY = re.compile(r"(\")?\$(?:@|\*|\{(\w+)\[[@*]\](?::?\+\"?\$\{\2\[[@*]\]\}\"?)?\})(?(1)\")", re.ASCII)
"""All words of a list, or of what a script is given."""
_WITH_ESCAPES = re.compile(r"\$'((?:[^'\\]|\\[\s\S])*)'")
_HOME = re.compile(r"(\w+\+?=)~(?=/|\Z)", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=([\s\S]*)", re.ASCII)
_DECLARING = ("export", "declare", "readonly", "local", "typeset")
_EXPORTING = re.compile(r"export|\w+ -[a-z]*x")
_OPENING = ("if", "for", "while", "until", "case", "select", "{")
_CLOSING = ("fi", "done", "esac", "}")
_WITHIN = ("then", "do", "else", "elif", "!", "time")
_COST = 8
"""Of a word or variable that is taken over, in characters."""


class Command(Struct):
    """What a shell would run, if nothing else decides that."""

    words: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """Of each word."""
    env: dict[str, str] = field(default_factory=dict)
    """What is exported by then, and what is assigned right before the program."""
    assigned: int = 0
    """How many of the words are assignments, or behind `export`."""
    block: int = 0
    """Line where a block begins that decides whether it runs; 0 outside of any."""


class Script(Struct):
    text: str
    variables: Variables
    first_line: int = 1
    exported: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    blocks: list[int] = field(default_factory=list)
    now: Command = field(default_factory=Command)
    word: str | None = None
    bare: str = ""
    """The word with what is quoted or filled in masked: the part that bash would expand."""
    array: str = ""
    redirected: bool = False
    inherited: set[str] = field(default_factory=set)
    """Names that a program gets, from the start or by `export`."""
    here: list[str] = field(default_factory=list)
    line: int = 1

    def read(self) -> list[Command]:
        """Its commands, but no assignments. Raises CommandError; `line` is where."""
        self.line, at = self.first_line, 0
        while at < len(self.text):
            end = self._token(at)
            self.line += self.text.count("\n", at, end)
            at = end
        self._end_command()
        if self.array:
            raise CommandError("a list of words in parentheses has no end: close it")
        return self.commands

    def _token(self, at: int) -> int:
        """Take one token; return its end."""
        # Not behind a "<": as in --model=<MODEL>, which a person is to fill in.
        if self.word is not None and "<" not in self.word and _OUTPUT.match(self.text, at):
            self._end_word()
        if self.word is None and (end := self._at_word(at)):
            return end
        token = _TOKEN.match(self.text, at)
        if token is None:  # unreachable: each character is one
            return at + 1
        match str(token.lastgroup):
            case "end":
                return self._end(token[0], token.end())
            case "double":
                return self._double_quoted(token.end())
            case "bare":
                return self._bare(token[0], at)
            case "blank":
                self._end_word()
            case kind if kind != "joined":
                self._add(token[kind], _QUOTED)
        return token.end()

    def _bare(self, text: str, at: int) -> int:
        if text in "$`":
            return self._unquoted(at)
        if text == "'":
            raise CommandError("the quote ' has no end: close it")
        self._add(text, text)
        return at + len(text)

    def _unquoted(self, at: int) -> int:
        """A value that is no longer one word where it has blanks; or $'TEXT'."""
        if quoted := _WITH_ESCAPES.match(self.text, at):
            self._add(mark(quoted[0]) if "\\" in quoted[1] else quoted[1])
            return quoted.end()
        if self.text.startswith('$"', at):  # translated, of which a script without a catalogue has nothing
            return at + 1
        value, end = self.variables.use(self.text, at, in_shell=True)
        first, *others = re.split(r"[ \t\n]+", value)
        self._add(first) if first else None
        for other in others:
            self._end_word()
            self._add(other) if other else None
        return end

    def _at_word(self, at: int) -> int:
        """What has a meaning only where a word begins; 0 if there is none."""
        if self.text[at] == "#":
            end = self.text.find("\n", at)
            return len(self.text) if end < 0 else end
        if here := _HERE_DOCUMENT.match(self.text, at):
            self.here.append(here[1])
            return here.end()
        if self.text[at] == "~" and self.text[at + 1 : at + 2] in ("", "/", " "):
            self._add(self.variables.values.get("HOME", mark("~")))
            return at + 1
        if blank := _TO_FILL_IN.match(self.text, at):
            self._add(self.variables.by_user(blank[0][1:-1]) or mark(blank[0]))
            return blank.end()
        if redirect := _REDIRECT.match(self.text, at):
            self.redirected = not redirect["to"]
            return redirect.end()
        if array := _ARRAY.match(self.text, at):
            for value in self._list(array[2]) if array[2] else self.arrays.get("@", []):
                self.variables.spend(len(value) + _COST)
                self._add(value)
                self._end_word()
            return array.end()
        return 0

    def _list(self, name: str) -> list[str]:
        return self.variables.by_user(name).split() or self.arrays.get(name, [mark(f"${{{name}[@]}}")])

    def _end(self, text: str, end: int) -> int:
        if text == "(" and self.word is not None and (name := _ASSIGNMENT.fullmatch(self.word)) and not name[3]:
            self.array, self.word = self.word, None
            return end
        self._end_word()
        if self.array:
            if text == ")":
                self._end_array()
            return end
        self._end_command()
        if text.endswith("\n") and self.here:
            for word in self.here:
                found = re.compile(rf"^[ \t]*{word}[ \t\r]*$", re.MULTILINE).search(self.text, end)
                end = found.end() if found else len(self.text)
            self.here = []
        return end

    def _end_array(self) -> None:
        name, added = self.array.rstrip("=").rstrip("+"), self.array.endswith("+=")
        words = [mark(f"${{{name}[@]}}")] if self.blocks else self.now.words
        self.arrays[name] = [*(self.arrays.get(name, []) if added else []), *words]
        self.variables.spend(len(self.arrays[name]) * _COST)
        self.array, self.now = "", Command()

    def _double_quoted(self, at: int) -> int:
        self._add("")
        while at < len(self.text):
            char = self.text[at]
            if char == '"':
                return at + 1
            if char == "\\" and self.text[at + 1 : at + 2] in tuple('$`"\\\n'):
                self._add(self.text[at + 1].replace("\n", ""))
                at += 2
            elif char in "$`":
                value, at = self.variables.use(self.text, at, in_shell=True)
                self._add(value)
            else:
                end = next((one.start() for one in re.compile(r"[\"\\$`]").finditer(self.text, at + 1)), len(self.text))
                self._add(self.text[at:end])
                at = end
        raise CommandError('the quote " has no end: close it')

    def _add(self, text: str, bare: str = _QUOTED) -> None:
        if self.word is None:
            self.now.lines.append(self.line)
            self.bare = ""
        self.word, self.bare = (self.word or "") + text, self.bare + bare
        if len(self.word) > LONGEST:
            raise CommandError(f"a word is longer than {LONGEST} characters")

    def _end_word(self) -> None:
        if self.word is None:
            return
        if self.redirected:
            self.now.lines.pop()
        else:
            self.now.words.append(self._expand(self.word))
        self.word, self.redirected = None, False

    def _expand(self, word: str) -> str:
        """What bash makes of the part without quotes: a mark for names of files and for several words."""
        before = self.now.words
        if _ASSIGNMENT.match(word) and (len(before) == self.now.assigned or before[0] in _DECLARING):
            self.now.assigned += 1
            home = _HOME.match(self.bare)  # such a value is not expanded otherwise
            return home[1] + self.variables.values.get("HOME", mark("~")) + word[home.end() :] if home else word
        return mark(shown(word)) if re.search(r"[*?]", self.bare) or _is_brace_list(self.bare) else word

    def _end_command(self) -> None:
        self._end_word()
        command, self.now = self.now, Command()
        within = next((n for n, word in enumerate(command.words) if word not in _WITHIN), len(command.words))
        within += 2 * (command.words[within : within + 1] == ["function"])  # and its name
        del command.words[:within], command.lines[:within]
        if command.words and command.words[0] in _OPENING:
            self.blocks.append(command.lines[0])
        if command.words and command.words[0] in _CLOSING and self.blocks:
            self.blocks.pop()
        command.block = self.blocks[0] if self.blocks else 0
        if command.words[:2] == ["set", "--"]:
            self.arrays["@"] = [mark("${@[@]}")] if command.block else command.words[2:]
            return
        if command.words and command.words[0] in ("if", "while", "until", "{", *_CLOSING):
            del command.words[0], command.lines[0]
        self._assign(command)
        if command.words:
            self.variables.spend(len(self.exported) * _COST)
            command.env |= self.exported
            self._take_assigned(command)
            self.commands.append(command)

    def _assign(self, command: Command) -> None:
        """Assignments without a program, and `export`, in order; they leave the command empty."""
        is_declared = bool(command.words) and command.words[0] in _DECLARING
        is_exported = is_declared and bool(_EXPORTING.match(" ".join(command.words[:2])))
        words = [word for word in command.words[is_declared:] if not (is_declared and word.startswith("-"))]
        found = [_ASSIGNMENT.fullmatch(word) for word in words]
        if not words or not (is_declared or all(found)):
            return
        for word, given in zip(words, found, strict=True):
            name = given[1] if given else word
            if given:
                self._set(name, given, command.block > 0)
            if is_exported or name in self.inherited:
                self.exported[name] = self.variables.value(name)
                self.inherited.add(name)
        command.words, command.lines = [], []

    def _set(self, name: str, given: re.Match[str], is_decided: bool) -> None:
        before = self.variables.values.get(name, "") if given[2] else ""
        self.variables.assign(name, mark(f"${{{name}}}") if is_decided else before + given[3])

    def _take_assigned(self, command: Command) -> None:
        at = 0
        while at + 1 < len(command.words) and (given := _ASSIGNMENT.fullmatch(command.words[at])):
            command.env[given[1]], at = given[3], at + 1
        del command.words[:at], command.lines[:at]


def _is_brace_list(bare: str) -> bool:
    inner = bare[bare.find("{") + 1 : bare.rfind("}")] if "{" in bare else ""
    return "," in inner or ".." in inner


def commands_in_container(
    text: str, env: Mapping[str, str], overrides: Mapping[str, str], words: Iterable[str] = ()
) -> list[Command]:
    """Those of a text for its shell. `overrides`: what no assignment changes; `words`: its $@. Raises CommandError."""
    hidden = {name: hide(name, env[name]) for name in env}
    values = {name: mark(f"${name}") for name in OF_IMAGE} | hidden | {**overrides}
    inherited = set(values.keys() - overrides.keys())
    return Script(text, Variables(values, frozenset(overrides)), arrays={"@": [*words]}, inherited=inherited).read()
