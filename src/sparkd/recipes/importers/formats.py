"""Reads recipes of eugr's spark-vllm-docker, version 1, by the rules of its run-recipe.py, and of sparkrun, version 2,
by those of sparkrun 0.2."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkd.recipes.importers.command import split_commands
from sparkd.recipes.importers.source import (
    YES,
    CommandError,
    Foreign,
    Overrides,
    Source,
    Unusable,
    Values,
    format_template,
    substitute,
    whole_number,
)

EUGR, SPARKRUN = "eugr v1", "sparkrun v2"
_KEYS_OF_EUGR = (
    "name", "recipe_version", "container", "command", "description", "model", "mods", "defaults", "env", "build_args",
    "cluster_only", "solo_only",
)  # fmt: skip
_WHOLE = ("port", "tensor_parallel", "max_model_len")
"""Its options that are whole numbers."""
RUNTIMES = ("", "vllm", "vllm-distributed", "vllm-ray")
FLAGS = (
    "port", "host", "gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs",
    "served_model_name", "dtype", "quantization", "enforce_eager", "enable_prefix_caching", "trust_remote_code",
    "pipeline_parallel", "data_parallel", "kv_cache_dtype", "otlp_traces_endpoint", "api_key",
)  # fmt: skip
"""Keys of `defaults` that become flags of a recipe without a command; tensor_parallel comes before them."""
SIZES = {"pipeline_parallel": "-pp", "data_parallel": "--data-parallel-size"}
"""Flags whose name differs from their key."""
BARE = ("enforce_eager", "enable_prefix_caching", "trust_remote_code")
_SPACE_BEHIND_BACKSLASH = re.compile(r"\\ +\n")
_READ = (
    "recipe_version", "name", "description", "model", "runtime", "mode", "min_nodes", "max_nodes", "container",
    "defaults", "env", "command", "cluster_only", "solo_only", "executor_config",
)  # fmt: skip
_RUN_CODE = ("mods", "build_args", "pre_exec", "post_exec", "post_commands", "builder", "builder_config")
"""Keys with code, which is never run; `convert` notes them."""
EXECUTOR = "executor_config"
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?\s*([kmgt]?)i?b?", re.IGNORECASE)
_ULIMIT = re.compile(r"([a-z]+)=(-?\d{1,18})(?::(-?\d{1,18}))?")
_UNUSED = {
    "auto_remove": "sparkd removes its containers itself",
    "restart_policy": "restarting is systemd's job",
    "labels": "sparkd sets its own",
    "user": "the image's own user stays",
    "entrypoint": "sparkd starts its own script",
    "security_opt": "a recipe has no such option",
    "cap_add": "a recipe has no such option",
}


def read_eugr(source: Source, overrides: Overrides) -> Foreign:
    """Raises Unusable, or CommandError for the command."""
    source.needed_text("name")
    image = source.needed_text("container")
    template = source.needed_text("command")
    values = Values({**_defaults(source), **{name: _read_option(name, text) for name, text in overrides.items()}})
    command = format_template(template, values)
    values.check_overrides(overrides)
    for key in source.document.data:
        if key not in _KEYS_OF_EUGR:
            source.note((key,), f"{key}: left out: {EUGR} knows no such key")
    return Foreign(
        format=EUGR,
        description=source.text("description") or source.text("name"),
        image=image.strip(),
        command=command.rstrip().rstrip("\\"),
        env=_exported(source),
        # The options of its launch-cluster.sh.
        container={"privileged": True, "ipc": "host"},
        nodes=(2 if source.has("cluster_only") else 1, 1 if source.has("solo_only") else None),
    )


def _defaults(source: Source) -> Mapping[str, object]:
    defaults = source.mapping("defaults")
    if not source.has("solo_only"):
        return defaults
    if defaults.get("tensor_parallel", 1) != 1:
        key = ("defaults", "tensor_parallel")
        source.note(key, "defaults.tensor_parallel: 1 is taken, as its tool does on one node")
    return {**defaults, "tensor_parallel": 1}


def _read_option(name: str, text: str) -> object:
    """The value as the tool's option parser reads it."""
    try:
        if name in _WHOLE:
            return whole_number(text)
        return float(text) if name == "gpu_memory_utilization" else text
    except ValueError:
        raise Unusable(("defaults", name), f"-o {name}={text}: must be a number") from None


def _exported(source: Source) -> Mapping[str, str]:
    """Variables as bash evaluates the tool's `export NAME="value"`."""
    found: dict[str, str] = {}
    for name, value in source.mapping("env").items():
        try:
            read = split_commands(f'export {name}="{value}"')
            if len(read) != 1 or read[0].unclear or len(read[0].words) != 2:
                raise CommandError((read and read[0].unclear) or "it is more than one value to bash")
            found[name] = read[0].words[1].partition("=")[2]
        except CommandError as error:
            source.note(("env", name), f"env.{name}: left out: {error}")
    return found


