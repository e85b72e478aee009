"""What the commands of a shell script do to its variables, arrays and blocks, without running any of them."""

import re
from collections.abc import Iterable
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.tools.importers.marks import is_unknown, mark_array, mark_variable, unknown
from sparkd.tools.importers.simple_command import ASSIGNMENT, Command
from sparkd.tools.importers.variables import Variables

COST_CHARACTERS = 8
"""Characters that a copied word or variable takes from those that may be filled in."""
_COST_OF_SUBSHELL = 16
"""Copied variables that the copy of an empty state counts as."""
_BLOCK_OPENING = ("if", "for", "while", "until", "case", "select", "{")
_BLOCK_CLOSING = ("fi", "done", "esac", "}")
KEYWORDS = ("if", "while", "until", "{", *_BLOCK_CLOSING, "then", "do", "else", "elif", "!", "time")
"""Words that may have a command behind them on the same line."""
_SUCCEEDING = (
    ":", ".", "cd", "echo", "mkdir", "popd", "printf", "pushd", "set", "shopt", "sleep", "source", "trap", "true",
    "ulimit", "umask", "unset",
)  # fmt: skip
"""Programs that a script relies on: what follows their && runs."""
_SETTING = {"for": 2, "select": 2, "getopts": 3, "read": None, "mapfile": None, "readarray": None}
"""Words that give variables what only a run knows, with the place behind the last of their names."""
_COMPUTED = re.compile(
    r"(?:\+\+|--)\s*+([A-Za-z_]\w*)|\b([A-Za-z_]\w*+)\s*+(?:\+\+|--|(?:<<|>>|[-+*/%&^|])?=(?!=))", re.ASCII
)
"""Variables to which arithmetic assigns. What they get is not computed."""
_OPTION = re.compile(r"(?<!\S)--?[A-Za-z][\w-]*+=")
"""An option before its value, such as --model=, in the text of an eval: it assigns nothing."""
_TESTS = ("[", "[[", "test")
_TEST_OF_FILE = re.compile(r"(if )?(?:\[\[?|test) -f (\S+)(?: \]\]?)?")
_RUN_WHERE_EMPTY = (("-z", "&&"), ("-n", "||"))


