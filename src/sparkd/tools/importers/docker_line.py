"""Finds what starts an engine in the commands of a script: `docker run`, `docker exec`, or vLLM itself."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, takewhile

from sparkd.tools.importers.command import find_server, is_ray
from sparkd.tools.importers.inner_shell import find_script, inner_commands
from sparkd.tools.importers.launch import explain_stray, note_condition
from sparkd.tools.importers.marks import is_unknown, mark, shown, unknown
from sparkd.tools.importers.options import Launch, LineError, Option, redact
from sparkd.tools.importers.shell import Script
from sparkd.tools.importers.shell_state import ShellState
from sparkd.tools.importers.simple_command import Command
from sparkd.tools.importers.source import Note, shorten
from sparkd.tools.importers.variables import CommandError, Variables

_SWITCHES = frozenset(
    ("detach", "interactive", "tty", "rm", "privileged", "init", "no-healthcheck", "oom-kill-disable", "publish-all",
     "read-only", "sig-proxy", "quiet", "disable-content-trust", "use-api-socket", "replace")
)  # fmt: skip
"""Options of `docker run` and `docker exec` that take no value (docker's command line reference)."""
_SHORT_OPTIONS = {
    "d": "detach", "i": "interactive", "t": "tty", "q": "quiet", "P": "publish-all", "e": "env", "v": "volume",
    "p": "publish", "u": "user", "w": "workdir", "h": "hostname", "l": "label", "m": "memory", "c": "cpu-shares",
    "a": "attach",
}  # fmt: skip
_PROGRAMS = ("docker", "podman", "nerdctl")
_VERBS = ("run", "exec", "create")
_FLAG = re.compile("--?[A-Za-z]")
_OWN_OPTION = re.compile(r"(?!(?:-D|--debug|--tls|--tlsverify)\Z)(?:-\w|--[^=]+)")
"""An option of docker itself, before the verb, whose value is the next word."""


def read_script(text: str, variables: Variables, read_beside: Callable[[str], str] = lambda _: "") -> list[Launch]:
    """Read what the commands of a script start. `read_beside`: reads a file that it sources. Raises LineError."""
    script = Script(text, ShellState(variables), read_beside=read_beside)
    try:
        overrides = {name: variables.values[name] for name in variables.fixed}
        return [launch for command in script.read() for launch in find_launches(command, overrides)]
    except CommandError as error:
        raise LineError(script.line, str(error)) from None


def find_launches(command: Command, overrides: Mapping[str, str], depth: int = 0) -> Iterator[Launch]:
    """What the command starts; of a shell with -c, what its text starts, to three levels."""
    words, line = command.words, (*command.lines, 1)[0]
    at, verb_at = _find_program(words)
    inner = inner_commands(words, command.env, overrides, line) if depth < 3 and not verb_at else None
    if verb_at:
        launch = read_docker(words, command.lines, verb_at + 1, command.env)
        launch.folder = command.folder
        _note_own_options(launch, words[at:verb_at], line)
        note_condition(launch, command.block)
        yield launch
    elif inner is not None:
        yield from [*_find_inner(inner, command, overrides, depth)] or _note_unused(command, line)
    elif words[at + 1 : at + 2] == ["compose"] and at >= 0:
        own_words = [*takewhile(lambda word: word not in ("run", "exec", "logs"), words)]
        yield Launch(line, words=["docker", "compose", "-f", find_script(own_words)], entrypoint=[])
    elif at < 0 and (find_server(words)[1] or may_be_docker(words)):
        env = {name: Option(name, value, line) for name, value in command.env.items()}
        launch = Launch(line, words=words, entrypoint=[], env=env)
        note_condition(launch, command.block)
        yield launch
    else:
        yield from _note_unused(command, line)


def _find_inner(inner: list[Command], outer: Command, overrides: Mapping[str, str], depth: int) -> Iterator[Launch]:
    """What the commands of a shell within another command start."""
    for command in inner:
        command.block, command.env = command.block or outer.block, {**outer.env, **command.env}
        command.folder = command.folder or outer.folder
        yield from find_launches(command, overrides, depth + 1)


def _find_program(words: list[str]) -> tuple[int, int]:
    """The places of docker and of its verb; -1 and 0 where there is none."""
    at = next((place for place, word in enumerate(words) if word.rpartition("/")[2] in _PROGRAMS), -1)
    return at, _find_verb(words, at + 1) if at >= 0 else 0


def _note_unused(command: Command, line: int) -> Iterator[Launch]:
    """A note on a command that starts no engine; none on one that does not concern the import."""
    words, text = command.words, ""
    is_stray = bool(_FLAG.match("".join(words[:1]))) and not command.block  # in a block it may be a pattern of `case`
    if words[:1] in (["source"], ["."], ["eval"]) and not words[-1].endswith("/activate"):  # of a virtual environment
        text = f"{redact(shorten(shown(' '.join(words))))}: not read: give what it sets by -o NAME=VALUE"
    elif is_ray(words):
        text = "ray start: left out: sparkd joins the nodes itself"
    elif is_stray:
        text = explain_stray(words)
    if text:
        yield Launch(line, notes=[Note(line, text, is_stray)])


def _note_own_options(launch: Launch, words: list[str], line: int) -> None:
    """Note docker's own options. `words`: from docker to the verb."""
    if "".join(words[1:2]).startswith("-"):
        options = redact(" ".join(words[1:]))
        launch.note(line, f"{words[0]} {options[:80]}: left out: the node's own docker runs it")


def may_be_docker(words: list[str]) -> bool:
    """Whether a program that is not known gets a verb of docker's, for something of vLLM."""
    is_named = any(is_unknown(program) and verb in _VERBS for program, verb in pairwise(words[:4]))
    return is_named and any("vllm" in word for word in words)


def _find_verb(words: list[str], at: int) -> int:
    """The place of a verb that starts a container, behind docker's own options. 0 without one. `at`: behind docker."""
    while at < len(words) and (words[at] == "container" or words[at].startswith("-")):
        at += 2 if _OWN_OPTION.fullmatch(words[at]) else 1
    return at if "".join(words[at : at + 1]) in _VERBS else 0


def read_docker(words: list[str], lines: list[int], at: int, shell_env: Mapping[str, str]) -> Launch:
    """Read the options, image and words. `at`: where the options of run, create or exec begin. Raises LineError."""
    launch, verb = Launch(lines[at - 1]), words[at - 1]
    while at < len(words) and (words[at].startswith("-") or is_unknown(words[at], "[@]}")) and words[at] != "--":
        word, line, at = words[at], lines[at], at + 1
        if is_unknown(word):
            text = f"left out: what {redact(unknown(word))} stands for is not known: write it"
            launch.note(line, text, is_missing=True)
            continue
        options, needs_value = _parse_options(word, line)
        if needs_value:
            if at >= len(words):
                raise LineError(line, f"{word[:60]} needs a value")
            options[-1] = options[-1]._replace(value=words[at])
            at += 1
        for option in options:
            _take_option(launch, option, shell_env)
    at += words[at : at + 1] == ["--"]
    name, launch.words = "".join(words[at : at + 1]), words[at + 1 :]
    if not name:
        raise LineError(launch.line, f"docker {verb} names no {'container' if verb == 'exec' else 'image'}: write it")
    if verb == "exec":
        launch.entrypoint = []
        launch.options.append(Option("name", name, launch.line))
    else:
        launch.image = name
    return launch


def _parse_options(word: str, line: int) -> tuple[list[Option], bool]:
    """The options in one word, and whether the last one's value is the next word."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return [Option(name, value if equals else "true", line)], not equals and name not in _SWITCHES
    options: list[Option] = []
    for place, letter in enumerate(word[1:], 1):
        name = _SHORT_OPTIONS.get(letter, "")
        if not name:
            raise LineError(line, f"docker's option {word[:60]} is not known: write its long form")
        if name not in _SWITCHES:
            value = word[place + 1 :].removeprefix("=")
            return [*options, Option(name, value, line)], not value
        options.append(Option(name, "true", line))
    return options, False


def _take_option(launch: Launch, option: Option, shell_env: Mapping[str, str]) -> None:
    if option.name == "env":
        name, equals, value = option.value.partition("=")
        value = value if equals else shell_env.get(name, mark(f"${name}"))
        launch.env[name] = Option(name, value, option.line)
    elif option.name == "env-file":
        text = f"--env-file {option.value[:80]}: not read: write its variables under env, and secrets under secrets"
        launch.note(option.line, text)
    elif option.name == "entrypoint":
        launch.entrypoint = [option.value] if option.value else []
    else:
        if option.name == "platform":  # the last one counts
            launch.options = [earlier for earlier in launch.options if earlier.name != option.name]
        launch.options.append(option)