def read_sparkrun(source: Source, overrides: Overrides) -> Foreign:
    """Raises Unusable, or CommandError for the command."""
    runtime = source.text("runtime")
    if runtime not in RUNTIMES:
        raise source.fault(("runtime",), runtime, "sparkd runs vLLM alone")
    model = source.needed_text("model")
    given = {name: _override(text) for name, text in overrides.items()}
    values = Values({"model": model, **source.mapping("defaults"), **given})
    command = _command(source, values, model)
    _check_replicas(values)
    values.check_overrides(overrides)
    _note_left_out(source)
    return Foreign(
        format=SPARKRUN,
        description=source.text("description") or str(source.mapping("metadata").get("description") or ""),
        image=source.needed_text("container").strip(),
        command=command,
        env=_environment(source),
        container=_container(source),
        nodes=_nodes(source),
    )


def _override(text: str) -> object:
    if text.lower() in ("true", "yes", "false", "no"):
        return text.lower() in ("true", "yes")
    for kind in (whole_number, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _command(source: Source, values: Values, model: str) -> str:
    template = source.text("command")
    if not template:
        return _from_defaults(values, model)
    text = _SPACE_BEHIND_BACKSLASH.sub("\\\n", substitute(template.strip(), values))
    served = values.get("served_model_name")
    if served is not None and "--served-model-name" not in text:
        text = f"{text.rstrip()} --served-model-name {served}"
    return text


def _from_defaults(values: Values, model: str) -> str:
    parts = ["vllm", "serve", model]
    if values.get("tensor_parallel"):
        parts += ["-tp", str(values.get("tensor_parallel"))]
    for name in FLAGS:
        flag, value = SIZES.get(name) or f"--{name.replace('_', '-')}", values.get(name)
        if value is None:
            continue
        if name not in BARE:
            parts += [flag, str(value)]
        elif value is True or str(value).lower() in YES:
            parts.append(flag)
    return " ".join(parts)


def _check_replicas(values: Values) -> None:
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        values.used.add(name)
    if str(values.get("data_parallel") or 1) != "1":
        raise Unusable(
            ("defaults", "data_parallel"),
            "defaults.data_parallel: sparkrun gives each replica flags of its own, and sparkd runs one engine",
        )


def _nodes(source: Source) -> tuple[int, int | None]:
    fewest, most, mode = source.count("min_nodes"), source.count("max_nodes"), source.text("mode")
    fewest = 1 if fewest is None else fewest
    if mode == "solo" or source.has("solo_only"):
        return 1, 1
    return max(fewest, 2) if source.has("cluster_only") else fewest, most


def _environment(source: Source) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in source.mapping("env").items():
        text = str(value)
        if re.search(r"\$(?:\w|\{)", text):
            reason = "sparkrun puts in what its own machine has by that name"
            source.note(("env", name), f"env.{name}: left out: {reason}: write the value, or its file under secrets")
        else:
            found[name] = text
    return found


def _note_left_out(source: Source) -> None:
    if source.has("model_revision"):
        source.note(("model_revision",), "model_revision: left out: put that revision into the model's folder")
    if source.has("runtime_config"):
        source.note(("runtime_config",), "runtime_config: left out: sparkd has no use for it")
    known = (*_READ, *_RUN_CODE, "model_revision", "runtime_config")
    unused = [key for key in source.document.data if key not in known]
    if unused:
        source.note((unused[0],), f"{', '.join(unused)}: left out: the engine gets nothing of it")


def _container(source: Source) -> Mapping[str, object]:
    """Keys of schema 1's `container`, starting from sparkrun's defaults. Notes options without a counterpart."""
    found: dict[str, object] = {"privileged": True, "ipc": "host"}
    for name, value in source.mapping(EXECUTOR).items():
        if value is None:
            continue
        converted = _convert_option(name, value)
        if converted is None:
            reason = _UNUSED.get(name) or "a recipe cannot say it"
            source.note((EXECUTOR, name), f"{EXECUTOR}.{name}: left out: {reason}")
        else:
            found.update(converted)
    return found


def _convert_option(name: str, value: object) -> dict[str, object] | None:
    """None for an option or a value without a counterpart."""
    text, words = str(value), [str(one) for one in value] if isinstance(value, list) else [str(value)]
    limits = [_ULIMIT.fullmatch(word) for word in words]
    match name:
        case "privileged":
            return {name: text.lower() in YES}
        case "gpus" if text in ("none", ""):
            return {name: "none"}
        case "gpus" | "network" if (name, text) in (("gpus", "all"), ("network", "host")):
            return {}
        case "ipc" if text in ("host", "private", "shareable"):
            return {name: text}
        case "shm_size" | "memory_limit" if size_bytes := _parse_size(text):
            return {f"{name.removesuffix('_size')}_bytes": size_bytes}
        case "devices" if all(re.fullmatch(r"/[\w./-]+", word) for word in words):
            return {name: words}
        case "ulimit" if all(limits):
            return {"ulimits": {one[1]: {"soft": int(one[2]), "hard": int(one[3] or one[2])} for one in limits if one}}
    return None


def _parse_size(text: str) -> int:
    """In bytes; 0 for text that is no size, or one out of bounds."""
    size = _SIZE.fullmatch(text)
    if size is None:
        return 0
    found = int(float(f"{size[1]}.{size[2] or 0}") * _UNITS[size[3].lower()])
    return found if found <= 2**50 else 0
