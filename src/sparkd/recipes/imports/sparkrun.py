"""Recipes of sparkrun, version 2, as sparkrun 0.2 reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkd.recipes.imports import overrides
from sparkd.recipes.imports.executor import container
from sparkd.recipes.imports.source import Foreign, Overrides, Source, Unusable
from sparkd.recipes.imports.templates import TemplateError, Values, substituted

FORMAT = "sparkrun v2"
RUNTIMES = ("", "vllm", "vllm-distributed", "vllm-ray")
FLAGS = {
    "port": "--port",
    "host": "--host",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "max_model_len": "--max-model-len",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_num_seqs": "--max-num-seqs",
    "served_model_name": "--served-model-name",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "enforce_eager": "--enforce-eager",
    "enable_prefix_caching": "--enable-prefix-caching",
    "trust_remote_code": "--trust-remote-code",
    "pipeline_parallel": "-pp",
    "data_parallel": "--data-parallel-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "otlp_traces_endpoint": "--otlp-traces-endpoint",
    "api_key": "--api-key",
}
"""What a recipe without a command runs with, by its defaults' names; tensor_parallel comes before them."""
BARE = ("enforce_eager", "enable_prefix_caching", "trust_remote_code")
_YES = ("true", "yes", "y", "t", "1", "on")
_SPACE_BEHIND_BACKSLASH = re.compile(r"\\ +\n")
_READ = (
    "recipe_version", "name", "description", "model", "runtime", "mode", "min_nodes", "max_nodes", "container",
    "defaults", "env", "command", "cluster_only", "solo_only", "executor_config",
)  # fmt: skip
_RUN_CODE = ("mods", "build_args", "pre_exec", "post_exec", "post_commands", "builder", "builder_config")
"""Told by whoever tells what is never run."""


def read(source: Source, given: Overrides) -> Foreign:
    """Raises Unusable."""
    runtime = source.text("runtime")
    if runtime not in RUNTIMES:
        raise source.fault(("runtime",), runtime, "sparkd runs vLLM alone")
    model = source.needed_text("model")
    said = {name: _override(text) for name, text in given.items()}
    values = Values({"model": model, **source.mapping("defaults"), **said})
    command = _command(source, values, model)
    _fits_one_replica(values)
    overrides.all_used(given, values)
    _tell_what_is_left_out(source)
    fewest, most = _nodes(source)
    return Foreign(
        format=FORMAT,
        description=source.text("description") or str(source.mapping("metadata").get("description") or ""),
        image=source.needed_text("container").strip(),
        command=command,
        env=_environment(source),
        container=container(source),
        nodes=(fewest, most),
    )


def _override(text: str) -> object:
    if text.lower() in ("true", "yes", "false", "no"):
        return text.lower() in ("true", "yes")
    for kind in (overrides.whole, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _command(source: Source, values: Values, model: str) -> str:
    template = source.text("command")
    if not template:
        return _from_defaults(values, model)
    try:
        text = _SPACE_BEHIND_BACKSLASH.sub("\\\n", substituted(template.strip(), values))
    except TemplateError as error:
        raise Unusable(("command",), f"command: {error}") from None
    served = values.get("served_model_name")
    if served is not None and "--served-model-name" not in text:
        text = f"{text.rstrip()} --served-model-name {served}"
    return text


def _from_defaults(values: Values, model: str) -> str:
    parts = ["vllm", "serve", model]
    if values.get("tensor_parallel"):
        parts += ["-tp", str(values.get("tensor_parallel"))]
    for name, flag in FLAGS.items():
        value = values.get(name)
        if value is None:
            continue
        if name not in BARE:
            parts += [flag, str(value)]
        elif value is True or str(value).lower() in _YES:
            parts.append(flag)
    return " ".join(parts)


def _fits_one_replica(values: Values) -> None:
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
            reason = (
                "sparkrun puts in what its own machine has by that name: write the value, or its file under secrets"
            )
            source.note(("env", name), f"env.{name}: left out: {reason}")
        else:
            found[name] = text
    return found


def _tell_what_is_left_out(source: Source) -> None:
    if source.has("model_revision"):
        source.note(("model_revision",), "model_revision: left out: put that revision into the model's folder")
    if source.has("runtime_config"):
        source.note(("runtime_config",), "runtime_config: left out: sparkd has no use for it")
    told = (*_READ, *_RUN_CODE, "model_revision", "runtime_config")
    idle = [key for key in source.document.data if key not in told]
    if idle:
        source.note((idle[0],), f"{', '.join(idle)}: left out: the engine gets nothing of it")
