"""Reads the plain commands of a shell script, with its variables filled in. Runs nothing."""

import re
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field

from sparkd.base.vllm.args import LONGEST_ARGUMENT
from sparkd.tools.importers.marks import mark, shown
from sparkd.tools.importers.shell_state import COST_CHARACTERS, KEYWORDS, ShellState
from sparkd.tools.importers.simple_command import ASSIGNMENT, Command
from sparkd.tools.importers.variables import CommandError

_MASK = "\0"
_TOKEN = re.compile(
    r"(?P<joined>\\(?:\r?\n|\Z))|(?P<end>&&|\|\||;;?|\|&?|&(?!>)|\r?\n|[()])|(?P<blank>[ \t\r])|\\(?P<escaped>[\s\S])"
    r"|'(?P<single>[^']*)'|(?P<double>\")|(?P<bare>[\w=./:,@%+{}\[\]-]+|[\s\S])"
)
_REDIRECT = re.compile(r"(?:[0-9]{0,2}|&)(?:<<<|>>|>|<(?!<))(?P<to>&[0-9-])?")
"""2>, &>> or <, whose file is the next word; 2>&1, which has none."""
_OUTPUT = re.compile(r"&?>")
"""> and &>, which end a word, as in auto>log."""
_TO_FILL_IN = re.compile(r"<\w[\w./:-]{0,60}>(?=\s|\Z)")
"""A place to fill in, such as <model>."""
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?=", re.ASCII)
"""${NAME:=VALUE}, which also assigns VALUE where NAME has none."""
_HERE_DOCUMENT = re.compile(
    r"[0-9]?<<-?[ \t]*(?:'(?P<single>[^'\n]+)'|\"(?P<double>[^\"\n]+)\"|\\?(?P<bare>[^\s'\"\\;&|<>()`$]+))"
)
"""<<EOF, <<-'END OF' or << \\EOF, with the word that ends the document."""
_COMMENT = re.compile(r"#[^\n]*")
_ARITHMETIC = re.compile(r"\(\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\))*+\)\)")
"""(( A += 1 )), also of a `for`, with parentheses to three levels in it."""
_ARRAY = re.compile(r"(\")?\$(?:@|\*|\{(\w+)\[[@*]\](?::?\+\"?\$\{\2\[[@*]\]\}\"?)?\})(?(1)\")", re.ASCII)
"""All words of an array, or of a script's arguments: "$@", "${A[@]}", or ${A[@]+"${A[@]}"}."""
_WITH_ESCAPES = re.compile(r"\$'((?:[^'\\]|\\[\s\S])*)'")
r"""$'TEXT', such as $'a\tb'."""
_HOME = re.compile(r"(\w+\+?=)~(?=/|\Z)", re.ASCII)
"""NAME=~ or NAME=~/FOLDER."""


