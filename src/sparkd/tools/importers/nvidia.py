"""Reads recipes of NVIDIA's catalogue (local-ai-inference-recipes, recipe.yaml of schema 3 and 4), for DGX Sparks.

The measurement beside one, performance.yaml, names the image by digest and the model by revision.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from sparkd.base.host.docker_image import split_name
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text_file import read_file
from sparkd.base.recipes.additions import BETWEEN_GPUS, BETWEEN_NODES
from sparkd.base.recipes.schema import Container
from sparkd.base.recipes.yaml import YamlError, parse_as_pyyaml
from sparkd.base.vllm.args import SECRET_NAME
from sparkd.base.vllm.container_paths import cache_folders
from sparkd.base.vllm.lint.environment import has_node_address
from sparkd.base.vllm.releases import known_release, name_release
from sparkd.tools.importers.container_options import convert_option, explain_reach, why_unused
from sparkd.tools.importers.docker_line import read_docker
from sparkd.tools.importers.launch import read_inner_engine
from sparkd.tools.importers.options import OF_RANK, Launch, LaunchError, merge_keys, redact, secret_file
from sparkd.tools.importers.ranks import find_differences
from sparkd.tools.importers.shell import Script
from sparkd.tools.importers.shell_commands import ShellState
from sparkd.tools.importers.source import ForeignRecipe, Overrides, Source, UnusableRecipeError, as_mapping
from sparkd.tools.importers.templates import Values
from sparkd.tools.importers.variables import CommandError, Variables, shown

_RANK_FLAGS = re.compile(r"""(--(?:node-rank|master-addr|master-port)[= ])"?\$\{?\w+\}?"?""")
"""Flags that sparkd sets, with variables of the shell as their values."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REVISION = re.compile(r"[0-9a-f]{40}")
_MOST_NODES = 64
"""The limit in the catalogue's schema."""
_SETUP = "runtime.setup_command"
_MEASUREMENT = "performance.yaml"
_IGNORED = ("rm", "interactive", "tty", "detach", "init", "cap-add")
"""Options of `docker run` that mean nothing for the engine."""
_OPTIONS = {"shm-size": "shm_size", "device": "devices", "security-opt": "security_opt"}
_CACHES = re.compile(r"[^:]+:(/root/\.(?:triton|cache/(?:([a-z0-9_]{1,32})/?)?.*))")
"""Volumes with caches of compilers, which sparkd keeps, and of the hub. Groups: the folder, and the cache's name."""
_TABLE_ON_DISK = re.compile(r"^[^#\n]*\bVLLM_PLE_TABLE_MEMORY=[\"']?disk\b", re.MULTILINE)
_NOTED_KEYS = ("status", "min_vidmem_gb", "security", "limitations", "notes", "validation")
"""Keys for people: their texts become notes."""


class _UnassignedVariables(Variables):
    """Variables of a set-up stay unknown: the values that it assigns are examples for a person to fill in."""

    def assign(self, name: str, value: str) -> None:
        pass


def catalogue_name(source: Source) -> str:
    """The recipe's name, from model and hardware, since every file is named recipe.yaml; empty for another tool's."""
    if source.document.data.get("schema_version") not in (3, 4) or not source.has("serve"):
        return ""
    return f"{source.document.data.get('model')}-{source.document.data.get('hardware')}".rpartition("/")[2]


def read_nvidia(source: Source, overrides: Overrides) -> ForeignRecipe | None:
    """Read a recipe; None for one of another tool. Raises UnusableRecipeError, or CommandError for the command."""
    if not catalogue_name(source):
        return None
    if source.text("backend") != "vllm":
        raise source.fault(("backend",), source.text("backend"), "sparkd runs vLLM alone")
    command = str(source.mapping("serve").get("command") or "")
    Values({}).check_overrides(overrides, command)
    command = _RANK_FLAGS.sub(r"\g<1>0", command)
    nodes, measured, launch = _count_nodes(source), _read_measurement(source), _read_docker_run(source)
    if not re.match(r"dgx-spark(-|\Z)", source.text("hardware")):
        source.need(("hardware",), f"hardware: {source.text('hardware')[:60]}: is no DGX Spark: choose another recipe")
    for key in _NOTED_KEYS:
        for value in source.items(key):
            source.note((key,), f"{key}: {_flatten(value)}"[:400])
    software = as_mapping(measured.get("software"))
    image, release = _pin_image(source, launch, software)
    env, secrets = _split_environment(source, launch)
    _compare_workers(source, command, env, overrides)
    _need_io_uring(source, launch, command)
    return ForeignRecipe(
        format="NVIDIA catalogue",
        description=source.text("title"),
        image=image,
        vllm=release,
        command=command,
        revision=_pin_model(source, command, str(software.get("model_revision"))),
        env=env,
        secrets=secrets,
        container=_convert_options(source, launch),
        caches=_find_caches(launch),
        nodes=(nodes, nodes),
        expect=_read_figures(measured),
    )


