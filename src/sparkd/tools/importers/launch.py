"""One way to start a container with an engine, as a command line, a compose file or docker has it, and what it becomes.

Every form is read into the options of `docker run`, each with its line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile, pairwise

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.recipes.schema import REPO
from sparkd.base.vllm.args import API_KEY, OWNED
from sparkd.base.vllm.flag import SHIPPED, parse_json
from sparkd.tools.importers.command import BEFORE, VLLM_SERVE, Flag, Serve, is_ray, parse_serve, program
from sparkd.tools.importers.options import Launch, LaunchError, Options, redact
from sparkd.tools.importers.shell import OF_IMAGE, Command, commands_in_container
from sparkd.tools.importers.variables import CommandError, is_unknown, shown, unknown

SECRET_FLAGS = {"api-key": API_KEY, "hf-token": "HF_TOKEN"}
_WITHOUT_EFFECT = (":", "[", "[[", "break", "cd", "echo", "exit", "set", "sleep", "test", "true")
"""Programs that the engine needs nothing of."""
_SHELL = re.compile(r"(?:/[\w./-]*/)?(?:ba|da)?sh")
_EXTENDED = re.compile(rf"(?:[\w/.:+-]|\$(?:{'|'.join(OF_IMAGE)})(?!\w))+", re.ASCII)
"""A value that is made of those that the image sets."""
_MOST_GIVEN = 1000
_SWITCHES = {f"--{name}" for name, flag in SHIPPED.by_name.items() if flag.kind == "switch"}


class Engine(Struct):
    """What becomes a recipe. `env` and `secrets` are what it keeps of the launch's."""

    launch: Launch
    words: list[str]
    """Of the command that starts it."""
    serve: Serve
    env: dict[str, str]
    secrets: dict[str, str]
    container: dict[str, object]


def find_engine(launch: Launch, folder: str) -> Engine | None:
    """None for a container that starts no vLLM server. `folder`: of relative paths. Raises LaunchError."""
    if len(launch.options) + len(launch.env) > _MOST_GIVEN:
        raise LaunchError(launch.line, f"has more than {_MOST_GIVEN} options and variables")
    return choose_engine(launch, _commands(launch), folder)


def choose_engine(launch: Launch, commands: list[Command], folder: str) -> Engine | None:
    """The one that the commands start; the others become notes. Raises LaunchError."""
    starting = [n for n, command in enumerate(commands) if program(command.words)[1]]
    if not starting:
        return None
    if len(starting) > 1:
        raise LaunchError(launch.line, "more than one `vllm serve` may run: write one plainly")
    at = starting[0]
    note_condition(launch, commands[at].block)
    for n, command in enumerate(commands):
        if n != at:
            _note_other(launch, command, is_before=n < at)
    return _make_engine(launch, commands[at], folder)


def _note_other(launch: Launch, command: Command, *, is_before: bool) -> None:
    """A command that does not start the engine, and is not run."""
    printed, is_missing = redact(shown(" ".join(command.words))), False
    if is_ray(command.words):
        text = "ray start: left out: sparkd joins the nodes itself; see executor: ray"
    elif command.words[0].startswith("-"):
        text, is_missing = f"left out: {printed[:2000]}: the line before it lacks its backslash: add it", True
    else:
        text = f"not run: {printed[:120]}: do it in an image, and name that under image.ref"
        is_missing = is_before and command.words[0] not in _WITHOUT_EFFECT
    launch.note(launch.line, text, is_missing=is_missing)


def note_condition(launch: Launch, block: int) -> None:
    """`block`: line of what decides whether it runs; 0 where nothing does."""
    if block:
        launch.note(launch.line, f"what begins in line {block} decides whether it runs: taken as if it does")


def _commands(launch: Launch) -> list[Command]:
    words = [*(launch.entrypoint or []), *launch.words]
    if launch.entrypoint is None and words and re.fullmatch(r"-[a-z]*c", words[0]):
        words = ["bash", *words]  # of an image whose entrypoint is a shell
    env = {name: option.value for name, option in launch.env.items()}
    inner = inner_commands(words, env, launch.given, launch.line)
    if inner is not None:
        return inner
    if launch.entrypoint is None and "vllm" in launch.image and words and not program(words)[1]:
        words = _for_entrypoint(words, launch.image)
    return [Command(words)]