class Script(Struct):
    """A text that is read once: the part of a shell that splits it into words and commands."""

    text: str
    state: ShellState
    outer_states: list[ShellState] = field(default_factory=list)
    """Those of the shells that the open parentheses interrupt."""
    commands: list[Command] = field(default_factory=list)
    current: Command = field(default_factory=Command)
    """The command whose words are read now."""
    word: str | None = None
    """The word that is read now; None between words."""
    masked: str = ""
    """The word with a mask for each part that is quoted or filled in: bash would expand the rest."""
    open_array: str = ""
    """NAME= or NAME+= of an array whose words are read now; empty outside of any."""
    is_redirected: bool = False
    """Whether the next word is the file of a redirection."""
    operator: str = "\n"
    """What ended the last command."""
    here_ends: list[str] = field(default_factory=list)
    """Words that end the here-documents which begin on the next line."""
    is_in_test: bool = False
    """Whether [[ is open: up to its ]], operators and parentheses are the test's own."""
    line: int = 1
    """The line of the token that is read now."""
    at_line: int = 0
    """The line of all words of a text that stands in another; 0 for their own."""
    read_beside: Callable[[str], str] = lambda _path: ""
    """Reads a file that lies beside the script; empty text for another path."""
    sourced: list[str] = field(default_factory=list)
    """Paths of the sourced files that are read now; empty text for each that was. 16 of 64 KiB are a script's 1 MiB."""

    def read(self) -> list[Command]:
        """Read the commands. Assignments only set variables. Raises CommandError; then `line` has its line."""
        at = 0
        while at < len(self.text):
            end = self._take_token(at)
            self.line += self.text.count("\n", at, end)
            at = end
        self._end_command("\n")
        if self.open_array or self.is_in_test:
            raise CommandError(f"{'a list of words in parentheses' if self.open_array else '[['} has no end: close it")
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
        value, end = self._use_variable(at)
        first, *others = [value] if self._is_assignment() else re.split(r"[ \t\n]+", value)
        if first:
            self._add_text(first)
        for other in others:
            self._end_word()
            if other:
                self._add_text(other)
        return end

    def _use_variable(self, at: int) -> tuple[str, int]:
        """The value, and the position behind its use."""
        value, end = self.state.variables.use(self.text, at, in_shell=True)
        self.state.make_computed_unknown(self.text[at:end] if self.text.startswith("$((", at) else "")
        if default := _DEFAULT.match(self.text, at):
            self.state.keep_default(default[1], value)
        return value, end

    def _take_word_start(self, at: int) -> int:
        """Take what has a meaning only where a word begins; return 0 if there is nothing of the kind."""
        if comment := _COMMENT.match(self.text, at):
            return comment.end()
        if (arithmetic := _ARITHMETIC.match(self.text, at)) and self._begins_command():
            self.state.make_computed_unknown(arithmetic[0])
            self._add_text("((")
            self._end_word()
            return arithmetic.end()
        if document := _HERE_DOCUMENT.match(self.text, at):
            self.here_ends.append(document[str(document.lastgroup)])
            return document.end()
        if self.text[at] == "~" and self.text[at + 1 : at + 2] in ("", *"/ \t\r\n;&|()<>"):
            self._add_text(self.state.variables.values.get("HOME", mark("~")))
            return at + 1
        if to_fill_in := _TO_FILL_IN.match(self.text, at):
            self._add_text(self.state.variables.override(to_fill_in[0][1:-1]) or mark(to_fill_in[0]))
            return to_fill_in.end()
        if redirect := _REDIRECT.match(self.text, at):
            self.is_redirected = not redirect["to"]
            return redirect.end()
        if array := _ARRAY.match(self.text, at):
            self._add_array(array[2] or "@")
            return array.end()
        return 0

    def _add_array(self, name: str) -> None:
        for value in self.state.find_array(name):
            self.state.variables.spend(len(value) + COST_CHARACTERS)
            self._add_text(value)
            self._end_word()

    def _take_end(self, text: str, end: int) -> int:
        """Take what ends a command: it may also begin or end an array, or begin here-documents, which are skipped."""
        if text == "(" and self._begins_array():
            self.state.take_before_array(self.current)
            self.open_array, self.word = self.word or "", None
            return end
        self._end_word()
        if self.open_array or self.is_in_test:
            if self.open_array and text == ")":
                self._end_array()
            return end
        is_awaited = not self.current.words and self.operator in ("&&", "||", "|")
        if not (text.endswith("\n") and is_awaited):
            self._end_command("|" if text == "|&" else text)
        return self._skip_here_documents(end) if text.endswith("\n") else end

    def _begins_array(self) -> bool:
        """Whether the word is an assignment without a value."""
        name = ASSIGNMENT.fullmatch(self.word or "")
        return name is not None and not name[3]

    def _skip_here_documents(self, end: int) -> int:
        for word in self.here_ends:
            last_line = re.compile(rf"^[ \t]*{re.escape(word)}[ \t\r]*$", re.MULTILINE).search(self.text, end)
            end = last_line.end() if last_line else len(self.text)
        self.here_ends = []
        return end

    def _end_array(self) -> None:
        name, is_appended = self.open_array.rstrip("=").rstrip("+"), self.open_array.endswith("+=")
        arrays = [*self.current.arrays, (name, self.current.words, is_appended)]
        self.open_array, self.current, self.operator = "", Command(arrays=arrays), ""

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
                value, at = self._use_variable(at)
                self._add_text(value)
            else:
                special = re.compile(r"[\"\\$`]").finditer(self.text, at + 1)
                end = next((match.start() for match in special), len(self.text))
                self._add_text(self.text[at:end])
                at = end
        raise CommandError('the quote " has no end: close it')

    def _add_text(self, text: str, masked: str = _MASK) -> None:
        if self.word is None:
            self.current.lines.append(self.at_line or self.line)
            self.masked = ""
        self.word, self.masked = (self.word or "") + text, self.masked + masked
        if len(self.word) > LONGEST_ARGUMENT:
            raise CommandError(f"a word is longer than {LONGEST_ARGUMENT} characters")

    def _end_word(self) -> None:
        if self.word is None:
            return
        self.operator = ""
        self.is_in_test = self.masked != "]]" and (self.is_in_test or (self.masked == "[[" and self._begins_command()))
        if self.is_redirected:
            self.current.lines.pop()
        else:
            self.current.words.append(self._expand(self.word))
        self.word, self.is_redirected = None, False

    def _is_assignment(self) -> bool:
        command, begin = self.current, (self.word or "")[:256]
        is_at_begin = len(command.words) == command.assigned
        return bool(ASSIGNMENT.match(begin)) and (is_at_begin or command.is_declaration)

    def _begins_command(self) -> bool:
        return not self.current.words or self.current.words[-1] in ("for", *KEYWORDS)

    def _expand(self, word: str) -> str:
        """The word; in an assignment with ~ filled in.

        Elsewhere a pattern of files, or a list in braces, becomes a mark: bash would expand it.
        """
        if self._is_assignment():
            self.current.assigned += 1
            home = _HOME.match(self.masked)  # bash expands nothing else in an assignment
            return home[1] + self.state.variables.values.get("HOME", mark("~")) + word[home.end() :] if home else word
        return mark(shown(word)) if re.search(r"[*?]", self.masked) or _is_brace_list(self.masked) else word

    def _end_command(self, operator: str) -> None:
        """Keep the command, if it runs a program. `operator`: what ends it; a parenthesis begins or ends a subshell."""
        self._end_word()
        command, self.current, self.operator = self.current, Command(), operator
        self._read_sourced(command, operator)
        runs_program = self.state.take(command, operator)
        # A ) that closes no subshell is behind a pattern of `case`, which is a block.
        ends_subshell = self.outer_states and len(self.state.blocks) <= len(self.outer_states[-1].blocks)
        if runs_program and (operator != ")" or ends_subshell):
            self.commands.append(command)
        if operator == "(":
            self.outer_states.append(self.state)
            self.state = self.state.fork()
        elif operator == ")" and ends_subshell:
            subshell, self.state = self.state, self.outer_states.pop()
            self.state.join(subshell)

    def _read_sourced(self, command: Command, operator: str) -> None:
        """Read the file beside the script that `source` names, in place of the command: it stays where that fails."""
        words, state = command.words, self.state
        path = state.variables.find_folder("".join(words[-1:]))
        is_source = words[-2:-1] in (["."], ["source"]) and words[:-2] in ([], ["then"])
        is_left = path.endswith("/activate") or path in self.sourced or state.is_piped or operator in ("|", "&")
        text = self.read_beside(path) if is_source and not is_left and len(self.sourced) < 16 else ""
        if not 0 < len(text) <= 1 << 16:
            return
        is_sure = len(state.blocks) + bool(state.condition) <= (path == state.tested)
        file = Script(text, state.fork(), at_line=command.lines[0], read_beside=self.read_beside, sourced=self.sourced)
        file.state.blocks = command.lines[: not is_sure]
        file.state.variables.assign("BASH_SOURCE", path)
        self.sourced.append(path)
        with suppress(CommandError):
            commands = file.read()
            if not file.outer_states:  # else a parenthesis has no end
                self.commands, self.state = self.commands + commands, file.state.return_to(state)
                command.words[-2:] = [":", path]
        self.state.variables.characters_left = file.state.variables.characters_left
        self.sourced[self.sourced.index(path)] = ""


def _is_brace_list(masked: str) -> bool:
    """Whether bash would make several words of the word, as of {a,b} or {1..3}."""
    inner = masked[masked.find("{") + 1 : masked.rfind("}")] if "{" in masked else ""
    return "," in inner or ".." in inner