class ShellState(Struct):
    """What a shell knows between two commands."""

    variables: Variables
    exported: dict[str, str] = field(default_factory=dict)
    inherited: set[str] = field(default_factory=set)
    """Names of variables that a program gets, from the start or by `export`."""
    arrays: dict[str, list[str]] = field(default_factory=dict)
    """Words by the array's name; `@` has the script's arguments."""
    blocks: list[int] = field(default_factory=list)
    """Lines where the open blocks begin."""
    condition: str = ""
    """The operator that decides whether the next command runs: && behind a program, or ||; empty for none."""
    doubtful: dict[str, str] = field(default_factory=dict)
    """Variables that are assigned behind such a &&, each with what is known of it once its && list has ended."""
    doubtful_arrays: dict[str, list[str]] = field(default_factory=dict)
    """Arrays, likewise."""
    defaulted: set[str] = field(default_factory=set)
    """Variables and arrays that the command that is read has set so far, as by a use such as ${NAME:=VALUE}."""
    tested: str = ""
    """The path of the file that decides about the next commands, as in [ -f .env ] &&; empty for none."""
    is_piped: bool = False
    """Whether the command is a part of a pipeline, or runs beside the shell: what it assigns ends with it."""

    def take(self, command: Command, operator: str) -> bool:
        """Follow the command's blocks and carry out its assignments. Whether it runs a program: it is left in `words`.

        `operator`: the one behind it, or a newline. Raises CommandError where too much is copied.
        """
        self._follow_test(command.words, operator)
        first_word = "".join(command.words[:1])
        is_next_sure = not self.condition and self._is_next_sure(command.words, operator)
        self.is_piped = self.is_piped or operator in ("|", "&")
        runs_program = self._carry_out(command)
        self.make_unknown(self.defaulted if self.is_piped else ())
        self.defaulted.clear()
        self.is_piped = operator == "|"
        may_fail = first_word in _BLOCK_CLOSING or (runs_program and first_word not in _SUCCEEDING)
        if not is_next_sure:
            self._follow_operator(operator, may_fail=may_fail)
        return runs_program

    def _follow_test(self, words: list[str], operator: str) -> None:
        test = _TEST_OF_FILE.fullmatch(" ".join(words[:6]))
        if test and not (self.blocks or self.condition) and operator in ((";", "\n") if test[1] else ("&&",)):
            self.tested = self.variables.find_folder(test[2])
        elif operator in ("||", "(") or "".join(words[words[:1] == ["then"] :][:1]) not in ("", *_SUCCEEDING):
            self.tested = ""

    def _is_next_sure(self, words: list[str], operator: str) -> bool:
        """Whether the words are [ -z "$NAME" ] && or [ -n "$NAME" ] || for a name without a value: as ${NAME:-...}."""
        if len(words) not in (3, 4) or words[0] not in _TESTS or (words[1], operator) not in _RUN_WHERE_EMPTY:
            return False
        name = unknown(words[2]).strip("${}") if is_unknown(words[2]) else ""
        return not words[2] or (name.isidentifier() and name not in self.variables.values)

    def fork(self) -> Self:
        """The state of a subshell, in parentheses. Raises CommandError where too much is copied."""
        values, exported, inherited = {**self.variables.values}, {**self.exported}, {*self.inherited}
        arrays, blocks = {**self.arrays}, [*self.blocks]
        copied = sum(map(len, (values, exported, inherited, arrays, blocks)))
        self.variables.spend((_COST_OF_SUBSHELL + copied) * COST_CHARACTERS)
        return type(self)(replace(self.variables, values=values), exported, inherited, arrays, blocks)

    def join(self, subshell: Self) -> None:
        """Take the place of a subshell that has ended, and may have failed: its variables are lost."""
        self.variables.characters_left = subshell.variables.characters_left
        self.condition = self.condition or "&&"

    def return_to(self, outer: Self) -> Self:
        """The state behind a sourced file that has ended, in the blocks and conditions of `outer`."""
        self.variables.assign("BASH_SOURCE", outer.variables.value("BASH_SOURCE"))
        kept = {"exported": self.exported, "inherited": self.inherited, "arrays": self.arrays}
        return replace(outer, variables=self.variables, **kept)

    def _follow_operator(self, operator: str, *, may_fail: bool) -> None:
        """Follow the operator behind a command. `may_fail`: whether a && decides about the next command."""
        if operator in ("&&", "|", "("):  # in the same && list
            if operator == "&&" and (may_fail or self.condition == "||"):
                self.condition = "&&"  # also behind a ||: what follows runs where one of those before it has not failed
            return
        self.condition = "||" if operator == "||" else ""
        for name, value in self.doubtful.items():
            self.variables.assign(name, value)
            if name in self.exported:
                self.exported[name] = self.variables.value(name)
        self.arrays |= self.doubtful_arrays
        self.doubtful, self.doubtful_arrays = {}, {}

    def _carry_out(self, command: Command) -> bool:
        self._follow_blocks(command)
        if command.words[:1] == ["function"]:
            command.drop_words(2)  # and its name
            self._follow_blocks(command)
        self._set_arrays(command)
        if command.words[:2] == ["set", "--"]:
            self.set_array("@", command.words[2:])
            return False
        self._take_declaration(command)
        if command.words[:1] == ["unset"] and not self.is_piped:
            self._unset(command.words[1:])
        if command.words:
            self.variables.spend(len(self.exported) * COST_CHARACTERS)
            command.env |= self.exported
            command.take_prefix()
            self._follow_setting(command.words)
            command.folder = self.variables.values.get("PWD", "")
            if command.words[0] in ("cd", "pushd", "popd") and not self.is_piped:
                folder = self.variables.find_folder("".join(command.words[1:][-1:]))
                if folder != command.folder:
                    self._set_variable("PWD", folder or mark_variable("PWD"))
        return bool(command.words)

    def _follow_setting(self, words: list[str]) -> None:
        """Make the variables unknown that a command such as `read` sets."""
        setting = "".join(words[:1])
        names = words[1 : _SETTING[setting]] if setting in _SETTING else []
        if words[:2] == ["printf", "-v"]:
            names = words[2:3]
        elif setting in ("let", "eval"):
            self.make_computed_unknown(_OPTION.sub("", " ".join(words[1:])))
        self.make_unknown(name for name in names if name.isidentifier())

    def _unset(self, names: list[str]) -> None:
        """Forget variables and arrays. Where a condition decides whether that happens, they are not known."""
        if self.blocks or self.condition:
            self.make_unknown(names)
            return
        for name in names:
            if name not in self.variables.fixed:
                self.variables.values.pop(name, None)
            self.arrays.pop(name, None)
            self.exported.pop(name, None)
            self.inherited.discard(name)

    def make_unknown(self, names: Iterable[str]) -> None:
        """Take the values of variables and arrays as unknown."""
        for name in names:
            self.variables.assign(name, mark_variable(name))
            self.arrays[name] = [mark_array(name)]
            if name in self.exported:
                self.exported[name] = self.variables.value(name)

    def make_computed_unknown(self, text: str) -> None:
        """Make the variables unknown to which arithmetic assigns."""
        self.make_unknown(before or behind for before, behind in _COMPUTED.findall(text))

    def find_array(self, name: str) -> list[str]:
        """The words of an array, with those that the user gives for its unknown part; else for the whole array."""
        if name == "@":
            return self.arrays.get("@", [])
        chosen, open_part = self.variables.override(name).split(), mark_array(name)
        words = self.arrays.get(name, [open_part])
        if chosen and open_part in words:
            at = words.index(open_part)
            if any(word.startswith("--") and word in words[at:] for word in chosen):
                at = len(words)  # vLLM takes a flag's last value
            return [word for word in (*words[:at], *chosen, *words[at:]) if word != open_part]
        return chosen or words

    def take_before_array(self, command: Command) -> None:
        """Carry out what is before an array's name on its line: a block's begin, `declare -a`, another assignment."""
        self._follow_blocks(command)
        self._take_declaration(command)
        command.drop_words(len(command.words))
        self.defaulted |= {name for name, _words, _is_appended in command.arrays}  # the next array may have their words
        self._set_arrays(command)

    def _set_arrays(self, command: Command) -> None:
        for name, words, is_appended in command.arrays:
            self.set_array(name, words, is_appended=is_appended)
        command.arrays.clear()

    def keep_default(self, name: str, value: str) -> None:
        """Keep the value that a use such as ${NAME:=VALUE} has given, unless a condition decides whether it does."""
        if self.variables.values.get(name) == value:
            return
        self.defaulted.add(name)
        self.variables.assign(name, mark_variable(name) if self.blocks or self.condition else value)
        if name in self.inherited:
            self.exported[name] = self.variables.value(name)

    def set_array(self, name: str, words: list[str], *, is_appended: bool = False) -> None:
        """Set an array, or append to it. Where a condition decides whether that happens, the words are not known."""
        if self.is_piped:
            return
        earlier_words = self.arrays.get(name, []) if is_appended else []
        uncertain_words = [*earlier_words, mark_array(name)]
        self.arrays[name] = uncertain_words if self._is_uncertain() else [*earlier_words, *words]
        if self.condition == "&&":
            self.doubtful_arrays.setdefault(name, uncertain_words)
        self.variables.spend(len(self.arrays[name]) * COST_CHARACTERS)

    def _is_uncertain(self) -> bool:
        """Whether what an assignment sets is not known, not even to the end of its && list."""
        return bool(self.blocks) or self.condition == "||"

    def _follow_blocks(self, command: Command) -> None:
        """Open or close the blocks of the command's first words, and drop those that have a command behind them."""
        count = 0
        for word in command.words:
            if word in _BLOCK_OPENING:
                self.blocks.append(command.lines[count])
                self.is_piped = False  # what the block assigns is not known, which holds also behind it
            elif word in _BLOCK_CLOSING and self.blocks:
                self.blocks.pop()
            if word not in KEYWORDS:
                break
            count += 1
        command.drop_words(count)
        command.block = self.blocks[0] if self.blocks else 0

    def _take_declaration(self, command: Command) -> None:
        """Carry out assignments without a program, and `export`, in order. They leave the command empty."""
        words = command.declared_words()
        if not words:
            return
        is_exported = command.is_export
        for word in () if self.is_piped else words:
            if assignment := ASSIGNMENT.fullmatch(word):
                name, is_appended, value = assignment.groups()
                self._set_variable(name, (self.variables.values.get(name, "") if is_appended else "") + value)
            self._export(assignment[1] if assignment else word, is_exported=is_exported)
        command.drop_words(len(command.words))

    def _export(self, name: str, *, is_exported: bool) -> None:
        """Give commands the variable's value, now or as before."""
        if is_exported or name in self.inherited:
            self.exported[name] = self.variables.value(name)
            self.inherited.add(name)

    def _set_variable(self, name: str, value: str) -> None:
        """Assign a value. Where a condition decides whether that happens, what it adds to the last one is not known."""
        known_value = self.variables.values.get(name, "")
        # Words before those that it adds stay known.
        earlier_value = known_value if value.startswith((f"{known_value} ", f"{known_value}\n")) else ""
        uncertain_value = f"{earlier_value} {mark_variable(name)}".lstrip()
        self.variables.assign(name, uncertain_value if self._is_uncertain() else value)
        if self.blocks or self.condition:
            self.variables.spend(len(earlier_value))  # it grows by a mark with each
        if self.condition == "&&":
            self.doubtful.setdefault(name, uncertain_value)