def _count_nodes(source: Source) -> int:
    nodes = source.mapping("topology").get("node_count") or 1
    if not isinstance(nodes, int) or not 1 <= nodes <= _MOST_NODES:
        raise source.fault(("topology", "node_count"), nodes, "must be a number of nodes")
    return nodes


def _pin_image(source: Source, launch: Launch, software: Mapping[str, object]) -> tuple[str, str]:
    """The image, by its digest if that was measured, and its release where the name has none."""
    digest, image = str(software.get("runtime_revision")), str(source.mapping("runtime").get("image") or "")
    if launch.image not in (image, "$IMAGE"):
        source.note(("runtime",), f"runtime.image: {image}: is taken, and not {launch.image} of its setup_command")
    if _DIGEST.fullmatch(digest):
        release = name_release(image if known_release(image) else str(software.get("backend_version")))
        return f"{split_name(image)[0]}@{digest}", release
    if "@" not in image:
        source.note(("runtime",), f"runtime.image: {image}: no performance.yaml has its digest, and the tag may move")
    return image, ""


def _pin_model(source: Source, command: str, revision: str) -> str:
    """The model's measured revision; empty without one. Models that nothing pins are noted."""
    checkpoint, is_measured = as_mapping(source.document.data.get("checkpoint")), _REVISION.fullmatch(revision)
    is_pinned = is_measured or re.search(rf"--revision[\s=]+{_REVISION.pattern}", command)
    model = checkpoint.get("target_label") or source.mapping("serve").get("api_model") or source.text("model")
    for name in (None if is_pinned else model, checkpoint.get("draft_label")):
        if name:
            text = f"checkpoint: {redact(str(name))[:200]}: no performance.yaml has its revision, and it may change"
            source.note(("checkpoint",), text)
    return revision if is_measured else ""


def _flatten(value: object) -> str:
    """A mapping as text on one line; any other value as text."""
    if not isinstance(value, dict) or not value:
        return str(value)
    return ", ".join(_flatten(part) if isinstance(part, dict) else f"{key} {part}" for key, part in value.items())


def _read_measurement(source: Source) -> Mapping[str, object]:
    """Content of performance.yaml beside the recipe; empty without one, and where it measured another recipe."""
    if source.path is None:
        return {}
    try:
        measured = as_mapping(parse_as_pyyaml(read_file(source.path.with_name(_MEASUREMENT))).data)
    except FileNotFoundError:
        return {}
    except YamlError as error:
        source.note((), f"{_MEASUREMENT}: not read: {error}")
        return {}
    _licence, begin, rest = read_file(source.path).replace("\r\n", "\n").partition("schema_version")
    digest = sha256((begin + rest).encode()).hexdigest()
    if str(measured.get("recipe_sha256") or digest).lower() == digest:
        return measured
    what = "its digest of the image, revision of the model and figures are left out"
    source.note((), f"{_MEASUREMENT}: was measured with another text of this recipe (recipe_sha256): {what}")
    return {}


def is_measurement(path: Path) -> bool:
    """Whether the file is a measurement of a recipe beside it, and no recipe itself."""
    if path.name != _MEASUREMENT or not path.with_name("recipe.yaml").exists():
        return False
    try:
        return "profiles" in parse_as_pyyaml(read_file(path)).data
    except YamlError:  # a note of the recipe reports it
        return True
    except ConfigError:
        return False


def _read_figures(measured: Mapping[str, object]) -> dict[str, object]:
    """Tokens a second by the number of parallel requests, in the form of a recipe's `expect`."""
    figures: dict[str, dict[str, object]] = {}
    profiles = measured.get("profiles")
    for profile in map(as_mapping, profiles if isinstance(profiles, list) else []):
        parallel, results = as_mapping(profile.get("workload")).get("concurrency"), as_mapping(profile.get("results"))
        for name in ("decode_tokens_per_second", "prefill_tokens_per_second"):
            figure = results.get(f"{name}_mean")
            if isinstance(parallel, int) and isinstance(figure, int | float) and 0 < figure < 1e9:
                figures.setdefault(name, {})[str(parallel)] = figure
    return dict(figures)


