"""Finds the engine that a launch starts, and what a recipe keeps of it."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.recipes.types import REPO
from sparkd.base.vllm.args import API_KEY, OWNED
from sparkd.base.vllm.flag import SHIPPED
from sparkd.tools.importers.command import VLLM_SERVE, Flag, Serve, find_server, is_ray, parse_serve
from sparkd.tools.importers.endpoint import DRAFT, SNAPSHOT
from sparkd.tools.importers.inner_shell import TEXT_FOLLOWS, inner_commands
from sparkd.tools.importers.kept_settings import KeptSettings
from sparkd.tools.importers.marks import is_unknown, mark, shown, unknown
from sparkd.tools.importers.options import Launch, LineError, is_secret, redact
from sparkd.tools.importers.simple_command import Command
from sparkd.tools.importers.variables import SET_BY_IMAGE, CommandError

_SECRET_FLAGS = {"api-key": API_KEY, "hf-token": "HF_TOKEN"}
_NEEDLESS = ("cd", "echo", "sleep", "unset")
"""Programs of which the engine needs nothing."""
_OF_SHELL = ("((", ":", "[", "[[", "break", "case", "continue", "exit", "for", "read", "set", "test", "true")
"""Words that mean something to the shell alone."""
_EXTENDED = re.compile(rf"(?:[\w/.:+-]|\$(?:{'|'.join(SET_BY_IMAGE)})(?!\w))+", re.ASCII)
"""A value that consists of plain text and variables that the image sets."""
_MOST_OPTIONS = 1000
_SWITCHES = {f"--{name}" for name, flag in SHIPPED.by_name.items() if flag.kind == "switch"}


class Engine(Struct):
    """A server of vLLM that a launch starts, with what a recipe keeps of the launch."""

    launch: Launch
    words: list[str]
    """Words of the command that starts the engine."""
    serve: Serve
    env: dict[str, str]
    """The variables that the recipe keeps, of the launch and of the shell in its container."""
    secrets: dict[str, str]
    """The file of each secret, by its variable."""
    container: dict[str, object]
    """Keys of schema 1's `container`."""


def find_engine(launch: Launch, overrides: Mapping[str, str]) -> Engine | None:
    """Find the engine of a launch; None where that starts no vLLM server. Raises LineError.

    `overrides`: variables that the user sets for a shell in the container.
    """
    if len(launch.options) + len(launch.env) > _MOST_OPTIONS:
        raise LineError(launch.line, f"has more than {_MOST_OPTIONS} options and variables")
    return _choose_engine(launch, _list_commands(launch, overrides))


def _choose_engine(launch: Launch, commands: list[Command]) -> Engine | None:
    """The engine that one of the commands starts. The other commands become notes. Raises LineError."""
    places = [place for place, command in enumerate(commands) if find_server(command.words)[1]]
    if not places:
        return None
    if len(places) > 1:
        raise LineError(launch.line, "more than one `vllm serve` may run: write one plainly")
    starter = commands[places[0]]
    note_condition(launch, starter.block)
    for place, command in enumerate(commands):
        if command is not starter and command.words[0] not in _OF_SHELL:
            _note_other(launch, command, is_before=place < places[0])
    return _make_engine(launch, starter)


def _note_other(launch: Launch, command: Command, *, is_before: bool) -> None:
    """Note a command that does not start the engine, and is not run."""
    printed, is_missing = redact(shown(" ".join(command.words))), False
    if is_ray(command.words):
        text = "ray start: left out: sparkd joins the nodes itself; see executor: ray"
    elif command.words[0].startswith("-"):
        text, is_missing = explain_stray(command.words), True
    else:
        text = f"not run: {printed[:120]}: do it in an image, and name that under image.ref"
        is_missing = is_before and command.words[0] not in _NEEDLESS
    launch.note(launch.line, text, is_missing=is_missing)


def explain_stray(words: list[str]) -> str:
    """What becomes of flags without a program."""
    return f"left out: {redact(shown(' '.join(words)))[:2000]}: the line before it lacks its backslash: add it"


