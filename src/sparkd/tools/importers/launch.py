"""Finds the engine that a launch starts, and what a recipe keeps of it."""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.vllm.args import API_KEY, OWNED
from sparkd.tools.importers.command import Flag, Serve, find_server, is_ray, parse_serve
from sparkd.tools.importers.endpoint import DRAFT, SNAPSHOT
from sparkd.tools.importers.entrypoint import find_extended, make_entrypoint, put_program_first
from sparkd.tools.importers.inner_shell import TEXT_FOLLOWS, inner_commands
from sparkd.tools.importers.kept_settings import KeptSettings
from sparkd.tools.importers.marks import drop_unknown, explain_missing, mark, refuse_unknown, shown, unknown
from sparkd.tools.importers.options import Launch, LineError, is_secret, redact
from sparkd.tools.importers.simple_command import Command
from sparkd.tools.importers.variables import CommandError

_SECRET_FLAGS = {"api-key": API_KEY, "hf-token": "HF_TOKEN"}
_NEEDLESS = ("cd", "echo", "sleep", "unset")
"""Programs of which the engine needs nothing."""
_OF_SHELL = ("((", ":", "[", "[[", "break", "case", "continue", "exit", "for", "read", "set", "test", "true")
"""Words that mean something to the shell alone."""
_MOST_OPTIONS = 1000


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
    """The note on flags without a program."""
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
        words = put_program_first(words, launch.image)
    return [Command(words)]


def read_inner_engine(launch: Launch, text: str, env: Mapping[str, str], overrides: Mapping[str, str]) -> Engine:
    """Find the engine that a shell in the container starts by `text`. Raises CommandError, LineError."""
    env = {name: mark(f"${name}") if value and is_secret(name, value) else value for name, value in env.items()}
    commands = inner_commands(["bash", "-c", text], env, overrides, launch.line)
    engine = _choose_engine(launch, commands or [])
    if engine is None:
        raise CommandError("runs no `vllm serve`: write one plainly")
    return engine


def _make_engine(launch: Launch, command: Command) -> Engine:
    """The engine of a command, with what a recipe keeps of the launch. The rest becomes notes. Raises LineError."""
    program, program_end = find_server(command.words)
    try:
        serve = parse_serve(program, drop_unknown(command.words[program_end:], launch))
    except CommandError as error:
        refuse_unknown(command.words, launch.line)
        raise LineError(launch.line, shown(str(error))) from None
    env = command.env | _read_assignments(command.words[:program_end])
    extended = find_extended(command.env) if launch.image else {}  # without an image, no shell starts the program
    kept = KeptSettings(launch)
    kept.take_env({name: value for name, value in env.items() if name not in extended})
    flags = tuple(flag for flag in serve.flags if _keep_flag(flag, kept))
    container = kept.container([*_list_paths(flags)], serve.model)
    # A variable that is left out, such as a secret, is left out of what runs the engine, too.
    left_out = env.keys() - kept.env.keys()
    entrypoint = tuple(word for word in program if "=" not in word or word.partition("=")[0] not in left_out)
    flags, model = kept.publish(flags), kept.on_the_node(serve.model)
    refuse_unknown((*entrypoint, model, launch.image, *(flag.name for flag in flags)), launch.line)
    _refuse_blank(serve.model, launch.line)
    server_flags = (Flag("served-model-name", (serve.model,)), *flags)  # `flags` may have another, which wins
    server = Serve(make_entrypoint(launch, entrypoint, extended), model, server_flags)
    launch.notes = [replace(note, text=shown(note.text)) for note in dict.fromkeys(launch.notes)]
    return Engine(launch, command.words, server, kept.env, kept.secrets, container)


def _read_assignments(words: list[str]) -> dict[str, str]:
    """The variables of `env NAME=VALUE` before a program."""
    assignments = (word.partition("=") for word in words)
    return {name: value for name, equals, value in assignments if equals and name.isidentifier()}


def _refuse_blank(model: str, line: int) -> None:
    """Raise LineError for a blank such as <MODEL>, which no shell fills in, and for quotes as pages print them."""
    if re.search(r"<[^<>]+>|\A[\u2018-\u201d]|[\u2018-\u201d]\Z", model):
        raise LineError(line, f"names the model {model[:80]}: write its name there, in plain letters")


def _list_paths(flags: Iterable[Flag]) -> Iterator[str]:
    """The flags' values, and the parts of JSON in them, without caches, and drafts that sparkd pulls from the hub."""
    for flag in flags:
        name = flag.name.partition(".")[0]
        for value in flag.values if name not in ("download-dir", "compilation-config") else ():
            parts = (value, *re.split(r"[\s'\"=,]+", value))
            yield from (part for part in parts if name != DRAFT or not SNAPSHOT.fullmatch(part))


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
