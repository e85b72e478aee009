"""Reads the plain commands of a shell script, with its variables filled in. Runs nothing."""

import re
from collections.abc import Iterable, Mapping
from itertools import takewhile

from msgspec import Struct, field

from sparkd.base.vllm.args import LONGEST_TEXT_BYTES as LONGEST
from sparkd.tools.importers.variables import CommandError, Variables, hide, mark, shown

OF_IMAGE = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables with folders, to which an image and a node give values of their own."""
_MASK = "\0"
_TOKEN = re.compile(
    r"(?P<joined>\\(?:\r?\n|\Z))|(?P<end>&&|\|\||;;?|\||&(?!>)|\r?\n|[()])|(?P<blank>[ \t\r])|\\(?P<escaped>[\s\S])"
    r"|'(?P<single>[^']*)'|(?P<double>\")|(?P<bare>[\w=./:,@%+{}\[\]-]+|[\s\S])"
)
_REDIRECT = re.compile(r"(?:[0-9]{0,2}|&)(?:<<<|>>|>|<(?!<))(?P<to>&[0-9-])?")
_OUTPUT = re.compile(r"&?>")
_TO_FILL_IN = re.compile(r"<\w[\w./:-]{0,60}>(?=\s|\Z)")
"""A place to fill in, such as <model>."""
_HERE_DOCUMENT = re.compile(
    r"[0-9]?<<-?[ \t]*(?:'(?P<single>[^'\n]+)'|\"(?P<double>[^\"\n]+)\"|\\?(?P<bare>[^\s'\"\\;&|<>()`$]+))"
)
_ARRAY = re.compile(r"(\")?\$(?:@|\*|\{(\w+)\[[@*]\](?::?\+\"?\$\{\2\[[@*]\]\}\"?)?\})(?(1)\")", re.ASCII)
"""All words of an array, or of a script's arguments."""
_WITH_ESCAPES = re.compile(r"\$'((?:[^'\\]|\\[\s\S])*)'")
_HOME = re.compile(r"(\w+\+?=)~(?=/|\Z)", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=([\s\S]*)", re.ASCII)
_DECLARING = ("export", "declare", "readonly", "local", "typeset")
_EXPORTING = re.compile(r"export|\w+ -[a-z]*x")
_BLOCK_OPENING = ("if", "for", "while", "until", "case", "select", "{")
_BLOCK_CLOSING = ("fi", "done", "esac", "}")
_BEFORE_COMMAND = ("then", "do", "else", "elif", "!", "time")
_COST_CHARACTERS = 8
"""Characters that a copied word or variable takes from those that may be filled in."""


class Command(Struct):
    """A simple command that a shell may run."""

    words: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """The line of each word."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that are exported so far, and those that are assigned right before the program."""
    assigned: int = 0
    """The number of its words that are assignments, also behind `export`."""
    block: int = 0
    """Line where a block begins that decides whether the command runs; 0 outside of any."""


class Script(Struct):
    """A script that is read once, and the state of that between tokens."""

    text: str
    variables: Variables
    exported: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    """Words by the array's name; `@` has the script's arguments."""
    blocks: list[int] = field(default_factory=list)
    """Lines where the open blocks begin."""
    current: Command = field(default_factory=Command)
    """The command whose words are read now."""
    word: str | None = None
    """The word that is read now; None between words."""
    unquoted: str = ""
    """The word with a mask for each part that is quoted or filled in: bash would expand the rest."""
    open_array: str = ""
    """NAME= or NAME+= of an array whose words are read now; empty outside of any."""
    is_redirected: bool = False
    """Whether the next word is the file of a redirection."""
    inherited: set[str] = field(default_factory=set)
    """Names of variables that a program gets, from the start or by `export`."""
    here_ends: list[str] = field(default_factory=list)
    """Words that end the here-documents which begin on the next line."""
    line: int = 1
    """The line of the token that is read now."""

    def read(self) -> list[Command]:
        """Read the commands. Assignments only set variables. Raises CommandError; then `line` has its line."""
        at = 0
        while at < len(self.text):
            end = self._take_token(at)
            self.line += self.text.count("\n", at, end)
            at = end
        self._end_command()
        if self.open_array:
            raise CommandError("a list of words in parentheses has no end: close it")
        return self.commands

    def _take_token(self, at: int) -> int:
        """Take one token; return its end, as the methods below do."""
        # After a "<" the sign ends a place to fill in, as in --model=<MODEL>.
        if self.word is not None and "<" not in self.word and _OUTPUT.match(self.text, at):
            self._end_word()
        if self.word is None and (end := self._take_word_start(at)):
            return end
        token = _TOKEN.match(self.text, at)
        if token is None:  # unreachable: each character is one
            return at + 1
        match str(token.lastgroup):
            case "end":
                return self._take_end(token[0], token.end())
            case "double":
                return self._take_double_quoted(token.end())
            case "bare":
                return self._take_bare(token[0], at)
            case "blank":
                self._end_word()
            case kind if kind != "joined":
                self._add_text(token[kind], _MASK)
        return token.end()

    def _take_bare(self, text: str, at: int) -> int:
        if text in "$`":
            return self._take_expansion(at)
        if text == "'":
            raise CommandError("the quote ' has no end: close it")
        self._add_text(text, text)
        return at + len(text)

    def _take_expansion(self, at: int) -> int:
        """Take an unquoted use of a variable, whose value becomes several words where it has blanks; or $'TEXT'."""
        if quoted := _WITH_ESCAPES.match(self.text, at):
            self._add_text(mark(quoted[0]) if "\\" in quoted[1] else quoted[1])
            return quoted.end()
        if self.text.startswith('$"', at):  # a text to translate, which stays as it is without a catalogue
            return at + 1
        value, end = self.variables.use(self.text, at, in_shell=True)
        first, *others = re.split(r"[ \t\n]+", value)
        if first:
            self._add_text(first)
        for other in others:
            self._end_word()
            if other:
                self._add_text(other)
        return end

    def _take_word_start(self, at: int) -> int:
        """Take what has a meaning only where a word begins; return 0 if there is nothing of the kind."""
        if self.text[at] == "#":
            end = self.text.find("\n", at)
            return len(self.text) if end < 0 else end
        if document := _HERE_DOCUMENT.match(self.text, at):
            self.here_ends.append(document[str(document.lastgroup)])
            return document.end()
        if self.text[at] == "~" and self.text[at + 1 : at + 2] in ("", "/", " "):
            self._add_text(self.variables.values.get("HOME", mark("~")))
            return at + 1
        if to_fill_in := _TO_FILL_IN.match(self.text, at):
            self._add_text(self.variables.override(to_fill_in[0][1:-1]) or mark(to_fill_in[0]))
            return to_fill_in.end()
        if redirect := _REDIRECT.match(self.text, at):
            self.is_redirected = not redirect["to"]
            return redirect.end()
        if array := _ARRAY.match(self.text, at):
            for value in self._find_list(array[2]) if array[2] else self.arrays.get("@", []):
                self.variables.spend(len(value) + _COST_CHARACTERS)
                self._add_text(value)
                self._end_word()
            return array.end()
        return 0

    def _find_list(self, name: str) -> list[str]:
        """The words that the user gives for an array; else its own, or a mark where they are not known."""
        return self.variables.override(name).split() or self.arrays.get(name, [mark(f"${{{name}[@]}}")])

    def _take_end(self, text: str, end: int) -> int:
        """Take what ends a command: it may also begin or end an array, or begin here-documents, which are skipped."""
        if text == "(" and self.word is not None and (name := _ASSIGNMENT.fullmatch(self.word)) and not name[3]:
            self.open_array, self.word = self.word, None
            return end
        self._end_word()
        if self.open_array:
            if text == ")":
                self._end_array()
            return end
        self._end_command()
        if text.endswith("\n") and self.here_ends:
            for word in self.here_ends:
                last_line = re.compile(rf"^[ \t]*{re.escape(word)}[ \t\r]*$", re.MULTILINE).search(self.text, end)
                end = last_line.end() if last_line else len(self.text)
            self.here_ends = []
        return end

    def _end_array(self) -> None:
        name, is_appended = self.open_array.rstrip("=").rstrip("+"), self.open_array.endswith("+=")
        words = [mark(f"${{{name}[@]}}")] if self.blocks else self.current.words
        self.arrays[name] = [*(self.arrays.get(name, []) if is_appended else []), *words]
        self.variables.spend(len(self.arrays[name]) * _COST_CHARACTERS)
        self.open_array, self.current = "", Command()

    def _take_double_quoted(self, at: int) -> int:
        self._add_text("")
        while at < len(self.text):
            char = self.text[at]
            if char == '"':
                return at + 1
            if char == "\\" and self.text[at + 1 : at + 2] in tuple('$`"\\\n'):
                self._add_text(self.text[at + 1].replace("\n", ""))
                at += 2
            elif char in "$`":
                value, at = self.variables.use(self.text, at, in_shell=True)
                self._add_text(value)
            else:
                special = re.compile(r"[\"\\$`]").finditer(self.text, at + 1)
                end = next((match.start() for match in special), len(self.text))
                self._add_text(self.text[at:end])
                at = end
        raise CommandError('the quote " has no end: close it')

    def _add_text(self, text: str, unquoted: str = _MASK) -> None:
        if self.word is None:
            self.current.lines.append(self.line)
            self.unquoted = ""
        self.word, self.unquoted = (self.word or "") + text, self.unquoted + unquoted
        if len(self.word) > LONGEST:
            raise CommandError(f"a word is longer than {LONGEST} characters")

    def _end_word(self) -> None:
        if self.word is None:
            return
        if self.is_redirected:
            self.current.lines.pop()
        else:
            self.current.words.append(self._expand(self.word))
        self.word, self.is_redirected = None, False

    def _expand(self, word: str) -> str:
        """The word; in an assignment with ~ filled in.

        Elsewhere a pattern of files, or a list in braces, becomes a mark: bash would expand it.
        """
        earlier_words = self.current.words
        if _ASSIGNMENT.match(word) and (len(earlier_words) == self.current.assigned or earlier_words[0] in _DECLARING):
            self.current.assigned += 1
            home = _HOME.match(self.unquoted)  # bash expands nothing else in an assignment
            return home[1] + self.variables.values.get("HOME", mark("~")) + word[home.end() :] if home else word
        return mark(shown(word)) if re.search(r"[*?]", self.unquoted) or _is_brace_list(self.unquoted) else word

    def _end_command(self) -> None:
        """Take the command that was read: follow its blocks, set its variables, and keep what runs a program."""
        self._end_word()
        command, self.current = self.current, Command()
        start = len([*takewhile(_BEFORE_COMMAND.__contains__, command.words)])
        start += 2 * (command.words[start : start + 1] == ["function"])  # and its name
        del command.words[:start], command.lines[:start]
        first_word = "".join(command.words[:1])
        if first_word in _BLOCK_OPENING:
            self.blocks.append(command.lines[0])
        if first_word in _BLOCK_CLOSING and self.blocks:
            self.blocks.pop()
        command.block = self.blocks[0] if self.blocks else 0
        if command.words[:2] == ["set", "--"]:
            self.arrays["@"] = [mark("${@[@]}")] if command.block else command.words[2:]
            return
        if first_word in ("if", "while", "until", "{", *_BLOCK_CLOSING):  # a command follows on the same line
            del command.words[0], command.lines[0]
        self._take_declaration(command)
        if command.words:
            self.variables.spend(len(self.exported) * _COST_CHARACTERS)
            command.env |= self.exported
            self._take_prefix(command)
            self.commands.append(command)

    def _take_declaration(self, command: Command) -> None:
        """Carry out assignments without a program, and `export`, in order. They leave the command empty."""
        is_declared = bool(command.words) and command.words[0] in _DECLARING
        is_exported = is_declared and bool(_EXPORTING.match(" ".join(command.words[:2])))
        words = [word for word in command.words[is_declared:] if not (is_declared and word.startswith("-"))]
        assignments = [_ASSIGNMENT.fullmatch(word) for word in words]
        if not words or not (is_declared or all(assignments)):
            return
        for word, assignment in zip(words, assignments, strict=True):
            name = assignment[1] if assignment else word
            if assignment:
                self._set_variable(name, assignment, command.block > 0)
            if is_exported or name in self.inherited:
                self.exported[name] = self.variables.value(name)
                self.inherited.add(name)
        command.words, command.lines = [], []

    def _set_variable(self, name: str, assignment: re.Match[str], is_conditional: bool) -> None:
        """Assign or append. `is_conditional`: a block decides whether that happens, so the value is not known."""
        prefix = self.variables.values.get(name, "") if assignment[2] else ""
        self.variables.assign(name, mark(f"${{{name}}}") if is_conditional else prefix + assignment[3])

    def _take_prefix(self, command: Command) -> None:
        """Move the assignments before a program to the command's variables."""
        at = 0
        while at + 1 < len(command.words) and (assignment := _ASSIGNMENT.fullmatch(command.words[at])):
            command.env[assignment[1]], at = assignment[3], at + 1
        del command.words[:at], command.lines[:at]


def _is_brace_list(unquoted: str) -> bool:
    """Whether bash would make several words of the word, as of {a,b} or {1..3}."""
    inner = unquoted[unquoted.find("{") + 1 : unquoted.rfind("}")] if "{" in unquoted else ""
    return "," in inner or ".." in inner


def commands_in_container(
    text: str, env: Mapping[str, str], overrides: Mapping[str, str], words: Iterable[str] = ()
) -> list[Command]:
    """Read the commands of a text for a container's shell. Raises CommandError.

    `env`: the container's variables. `overrides`: variables that no assignment changes. `words`: the text's $@.
    """
    hidden = {name: hide(name, value) for name, value in env.items()}
    values = {name: mark(f"${name}") for name in OF_IMAGE} | hidden | {**overrides}
    inherited = set(values.keys() - overrides.keys())
    return Script(text, Variables(values, frozenset(overrides)), arrays={"@": [*words]}, inherited=inherited).read()