def note_condition(launch: Launch, block: int) -> None:
    """Note a command that runs under a condition. `block`: the line where that begins; 0 for none."""
    if block:
        launch.note(launch.line, f"what begins in line {block} decides whether it runs: taken as if it does")


def _list_commands(launch: Launch, overrides: Mapping[str, str]) -> list[Command]:
    """The commands that the container runs. vLLM's images put `vllm serve` before the words of a launch."""
    words = [*(launch.entrypoint or []), *launch.words]
    if not launch.entrypoint and words and TEXT_FOLLOWS.fullmatch(words[0]):
        words = ["bash", *words]  # the image's entrypoint is a shell
    env = {name: option.value for name, option in launch.env.items()}
    inner = inner_commands(words, env, overrides, launch.line)
    if inner is not None:
        return inner
    if launch.entrypoint is None and "vllm" in launch.image and words and not find_server(words)[1]:
        words = _put_program_first(words, launch.image)
    return [Command(words)]


def read_inner_engine(launch: Launch, text: str, env: Mapping[str, str], overrides: Mapping[str, str]) -> Engine:
    """Find the engine that a shell in the container starts by `text`. Raises CommandError, LineError."""
    env = {name: mark(f"${name}") if value and is_secret(name, value) else value for name, value in env.items()}
    commands = inner_commands(["bash", "-c", text], env, overrides, launch.line)
    engine = _choose_engine(launch, commands or [])
    if engine is None:
        raise CommandError("runs no `vllm serve`: write one plainly")
    return engine


def _put_program_first(words: list[str], image: str) -> list[str]:
    """The command that the entrypoint of vLLM's images makes of at least one word."""
    folder = "/" if "vllm-openai" in image else "/models"  # any other may be a program
    if words[0] == "serve":
        return ["vllm", *words]
    is_taken = words[0].startswith(("-", folder)) or REPO.fullmatch(words[0]) or unknown(words[0])
    return [*VLLM_SERVE, *words] if is_taken else words


def _make_engine(launch: Launch, command: Command) -> Engine:
    """The engine of a command, with what a recipe keeps of the launch. The rest becomes notes. Raises LineError."""
    entrypoint, program_end = find_server(command.words)
    try:
        serve = parse_serve(entrypoint, _drop_unknown(command.words[program_end:], launch))
    except CommandError as error:
        _refuse_unknown(command.words, launch.line)
        raise LineError(launch.line, shown(str(error))) from None
    # env NAME=VALUE before the program
    assignments = (word.partition("=") for word in command.words[:program_end])
    env = {**command.env, **{name: value for name, equals, value in assignments if equals and name.isidentifier()}}
    extended = _find_extended(command.env) if launch.image else {}  # without an image, no shell starts the program
    kept = KeptSettings(launch)
    kept.take_env({name: value for name, value in env.items() if name not in extended})
    flags = tuple(flag for flag in serve.flags if _keep_flag(flag, kept))
    container = kept.container([*_list_paths(flags)], serve.model)
    # A variable that is left out, such as a secret, is left out of what runs the engine, too.
    left_out = env.keys() - kept.env.keys()
    entrypoint = tuple(word for word in entrypoint if "=" not in word or word.partition("=")[0] not in left_out)
    flags, model = kept.publish(flags), kept.on_the_node(serve.model)
    _refuse_unknown((*entrypoint, model, launch.image, *(flag.name for flag in flags)), launch.line)
    # A blank that no shell fills in, or quotes as pages print them.
    if re.search(r"<[^<>]+>|\A[\u2018-\u201d]|[\u2018-\u201d]\Z", serve.model):
        raise LineError(launch.line, f"names the model {serve.model[:80]}: write its name there, in plain letters")
    server_flags = (Flag("served-model-name", (serve.model,)), *flags)  # a name in `flags` counts instead
    server = Serve(_make_entrypoint(launch, entrypoint, extended), model, server_flags)
    launch.notes = [replace(note, text=shown(note.text)) for note in dict.fromkeys(launch.notes)]
    return Engine(launch, command.words, server, kept.env, kept.secrets, container)


