"""Reads recipes of sparkrun, of any version, by the rules of sparkrun 0.4."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

from pydantic import ValidationError

from sparkd.lib.text import validator_message
from sparkd.recipes.importers.source import Foreign, Overrides, Source, Unusable, Values, substitute, whole_number
from sparkd.recipes.schema import Container

EXECUTOR = "executor_config"
_ALL_VLLM = ("", "vllm", "vllm-distributed", "vllm-ray", "eugr-vllm")
_IMAGE = "ghcr.io/spark-arena/dgx-vllm-eugr-nightly-tf5:latest"
"""This, and what follows, is what sparkrun takes on a DGX Spark where a recipe says nothing."""
_DEFAULTS = {"gpu_memory_utilization": 0.8}
_ENV = {"CUTE_DSL_ARCH": "sm_121a", "NCCL_CUMEM_ENABLE": "0"}
"""The second on several nodes alone: on one it changes nothing."""
_CONTAINER: Mapping[str, object] = {
    "ipc": "shareable", "shm_bytes": 32 * 2**30, "no_new_privileges": True, "devices": ["/dev/infiniband"],
    "ulimits": {"memlock": -1, "stack": 67108864, "nofile": 65535},
}  # fmt: skip

_FLAGS = (
    "port", "host", "gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs",
    "served_model_name", "dtype", "quantization", "enforce_eager", "enable_prefix_caching", "trust_remote_code",
    "pipeline_parallel", "data_parallel", "kv_cache_dtype", "otlp_traces_endpoint", "api_key", "attention_backend",
    "load_format", "reasoning_parser", "tool_call_parser", "chat_template", "speculative_config", "tokenizer_mode",
    "mm_encoder_tp_mode", "block_size", "seed", "enable_auto_tool_choice", "enable_chunked_prefill",
    "async_scheduling", "generation_config", "hf_overrides", "compilation_config", "attention_config",
    "model_loader_extra_config", "default_chat_template_kwargs", "limit_mm_per_prompt", "mm_processor_cache_gb",
    "kv_cache_memory_bytes", "max_cudagraph_capture_size", "long_prefill_token_threshold", "mamba_cache_mode",
    "mamba_cache_dtype", "mamba_ssm_cache_dtype", "reasoning_parser_plugin", "media_io_kwargs",
    "video_pruning_rate", "allowed_local_media_path", "prefix_match_unit", "enable_mamba_shared_prefix_checkpoint",
    "safetensors_load_strategy", "moe_backend", "enable_prompt_tokens_details", "enable_force_include_usage",
    "enable_request_id_headers", "enable_flashinfer_autotune", "linear_backend", "gdn_prefill_backend",
    "gdn_decode_kernel", "kda_prefill_backend", "mamba_backend", "recurrent_checkpoint_policy",
    "prefix_cache_retention_interval", "engram_config", "dcp_comm_backend", "prefill_policy",
    "prefill_compute_share", "prefill_compute_half_life", "prefill_schedule_interval", "max_parallel_prefills",
    "decode_refill_target", "scheduler_reserve_full_isl", "jit_monitor_mode", "disable_custom_all_reduce",
)  # fmt: skip
"""Keys of `defaults` that become flags of a recipe without a command, behind the model and tensor_parallel."""
_SIZES = {"pipeline_parallel": "-pp", "data_parallel": "--data-parallel-size"}
"""Flags whose name differs from their key."""
_NEGATED = (
    "enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "enable_flashinfer_autotune",
    "scheduler_reserve_full_isl",
)  # fmt: skip
"""Switches whose false is a --no- flag."""
_SWITCHES = (*_NEGATED, "enforce_eager", "trust_remote_code")
"""Besides those that begin with enable or disable."""
_SPACE_BEHIND_BACKSLASH = re.compile(r"\\[ \t]+\n")
_SERVED_NAME = re.compile(r"(?<!\S)--served-model-name(?=[=\s]|$)")

_REFUSED = {
    "include": "it changes another recipe: write both into one file (sparkrun recipe export)",
    "overrides": "its values depend on the machine: write those that count under defaults and env",
    "containers": "sparkd has one image for all nodes: write it under container",
    "executor": "sparkd runs docker's containers alone",
}
"""Keys without which the recipe would mean something else."""
KEYS_OF_SPARKRUN = (
    *_REFUSED, "sparkrun_version", "min_sparkrun_version", "runtime", "runtime_version", "runtime_config", "mode",
    "min_nodes", "max_nodes", "model_revision", "metadata", "pre_exec", "post_exec", "post_commands", "builder",
    "builder_config", EXECUTOR, "scheduler", "distribution_config", "layout", "cluster_config", "runtime_cache",
    "readiness", "capabilities", "unsupported_capabilities", "benchmark", "stop_after_post",
)  # fmt: skip
"""Those that eugr's tool does not know."""
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?\s*([kmgt]?)i?b?", re.IGNORECASE)
_ULIMIT = re.compile(r"([a-z]+)=(-?\d{1,18})(?::(-?\d{1,18}))?")
_VOLUME = re.compile(r"([^:]+)(?::([^:]+))?(?::(ro|rw))?")
_NO_NEW_PRIVILEGES = ("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true")
_UNUSED = {
    "auto_remove": "sparkd removes its containers itself",
    "restart_policy": "restarting is systemd's job",
    "labels": "sparkd sets its own",
    "user": "the image's own user stays",
    "entrypoint": "sparkd starts its own script",
}


