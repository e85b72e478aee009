"""The commands of a shell within a command: the text behind `bash -c`, `eval` or `su -c`, also behind sudo or nohup."""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise, takewhile

from sparkd.tools.importers.command import BEFORE
from sparkd.tools.importers.marks import hide, mark
from sparkd.tools.importers.options import LineError
from sparkd.tools.importers.shell import Script
from sparkd.tools.importers.shell_state import ShellState
from sparkd.tools.importers.simple_command import ASSIGNMENT, Command
from sparkd.tools.importers.variables import SET_BY_IMAGE, CommandError, Variables

_SHELL = re.compile(r"(?:/[\w./-]*/)?(?:ba|da)?sh")
_RUNNERS = (*BEFORE, "nice", "numactl", "screen", "setsid", "systemd-run", "taskset", "time", "timeout")
"""Programs that run the command behind their options."""
_OF_RUNNER = re.compile(r"-.*|(?:0x)?[\da-f.,-]+[smhd]?", re.DOTALL)
"""An option of a runner, a time or the numbers of CPUs."""
_MAY_TAKE_VALUE = re.compile(r"-(?!-?\Z|[AEHbiknv]+\Z)")
"""An option of a runner that may have a value behind it; that of -n and -k is a number."""
_AS_ANOTHER = ("su", "sg", "runuser")
"""Programs that have a shell of another user or group run the text behind -c."""
TEXT_FOLLOWS = re.compile(r"-[a-z]*c")
"""A shell's option before a text of commands, such as -c and -lc."""


def inner_commands(
    words: list[str], env: Mapping[str, str], overrides: Mapping[str, str], line: int
) -> list[Command] | None:
    """The commands in the text of `bash -c` or `eval`; None for others, and an eval without end. Raises LineError."""
    env, shell = _find_shell(words, env)
    option_at = next((place for place, word in enumerate(shell) if TEXT_FOLLOWS.fullmatch(word)), 0)
    # Further options may come before the text: bash -c -i TEXT.
    text_at = next((place for place, word in enumerate(shell) if place > option_at and not word.startswith("-")), 0)
    if not option_at or not text_at or not _SHELL.fullmatch(shell[0]):
        return None
    try:
        return commands_in_container(shell[text_at], env, overrides, shell[text_at + 2 :], line)
    except CommandError as error:
        if words[0] == "eval":
            return None
        raise LineError(line, f"{shell[0]} {shell[option_at]}: {error}") from None


def _find_shell(words: list[str], env: Mapping[str, str]) -> tuple[Mapping[str, str], list[str]]:
    """The variables with those that a runner sets, and the words from its program on: of eval and su, a shell's."""
    first_word = "".join(words[:1])
    if first_word == "eval":
        return env, ["bash", "-c", " ".join(words[1:])]
    if first_word in _RUNNERS:
        places = (place for place, pair in enumerate(pairwise(words), 1) if not _is_runners_own(*pair))
        start = next(places, len(words))
        assignments = filter(None, map(ASSIGNMENT.fullmatch, words[:start]))
        env, words = {**env, **{assignment[1]: assignment[3] for assignment in assignments}}, words[start:]
    if "".join(words[:1]) in _AS_ANOTHER and "-c" in takewhile("--".__ne__, words):
        words = ["bash", *words[words.index("-c") :]]
    return env, words


def _is_runners_own(before: str, word: str) -> bool:
    """Whether a word behind a runner is an option, its value, or another runner. `before`: the word before it."""
    is_value = _MAY_TAKE_VALUE.match(before) and not _SHELL.fullmatch(word)
    return bool(is_value) or word in _RUNNERS or bool(_OF_RUNNER.fullmatch(word) or ASSIGNMENT.fullmatch(word))


def commands_in_container(
    text: str, env: Mapping[str, str], overrides: Mapping[str, str], words: Iterable[str] = (), line: int = 0
) -> list[Command]:
    """Read the commands of a text for a container's shell. Raises CommandError.

    `env`: the container's variables. `overrides`: variables that no assignment changes. `words`: the text's $@.
    `line`: the text's in its file, where that has more.
    """
    hidden = {name: hide(name, value) for name, value in env.items()}
    values = {name: mark(f"${name}") for name in SET_BY_IMAGE} | hidden | {**overrides}
    inherited = set(values.keys() - overrides.keys())
    variables = Variables(values, frozenset(overrides))
    return Script(text, ShellState(variables, inherited=inherited, arrays={"@": [*words]}), at_line=line).read()


def find_script(words: list[str]) -> str:
    """The script or compose file that the words run, also as the text of `bash -c`; empty where they run none."""
    text_at = next((place for place, word in enumerate(words, 1) if TEXT_FOLLOWS.fullmatch(word)), len(words))
    plain = [word for word in words[: text_at + 1] if not re.search(r"\A-|\s", word)]
    files = [word for before, word in pairwise(["", *plain]) if word.endswith(".sh") or _SHELL.fullmatch(before)]
    if any(word.endswith("compose") for word in words):
        files += [file for option, file in pairwise([*words, "-f", "its compose file"]) if option in ("-f", "--file")]
    return "".join(files[:1])