def read_inner_engine(launch: Launch, text: str, env: Mapping[str, str], overrides: Mapping[str, str]) -> Engine:
    """What a shell in the container starts by `text`. Raises CommandError, LaunchError."""
    commands = inner_commands(["bash", "-c", text], env, overrides, launch.line)
    engine = choose_engine(launch, commands or [], "")
    if engine is None:
        raise CommandError("runs no `vllm serve`: write one plainly")
    return engine


def inner_commands(
    words: list[str], env: Mapping[str, str], overrides: Mapping[str, str], line: int
) -> list[Command] | None:
    """Of `bash -c TEXT`; None for any other command. Raises LaunchError."""
    words = [*dropwhile(BEFORE.__contains__, words)]
    at = next((n for n, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), 0)
    end = next((n for n, word in enumerate(words) if n > at and not word.startswith("-")), 0)  # as in bash -c -i TEXT
    if not at or not end or not _SHELL.fullmatch(words[0]):
        return None
    try:
        commands = commands_in_container(words[end], env, overrides, words[end + 2 :])
    except CommandError as error:
        raise LaunchError(line, f"{words[0]} {words[at]}: {error}") from None
    for command in commands:
        command.lines, command.block = [line for _ in command.lines], command.block and line
    return commands


def script_of(words: list[str]) -> str:
    """The script that the words run; empty where they run none."""
    text = next((n for n, word in enumerate(words, 1) if re.fullmatch(r"-[a-z]*c", word)), len(words))
    plain = [word for word in words[: text + 1] if not re.search(r"\A-|\s", word)]
    runs = (word for before, word in pairwise(["", *plain]) if word.endswith(".sh") or _SHELL.fullmatch(before))
    return next(runs, "")


def _for_entrypoint(words: list[str], image: str) -> list[str]:
    """As the entrypoint of vLLM's images takes them. `words`: at least one."""
    folder = "/" if "vllm-openai" in image else "/models"  # any other may be a program
    if words[0] == "serve":
        return ["vllm", *words]
    is_taken = words[0].startswith(("-", folder)) or REPO.fullmatch(words[0]) or unknown(words[0])
    return [*VLLM_SERVE, *words] if is_taken else words


def _make_engine(launch: Launch, command: Command, folder: str) -> Engine:
    entrypoint, end = program(command.words)
    try:
        serve = parse_serve(entrypoint, _drop_unknown(command.words[end:], launch))
    except CommandError as error:
        _refuse_unknown(command.words, launch.line)
        raise LaunchError(launch.line, shown(str(error))) from None
    assigned = (word.partition("=") for word in command.words[:end])
    env = {**command.env, **{name: value for name, equals, value in assigned if equals and name.isidentifier()}}
    extended = _extended(command.env) if launch.image else {}  # else the image's own program is started, by no shell
    options = Options(launch, folder)
    options.take_env({name: value for name, value in env.items() if name not in extended})
    flags = tuple(flag for flag in serve.flags if _is_kept(flag, options))
    used = [value for flag in flags if flag.name != "download-dir" for value in flag.values]
    container = options.container(used, serve.model)
    flags, model = options.publish(flags), options.on_the_node(serve.model)
    _refuse_unknown((*entrypoint, model, launch.image, *(flag.name for flag in flags)), launch.line)
    named = (Flag("served-model-name", (serve.model,)), *flags)  # unless one follows
    server = Serve(_with_shell(launch, entrypoint, extended), model, named)
    launch.notes = [replace(note, text=shown(note.text)) for note in dict.fromkeys(launch.notes)]
    return Engine(launch, command.words, server, options.env, options.secrets, container)