def read_sparkrun(source: Source, overrides: Overrides) -> Foreign:
    """Raises Unusable, or CommandError for the command."""
    runtime = source.text("runtime")
    if runtime not in _ALL_VLLM:
        raise source.fault(("runtime",), runtime, "sparkd runs vLLM alone")
    for key, reason in _REFUSED.items():
        if source.has(key) and source.document.data[key] != "docker":
            raise Unusable((key,), f"{key}: {reason}")
    values = _values(source, overrides)
    command = _command(source, values)
    _check_replicas(values)
    values.check_overrides(overrides)
    return Foreign(
        format="sparkrun",
        description=source.text("description") or str(source.mapping("metadata").get("description") or ""),
        image=source.text("container").strip() or _IMAGE,
        command=command,
        revision=source.text("model_revision"),
        env={**_ENV, **_environment(source)},
        container=_container(source),
        nodes=_nodes(source),
    )


def _values(source: Source, overrides: Overrides) -> Values:
    model, revision = source.needed_text("model"), source.text("model_revision")
    defaults = {
        name: value.replace("{{", "{").replace("}}", "}") if isinstance(value, str) and "{{" in value else value
        for name, value in source.mapping("defaults").items()
    }
    given = {name: _override(text.strip()) for name, text in overrides.items()}
    place = source.mapping("cluster_config").get("resolved_model_path") or model
    own = {"model": place, "resolved_model_path": place, **({"model_revision": revision} if revision else {})}
    return Values({**_DEFAULTS, **own, **defaults, **given})