def _read_docker_run(source: Source) -> Launch:
    """Read the only `docker run` of the set-up. Raises UnusableRecipeError."""
    try:
        text = str(source.mapping("runtime").get("setup_command") or "")
        commands = Script(text, ShellState(_UnassignedVariables({}))).read()
        runs = [[*map(shown, command.words)] for command in commands if command.words[:2] == ["docker", "run"]]
        if len(runs) == 1:
            return read_docker(runs[0], [1] * len(runs[0]), 2, {})
        raise CommandError(f"has `docker run` {len(runs)} times, and once is needed")
    except (CommandError, LaunchError) as error:
        raise UnusableRecipeError(("runtime",), f"{_SETUP}: {error}") from None


def _split_environment(source: Source, launch: Launch) -> tuple[dict[str, str], dict[str, str]]:
    """Variables, and the files of those variables that are secrets."""
    values = {name: option.value for name, option in launch.env.items()}
    shell_names = [name for name in values if "$" in values[name] and name not in (*BETWEEN_NODES, *BETWEEN_GPUS)]
    secrets = {name: secret_file(name) for name in shell_names if SECRET_NAME.search(name) and name.isidentifier()}
    for name in shell_names:
        file = secrets.get(name)
        text = f"its value is not taken: put it into {file}" if file else "left out: a value of the shell's"
        source.note(("runtime",), f"{_SETUP}: {name[:60]}: {text}")
    kept = {name: value for name, value in values.items() if "$" not in value}
    for name in [name for name, value in kept.items() if has_node_address(name, value)]:
        del kept[name]
        source.note(("runtime",), f"{_SETUP}: {name}: left out: {OF_RANK}")
    return kept, secrets


def _compare_workers(source: Source, command: str, env: Mapping[str, str], overrides: Overrides) -> None:
    """Note in what the workers' commands differ from the head's, since every rank gets the words of the head's."""
    key = ("serve", "additional_commands")
    commands = source.mapping("serve").get("additional_commands")
    workers = map(as_mapping, commands if isinstance(commands, list) else [])
    worker_commands = [*dict.fromkeys(_RANK_FLAGS.sub(r"\g<1>0", str(worker.get("command"))) for worker in workers)]
    lines: dict[str, bool] = {}
    for worker_command in worker_commands[:_MOST_NODES]:
        try:
            lines |= _compare_worker(command, worker_command, env, overrides)
        except (CommandError, LaunchError) as error:
            lines[f"not compared: {redact(str(error))}"] = False
    if len(worker_commands) > _MOST_NODES:
        lines[f"{len(worker_commands) - _MOST_NODES} of {len(worker_commands)} are not compared"] = False
    for line, is_missing in lines.items():
        source.note(key, f"{'.'.join(key)}: {line}", is_missing=is_missing)


def _compare_worker(command: str, worker_command: str, env: Mapping[str, str], overrides: Overrides) -> dict[str, bool]:
    """Lines on what a worker's command has else than the head's, and whether each keeps the recipe from an endpoint.

    Raises CommandError, LaunchError for a command that cannot be read.
    """
    head, worker = (read_inner_engine(Launch(1), text, env, overrides) for text in (command, worker_command))
    notes = [note for note in worker.launch.notes if note not in head.launch.notes]
    left_out = {note.text.partition(": put it into")[0]: note.is_missing for note in notes}
    lines = dict(left_out)
    for setting, value, worker_value in find_differences(head, worker):
        if not any(text.startswith(f"{setting}: left out") for text in left_out):
            lines[f"{setting}: {value} for the head, {worker_value} for the others: every rank gets the head's"] = False
    return lines


def _convert_options(source: Source, launch: Launch) -> dict[str, object]:
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


def _need_io_uring(source: Source, launch: Launch, command: str) -> None:
    """Note io_uring as missing where the recipe turns docker's seccomp profile off for it: sparkd keeps that on."""
    is_unconfined = any(option.value == "seccomp=unconfined" for option in launch.options)
    settings = [f"{name}={option.value}" for name, option in launch.env.items()]
    if is_unconfined and not _is_privileged(launch) and _TABLE_ON_DISK.search("\n".join([*settings, command])):
        reason = "VLLM_PLE_TABLE_MEMORY=disk: needs io_uring, which docker's own seccomp profile forbids"
        source.need(("runtime",), f"{_SETUP}: {reason}: write container.privileged: true")


def _find_caches(launch: Launch) -> dict[str, str]:
    """Folders of compilers' caches that sparkd does not know by itself, by name."""
    matches = [_CACHES.fullmatch(option.value) for option in launch.options if option.name == "volume"]
    known = (*cache_folders({}), "huggingface")
    return {match[2]: match[1] for match in matches if match and match[2] and match[2] not in known}