def _extended(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that a shell in the container makes of the image's."""
    open_ones = {name: shown(text) for name, text in env.items() if name.isidentifier() and unknown(text)}
    return {name: text for name, text in open_ones.items() if _EXTENDED.fullmatch(text)}


def _with_shell(launch: Launch, entrypoint: tuple[str, ...], extended: Mapping[str, str]) -> tuple[str, ...]:
    given = [*(launch.entrypoint or []), *launch.words][:3]
    login = [word for word in given if re.fullmatch(r"-[a-z]*l[a-z]*c", word)]  # the image's profile may set PATH
    if not login and not extended:
        return entrypoint
    start = " ".join(["export", *(f"{name}={text}" for name, text in extended.items())]) + "; "  # one: all the image's
    return "bash", (login or ["-c"])[0], f'{start * bool(extended)}exec {shlex.join(entrypoint)} "$@"', "vllm"


def _refuse_unknown(words: Iterable[str], line: int) -> None:
    for word in filter(unknown, words):
        raise LaunchError(line, value_missing(word))


def value_missing(word: str) -> str:
    """What is not known in the word, and how it is given."""
    missing = redact(unknown(word))
    name = missing.strip("${}<>").removesuffix("[@]")
    hint = f", or give -o {name}=VALUE" if re.fullmatch(r"[\w:./-]+", name) else ""
    return f"what {missing} stands for in {redact(shown(word))[:60]} is not known: write its value{hint}"


def _drop_unknown(words: list[str], launch: Launch) -> list[str]:
    """Without words that only a shell knows and that are no flag's first value; they are noted as missing."""
    kept: list[str] = []
    for word in words:
        is_value = kept and kept[-1].startswith("-") and kept[-1] not in _SWITCHES
        if kept and is_unknown(word) and (is_unknown(word, "[@]}") or not is_value):
            launch.note(launch.line, f"left out: {value_missing(word)}", is_missing=True)
        else:
            kept.append(word)
    return kept


def _is_kept(flag: Flag, options: Options) -> bool:
    launch, stem = options.launch, flag.name.removeprefix("no-").partition(".")[0]
    if stem in SECRET_FLAGS:
        options.take_secret(SECRET_FLAGS[stem], launch.line)
    elif stem not in OWNED and any(map(unknown, flag.values)):
        text = f"--{flag.name}: left out: {value_missing(next(filter(unknown, flag.values)))}"
        launch.note(launch.line, text, is_missing=True)
    elif stem not in (*OWNED, "hf-overrides") and any(redact(value) != value for value in flag.values):
        launch.note(launch.line, f"--{flag.name}: left out: its value looks like a secret")
    else:
        return stem not in OWNED
    return False


def merge(engines: list[tuple[str, Engine]]) -> Engine:
    """One engine of the ranks that several files start; the names are of the files. Raises LaunchError."""
    name, first = engines[0]
    notes = [replace(note, file=note.file or name) for note in first.launch.notes]
    for other_name, other in engines[1:]:
        for setting, mine, its in find_differences(first, other):
            both = f"{setting}: {mine} in {name}, {its} in {other_name}"
            raise LaunchError(other.launch.line, f"{both}: ranks of one engine need the same", other_name)
        first.secrets |= other.secrets
        known = {(note.text, note.is_missing) for note in notes}
        lost = (note for note in other.launch.notes if (note.text, note.is_missing) not in known)
        notes += [replace(note, file=note.file or other_name) for note in lost]
    first.launch.notes = notes
    return first


def find_differences(first: Engine, other: Engine) -> Iterator[tuple[str, str, str]]:
    """Name of each flag or variable in which ranks of one engine differ, and both values."""
    ours, theirs = _settings(first), _settings(other)
    for key in ours | theirs:
        mine, its = (settings.get(key, "not given") for settings in (ours, theirs))
        if mine != its:
            yield "".join(key), redact(str(mine))[:80], redact(str(its))[:80]


def _settings(engine: Engine) -> dict[tuple[str, str], object]:
    """What ranks have in common, by its kind and its name."""
    serve = engine.serve
    return {
        ("image", ""): engine.launch.image,
        ("entrypoint", ""): shlex.join(serve.entrypoint),
        ("model", ""): serve.model,
        **{("--", flag.name): " ".join(map(_plain, flag.values)) or "given" for flag in serve.flags},
        **{("", name): value for name, value in engine.env.items()},
        **{("container.", name): value for name, value in engine.container.items()},
    }


def _plain(text: str) -> str:
    """JSON in one notation."""
    value = parse_json(text) if text.startswith(("{", "[")) else None
    return text if value is None else json.dumps(value, sort_keys=True)