def _override(text: str) -> object:
    if text.lower() in ("true", "yes", "false", "no"):
        return text.lower() in ("true", "yes")
    for kind in (whole_number, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _command(source: Source, values: Values) -> str:
    filled = substitute(source.text("command").strip(), values)
    text = _SPACE_BEHIND_BACKSLASH.sub("\\\n", filled) or _from_defaults(source, values)
    served = values.get("served_model_name")
    if _SERVED_NAME.search(text):
        return text
    return text.rstrip().rstrip("\\") + f" --served-model-name {source.text('model') if served is None else served}"


def _from_defaults(source: Source, values: Values) -> str:
    model, revision = str(values.get("resolved_model_path")), source.text("model_revision")
    parts = ["vllm", "serve", model]
    if revision and not model.startswith("/") and ":" not in model:
        parts += ["--revision", shlex.quote(revision)]
    if values.get("tensor_parallel"):
        parts += ["-tp", str(values.get("tensor_parallel"))]
    for name in _FLAGS:
        flag, value = _SIZES.get(name) or f"--{name.replace('_', '-')}", values.get(name)
        if value is None:
            continue
        if name not in _SWITCHES and not name.startswith(("enable_", "disable_")):
            parts += [flag, _word(value)]
        elif _is_true(value):
            parts.append(flag)
        elif name in _NEGATED:
            parts.append(f"--no-{flag[2:]}")
    return " ".join(parts)


def _word(value: object) -> str:
    """JSON is quoted; all other text is the shell's."""
    text = json.dumps(value, separators=(",", ":"), default=str) if isinstance(value, dict | list) else str(value)
    return shlex.quote(text.strip()) if text.strip().startswith(("{", "[")) else text


def _is_true(value: object) -> bool:
    """sparkrun's own reading: any text with 1, t or y in it."""
    return value is True or (bool(value) and any(letter in str(value).lower() for letter in "1ty"))


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
        if re.search(r"\{(?:config|launch)\.", text):
            source.note(("env", name), f"env.{name}: left out: sparkrun fills it in at each launch: write its value")
            continue
        if re.search(r"\$(?:\w|\{)", text):
            source.note(
                ("env", name), f"env.{name}: {text[:60]} is passed as it stands, as sparkrun does: write its value"
            )
        found[name] = text
    return found


def _container(source: Source) -> Mapping[str, object]:
    """Keys of schema 1's `container`, starting from sparkrun's defaults. Notes options without a counterpart."""
    found = dict(_CONTAINER)
    for name, value in source.mapping(EXECUTOR).items():
        if value is None:
            continue
        converted = _convert_option(name, value)
        try:
            Container.model_validate(converted)
            found.update(converted or {})
        except ValidationError as error:
            found_wrong = validator_message(error.errors()[0]["msg"]) if converted else "a recipe cannot say it"
            reason = _UNUSED.get(name) or found_wrong
            source.note((EXECUTOR, name), f"{EXECUTOR}.{name}: left out: {reason}")
    return found


def _convert_option(name: str, value: object) -> dict[str, object] | None:
    """None for an option or a value without a counterpart."""
    text, words = str(value), [str(one) for one in value] if isinstance(value, list) else [str(value)]
    limits, volumes = [_limit(word) for word in words], [_volume(word) for word in words]
    match name:
        case "privileged":
            return {name: _is_true(value)}
        case "gpus" if text in ("none", ""):
            return {name: "none"}
        case "gpus" | "network" if (name, text) in (("gpus", "all"), ("network", "host")):
            return {}
        case "entrypoint" | "cap_add" if not value:
            return {}
        case "ipc":
            return {name: text or "private"}
        case "shm_size" | "memory_limit" if size_bytes := _parse_size(text):
            return {f"{name.removesuffix('_size')}_bytes": size_bytes}
        case "devices":
            return {name: [re.sub(r"\A([^:]+):\1\Z", r"\1", word) for word in words]}
        case "volumes" if all(volumes):
            return {name: volumes}
        case "ulimit" if all(limits):
            return {"ulimits": dict(filter(None, limits))}
        case "security_opt" if all(word in _NO_NEW_PRIVILEGES for word in words):
            return {"no_new_privileges": bool(words)}
    return None


def _limit(word: str) -> tuple[str, dict[str, int]] | None:
    match = _ULIMIT.fullmatch(word)
    return (match[1], {"soft": int(match[2]), "hard": int(match[3] or match[2])}) if match else None


def _volume(word: str) -> str:
    """With its target and mode; empty for text that is no volume."""
    match = _VOLUME.fullmatch(word)
    return f"{match[1]}:{match[2] or match[1]}:{match[3] or 'rw'}" if match else ""


def _parse_size(text: str) -> int:
    """In bytes; 0 for text that is no size, or one out of bounds."""
    size = _SIZE.fullmatch(text)
    if size is None:
        return 0
    found = int(float(f"{size[1]}.{size[2] or 0}") * _UNITS[size[3].lower()])
    return found if found <= 2**50 else 0
