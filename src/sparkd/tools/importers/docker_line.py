"""Finds what starts an engine in the commands of a script or a unit: `docker run`, `docker exec`, or vLLM itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from sparkd.base.recipes.yaml import YamlError
from sparkd.tools.importers.command import is_ray, program
from sparkd.tools.importers.launch import inner_commands, note_condition
from sparkd.tools.importers.options import Launch, LaunchError, Option, redact
from sparkd.tools.importers.shell import Command, Script
from sparkd.tools.importers.source import Note
from sparkd.tools.importers.variables import CommandError, Variables, is_unknown, mark, unknown

_SWITCHES = frozenset(
    ("detach", "interactive", "tty", "rm", "privileged", "init", "no-healthcheck", "oom-kill-disable", "publish-all",
     "read-only", "sig-proxy", "quiet", "disable-content-trust", "use-api-socket", "replace")
)  # fmt: skip
"""Options of `docker run` and `docker exec` that take no value (docker's command line reference)."""
_LETTERS = {
    "d": "detach", "i": "interactive", "t": "tty", "q": "quiet", "P": "publish-all", "e": "env", "v": "volume",
    "p": "publish", "u": "user", "w": "workdir", "h": "hostname", "l": "label", "m": "memory", "c": "cpu-shares",
    "a": "attach",
}  # fmt: skip
_PROGRAMS = ("docker", "podman")
_SECTION = re.compile(r"^\s*\[([A-Za-z-]+)\]\s*$")
_OF_SYSTEM = re.compile(r"^(?:User=|WantedBy=(?:multi-user|graphical)\.target)", re.MULTILINE)
"""A unit of the system, whose %h is root's home, also with User= (systemd.unit(5))."""
_SPECIFIER = re.compile(r"%[A-Za-z%]")


def read_script(text: str, variables: Variables) -> list[Launch]:
    """Raises LaunchError."""
    script = Script(text, variables)
    try:
        given = {name: variables.values[name] for name in variables.fixed}
        return [launch for command in script.read() for launch in _launches(command, given)]
    except CommandError as error:
        raise LaunchError(script.line, str(error)) from None


def _launches(command: Command, overrides: Mapping[str, str], depth: int = 0) -> Iterator[Launch]:
    """What the command starts, also where it is a shell's own command."""
    words, line = command.words, command.lines[0] if command.lines else 1
    at = next((n for n, word in enumerate(words) if word.rpartition("/")[2] in _PROGRAMS), -1)
    verb = [word for word in words[at + 1 : at + 3] if word != "container"][:1] if at >= 0 else []
    inner = inner_commands(words, command.env, overrides, line) if depth < 3 else None
    if verb in (["run"], ["exec"], ["create"]):
        launch = read_docker(words, command.lines, words.index(verb[0], at) + 1, command.env)
        note_condition(launch, command.block)
        yield launch
    elif inner is not None:
        for nested in inner:
            nested.block, nested.env = nested.block or command.block, {**command.env, **nested.env}
            yield from _launches(nested, overrides, depth + 1)
    elif at < 0 and program(words)[1]:
        launch = Launch(line, words=words, entrypoint=[])
        launch.env = {name: Option(name, value, line) for name, value in command.env.items()}
        note_condition(launch, command.block)
        yield launch
    elif is_ray(words):
        yield Launch(line, notes=[Note(line, "ray start: left out: sparkd joins the nodes itself")])


def read_docker(words: list[str], lines: list[int], at: int, shell_env: Mapping[str, str]) -> Launch:
    """`at`: where the options of run, create or exec begin. Raises LaunchError."""
    launch, verb = Launch(lines[at - 1]), words[at - 1]
    while at < len(words) and (words[at].startswith("-") or is_unknown(words[at], "[@]}")) and words[at] != "--":
        word, line, at = words[at], lines[at], at + 1
        if is_unknown(word):
            text = f"left out: what {redact(unknown(word))} stands for is not known: write it"
            launch.note(line, text, is_missing=True)
            continue
        options, needs_value = _options(word, line)
        if needs_value:
            if at >= len(words):
                raise LaunchError(line, f"{word[:60]} needs a value")
            options[-1] = options[-1]._replace(value=words[at])
            at += 1
        for option in options:
            _take(launch, option, shell_env)
    started, launch.words = "".join(words[at : at + 1]), words[at + 1 :]
    if not started:
        raise LaunchError(launch.line, f"docker {verb} names no {'container' if verb == 'exec' else 'image'}: write it")
    if verb == "exec":
        launch.entrypoint = []
    else:
        launch.image = started
    return launch


def _options(word: str, line: int) -> tuple[list[Option], bool]:
    """The options in one word, and whether the last one's value is the next word."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return [Option(name, value or "true" * (not equals), line)], not equals and name not in _SWITCHES
    options: list[Option] = []
    for n, letter in enumerate(word[1:], 1):
        name = _LETTERS.get(letter, "")
        if not name:
            raise LaunchError(line, f"docker's option {word[:60]} is not known: write its long form")
        if name not in _SWITCHES:
            value = word[n + 1 :].removeprefix("=")
            return [*options, Option(name, value, line)], not value
        options.append(Option(name, "true", line))
    return options, False


def _take(launch: Launch, option: Option, shell_env: Mapping[str, str]) -> None:
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
            launch.options = [given for given in launch.options if given.name != option.name]
        launch.options.append(option)


def is_unit(text: str) -> bool:
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] not in "#;"]
    return bool(lines and _SECTION.match(lines[0])) and "[Service]" in lines  # a script may write one


def read_unit(text: str, variables: Variables) -> list[Launch]:
    """Of a systemd unit, by the rules of systemd.syntax(7) and systemd.exec(5). Raises LaunchError."""
    home = "/root" if _OF_SYSTEM.search(text) else variables.value("HOME")
    env: dict[str, str] = {}
    launches: list[Launch] = []
    notes: list[Note] = []
    for line, key, value in _settings(text):
        try:
            if key == "Environment":
                for word in shlex.split(value):
                    name, _, content = word.partition("=")
                    env[name] = _specifiers(content, home)
                    variables.assign(name, env[name])
            elif key == "EnvironmentFile":
                notes.append(Note(line, f"EnvironmentFile={value[:80]}: not read: write its variables under env"))
            elif key == "ExecStartPre":
                _, *options = re.split(r"\b(?:docker|podman)\b", value, maxsplit=1)
                if not any(re.search(r"\b(?:rm|stop|kill|pull)\b", text) for text in options):
                    text = f"{key}={redact(value)[:100]}: not run: do it on the node, or in an image"
                    notes.append(Note(line, text))
            elif key == "ExecStart" and value:
                words = _exec_words(_specifiers(value.lstrip("-@:+!|"), home), variables)
                started = [*_launches(Command(words, [line] * len(words), dict(env)), {})]
                launches += started or [_other(line, words, env)]
        except (CommandError, ValueError, YamlError) as error:
            raise LaunchError(line, f"{key}: {str(error).lower()}") from None
    for launch in launches:
        launch.notes += notes
    return launches


def _other(line: int, words: list[str], env: Mapping[str, str]) -> Launch:
    """What starts no engine by itself, such as a script; what the unit sets for it is lost."""
    launch, names = Launch(line, words=words, entrypoint=[]), " ".join(env)[:80]
    if names:
        launch.note(line, f"Environment={names}: left out: write what the engine needs of it under env")
    return launch


def _settings(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, key and value of the section Service."""
    section, lines = "", iter(enumerate(text.splitlines(), 1))
    for number, raw in lines:
        line = raw.strip()
        if match := _SECTION.match(line):
            section = match[1]
        if section != "Service" or not line or line[0] in "#;[":
            continue
        while line.endswith("\\"):
            more = next(lines, (0, ""))[1].strip()
            line = line[:-1] + " " + (more if not more.startswith(("#", ";")) else "\\")
        key, _, value = line.partition("=")
        yield number, key.strip(), value.strip()


def _specifiers(text: str, home: str) -> str:
    """What systemd fills in at the start beside %h is not known."""
    known = {"%%": "%", "%h": home}
    return _SPECIFIER.sub(lambda found: known.get(found[0]) or mark(found[0]), text)


def _exec_words(text: str, variables: Variables) -> list[str]:
    """$NAME as a word of its own becomes several words; ${NAME} is a part of one."""
    found: list[str] = []
    for word in shlex.split(text):
        filled = variables.fill(word)
        found += filled.split() if re.fullmatch(r"\$\w+", word) else [filled]
    return found
