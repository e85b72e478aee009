"""The container of a recipe of NVIDIA's catalogue: the `docker run` of its set-up command."""

import re

from sparkd.base.recipes.additions import BETWEEN_GPUS, BETWEEN_NODES
from sparkd.base.recipes.schema import Container
from sparkd.base.vllm.container_paths import cache_folders
from sparkd.base.vllm.lint.environment import has_node_address
from sparkd.tools.importers.container_options import convert_option, explain_reach, why_unused
from sparkd.tools.importers.docker_line import read_docker
from sparkd.tools.importers.marks import shown
from sparkd.tools.importers.options import OF_RANK, Launch, LineError, is_secret, merge_keys, secret_file
from sparkd.tools.importers.shell import Script
from sparkd.tools.importers.shell_state import ShellState
from sparkd.tools.importers.source import Source, UnusableRecipeError
from sparkd.tools.importers.variables import CommandError, Variables

_SETUP = "runtime.setup_command"
_IGNORED = ("rm", "interactive", "tty", "detach", "init", "cap-add")
"""Options of `docker run` that mean nothing for the engine."""
_OPTIONS = {"shm-size": "shm_size", "device": "devices", "security-opt": "security_opt"}
_CACHES = re.compile(r"[^:]+:(/root/\.(?:triton|cache/(?:([a-z0-9_]{1,32})/?)?.*))")
"""Volumes with caches of compilers, which sparkd keeps, and of the hub. Groups: the folder, and the cache's name."""
_TABLE_ON_DISK = re.compile(r"^[^#\n]*\bVLLM_PLE_TABLE_MEMORY=[\"']?disk\b", re.MULTILINE)


class _UnassignedVariables(Variables):
    """Variables of a set-up stay unknown: the values that it assigns are examples for a person to fill in."""

    def assign(self, name: str, value: str) -> None:
        pass


def read_docker_run(source: Source) -> Launch:
    """Read the only `docker run` of the set-up. Raises UnusableRecipeError."""
    try:
        text = str(source.mapping("runtime").get("setup_command") or "")
        commands = Script(text, ShellState(_UnassignedVariables({}))).read()
        runs = [[*map(shown, command.words)] for command in commands if command.words[:2] == ["docker", "run"]]
        if len(runs) == 1:
            return read_docker(runs[0], [1] * len(runs[0]), 2, {})  # its options begin behind two words
        raise CommandError(f"has `docker run` {len(runs)} times, and once is needed")
    except (CommandError, LineError) as error:
        raise UnusableRecipeError(("runtime",), f"{_SETUP}: {error}") from None


def split_environment(source: Source, launch: Launch) -> tuple[dict[str, str], dict[str, str]]:
    """Variables, and the files of those variables that are secrets."""
    values = {name: shown(option.value) for name, option in launch.env.items()}
    shell_names = [name for name in values if "$" in values[name] and name not in (*BETWEEN_NODES, *BETWEEN_GPUS)]
    secret_names = [name for name, value in values.items() if value and name.isidentifier() and is_secret(name, value)]
    secrets = {name: secret_file(name) for name in secret_names}
    for name in dict.fromkeys([*shell_names, *secrets]):
        file = secrets.get(name)
        text = f"its value is not taken: put it into {file}" if file else "left out: a value of the shell's"
        source.note(("runtime",), f"{_SETUP}: {name[:60]}: {text}")
    kept = {name: value for name, value in values.items() if "$" not in value and name not in secrets}
    for name in [name for name, value in kept.items() if has_node_address(name, value)]:
        del kept[name]
        source.note(("runtime",), f"{_SETUP}: {name}: left out: {OF_RANK}")
    return kept, secrets


def convert_options(source: Source, launch: Launch) -> dict[str, object]:
    """Keys of schema 1's `container`. Options without a counterpart are noted."""
    container: dict[str, object] = {}
    is_privileged = _is_privileged(launch)
    for option, value, *_ in launch.options:
        name = _OPTIONS.get(option, option)
        if _is_needless(name, value, is_privileged=is_privileged):
            continue
        left_out, converted = f"{_SETUP}: --{option} {value[:60]}: left out", convert_option(name, value)
        if name == "devices" and (why := explain_reach(Container.model_construct(devices=(value.partition(":")[0],)))):
            source.note(("runtime",), f"{left_out}: {why}")
        elif converted is None:
            why = why_unused(name, value)
            is_missing = not why or name == "platform"
            source.note(("runtime",), f"{left_out}: {why or 'write it yourself'}", is_missing=is_missing)
        else:
            merge_keys(container, converted)
    for note in launch.notes:
        source.need(("runtime",), f"{_SETUP}: {note.text}")
    return container


def _is_needless(name: str, value: str, *, is_privileged: bool) -> bool:
    """Whether the option means nothing for the engine, or sparkd or `--privileged` provides it anyway."""
    if name == "security_opt":
        return is_privileged and value.endswith("unconfined")
    return name in _IGNORED or (name == "volume" and bool(_CACHES.fullmatch(value)))


def _is_privileged(launch: Launch) -> bool:
    return any(convert_option(*option[:2]) == {"privileged": True} for option in launch.options)


def need_io_uring(source: Source, launch: Launch, command: str) -> None:
    """Note io_uring as missing where the recipe turns docker's seccomp profile off for it: sparkd keeps that on."""
    is_unconfined = any(option.value == "seccomp=unconfined" for option in launch.options)
    settings = [f"{name}={option.value}" for name, option in launch.env.items()]
    if is_unconfined and not _is_privileged(launch) and _TABLE_ON_DISK.search("\n".join([*settings, command])):
        reason = "VLLM_PLE_TABLE_MEMORY=disk: needs io_uring, which docker's own seccomp profile forbids"
        source.need(("runtime",), f"{_SETUP}: {reason}: write container.privileged: true")


def find_caches(launch: Launch) -> dict[str, str]:
    """Folders of compilers' caches that sparkd does not know by itself, by name."""
    matches = [_CACHES.fullmatch(option.value) for option in launch.options if option.name == "volume"]
    known = (*cache_folders({}), "huggingface")
    return {match[2]: match[1] for match in matches if match and match[2] and match[2] not in known}