def _list_paths(flags: Iterable[Flag]) -> Iterator[str]:
    """The flags' values, and the parts of JSON in them, without caches, and drafts that sparkd pulls from the hub."""
    for flag in flags:
        name = flag.name.partition(".")[0]
        for value in flag.values if name not in ("download-dir", "compilation-config") else ():
            parts = (value, *re.split(r"[\s'\"=,]+", value))
            yield from (part for part in parts if name != DRAFT or not SNAPSHOT.fullmatch(part))


def _find_extended(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that a shell in the container makes of those of the image, such as PATH=/x:$PATH."""
    unknown_texts = {name: shown(text) for name, text in env.items() if name.isidentifier() and unknown(text)}
    return {name: text for name, text in unknown_texts.items() if _EXTENDED.fullmatch(text)}


def _make_entrypoint(launch: Launch, entrypoint: tuple[str, ...], extended: Mapping[str, str]) -> tuple[str, ...]:
    """The entrypoint; behind a shell where the launch needs a login shell, or extends variables of the image."""
    first_words = [*(launch.entrypoint or []), *launch.words][:3]
    # A login shell reads the image's profile, which may set PATH.
    login_flags = [word for word in first_words if re.fullmatch(r"-[a-z]*l[a-z]*c", word)]
    if not login_flags and not extended:
        return entrypoint
    # A single export: each text gets the image's values, and none that an earlier variable has changed.
    export = " ".join(["export", *(f"{name}={text}" for name, text in extended.items())]) + "; " if extended else ""
    return "bash", (login_flags or ["-c"])[0], f'{export}exec {shlex.join(entrypoint)} "$@"', "vllm"


def _refuse_unknown(words: Iterable[str], line: int) -> None:
    """Raise LineError for the first word with a part that is not known."""
    for word in filter(unknown, words):
        raise LineError(line, explain_missing(word))


def explain_missing(word: str) -> str:
    """Name the part of a word that is not known, and how to give its value."""
    missing = redact(unknown(word))
    name = missing.strip("${}<>").removesuffix("[@]")
    hint = f", or give -o {name}=VALUE" if re.fullmatch(r"[\w:./-]+", name) else ""
    return f"what {missing} stands for in {redact(shown(word))[:60]} is not known: write its value{hint}"


def _drop_unknown(words: list[str], launch: Launch) -> list[str]:
    """Drop words that only a shell knows, and note them as missing. The first value of a flag is kept."""
    kept: list[str] = []
    for word in words:
        is_value = kept and kept[-1].startswith("-") and kept[-1] not in _SWITCHES
        if kept and is_unknown(word) and (is_unknown(word, "[@]}") or not is_value):
            launch.note(launch.line, f"left out: {explain_missing(word)}", is_missing=True)
        else:
            kept.append(word)
    return kept


def _keep_flag(flag: Flag, kept: KeptSettings) -> bool:
    """Whether the recipe keeps the flag. Its secret is taken; what else is left out is noted."""
    launch, stem = kept.launch, flag.name.removeprefix("no-").partition(".")[0]
    # The keys of hf-overrides look like those of secrets, such as eos_token_id.
    texts = '"'.join(flag.values).split('"') if stem == "hf-overrides" else flag.values
    if stem in _SECRET_FLAGS:
        kept.take_secret(_SECRET_FLAGS[stem], launch.line)
    elif stem not in OWNED and any(map(unknown, flag.values)):
        text = f"--{flag.name}: left out: {explain_missing(next(filter(unknown, flag.values)))}"
        launch.note(launch.line, text, is_missing=True)
    elif stem not in OWNED and any(redact(text) != text or kept.holds_secret(text) for text in texts):
        launch.note(launch.line, f"--{flag.name}: left out: its value looks like a secret")
    else:
        return stem not in OWNED
    return False
