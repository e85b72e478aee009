"""Predicates on single flags, on pairs of them, and on flags that the model or the memory does not fit."""

import json
from operator import methodcaller

from sparkd.base.vllm.flag import parse_json
from sparkd.base.vllm.lint.launch import NOTHING, Launch, Matches, about
from sparkd.base.vllm.releases import add_history

JSON_FLAGS = (
    "attention-config", "compilation-config", "default-chat-template-kwargs", "ec-transfer-config", "eplb-config",
    "kernel-config", "kv-events-config", "kv-transfer-config", "media-io-kwargs", "mm-processor-kwargs",
    "override-generation-config", "pooler-config", "profiler-config", "reasoning-config", "speculative-config",
    "structured-outputs-config", "weight-transfer-config",
)  # fmt: skip
"""Flags that vLLM parses as a JSON object."""
JSON_OR_TEXT = ("additional-config", "hf-overrides", "model-loader-extra-config")
"""Flags that vLLM parses as a JSON object if in braces, otherwise as text."""
TYPOGRAPHIC = "\u201c\u201d\u201e\u2018\u2019"
RENAMED = {
    "cuda-graph-sizes": "it is --cudagraph-capture-sizes",
    "disable-log-requests": "it is --no-enable-log-requests",
    "enable-reasoning": "--reasoning-parser is enough",
    "guided-decoding-backend": "it is --structured-outputs-config.backend",
    "num-speculative-tokens": "it is in --speculative-config",
    "prefix-caching": "it is --enable-prefix-caching",
    "rope-scaling": "it is in --hf-overrides",
    "rope-theta": "it is in --hf-overrides",
    "speculative-model": "it is in --speculative-config",
    "swap-space": "nothing has its place",
    "task": "it is --runner, with --convert",
}
"""Flags of public recipes that vLLM 0.32 does not know, each with its replacement."""
DEFAULT_SHARE = 0.92
"""vLLM's own default of --gpu-memory-utilization (vllm/config/cache.py, 0.32)."""
HIGHEST_SHARE = 0.912
"""The highest that works on a Spark. At a launch its node's available memory decides: the check unified-memory."""
DRAFTS = {"deepseek_mtp": 2, "dspark": 5}
"""Draft tokens that measured best, by method."""
PUBLISHED_DRAFTS = {"dspark": 7}
"""Draft tokens that authors of public recipes measured best, which are more than those in DRAFTS."""
MOST_POOLS = 4
"""The most tokens that requests of full length may have together, in sizes of the KV cache. One of 1.9M tokens served
six agents of up to 1M well: 3.3."""
CHANGE_CONFIG = ("hf-overrides", "hf-config-path", "rope-scaling", "rope-theta", "config-format")
"""Flags that change what config.json gives."""
QUANTIZATIONS = {
    "awq": ("awq_marlin", "auto_awq"), "gptq": ("gptq_marlin", "auto_gptq"), "fp8": (), "compressed-tensors": (),
    "modelopt": ("modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"),
}  # fmt: skip
"""Values of --quantization, each with those that vLLM takes for the same. Others fit several checkpoints."""
AT_LOAD = ("fp8",)
"""Values of --quantization that quantize an unquantized checkpoint while it is loaded."""
MOST_RANKS = 16
_FAMILY = {name: family for family, others in QUANTIZATIONS.items() for name in (family, *others)}


def forks(launch: Launch) -> Matches:
    # Without a GPU a forked engine serves (measured on vLLM 0.32).
    if launch.gpu and launch.env.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork":
        yield (
            "env.VLLM_WORKER_MULTIPROC_METHOD",
            "VLLM_WORKER_MULTIPROC_METHOD=fork: an engine died at its start, 'ShmRingBuffer' has no 'shared_memory'",
        )


def broken_json(launch: Launch) -> Matches:
    for flag in (*JSON_FLAGS, *JSON_OR_TEXT):
        text = (launch.flags.get(flag) or "").strip()
        if text not in NOTHING and (flag in JSON_FLAGS or text.startswith("{")) and (wrong := _find_fault(text, flag)):
            yield about(flag, wrong)


def _find_fault(text: str, flag: str) -> str:
    """Why the text is no JSON object; empty if it is one, or vLLM takes it otherwise."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if parse_json(text) is not None:
            return ""
        quotes = next((letter for letter in text if letter in TYPOGRAPHIC), "")
        why = f"; it holds {quotes}, which is how pages print quotes" if quotes else ""
        return f"is no JSON: {error.msg}, line {error.lineno} column {error.colno}{why}"
    except (ValueError, RecursionError):
        return "is no JSON that can be read"
    # Older builds accepted the level of compilation as a number.
    if isinstance(value, dict) or value is None or (flag == "compilation-config" and type(value) is int):
        return ""
    return f"is JSON, but {json.dumps(value)[:40]} is no object"


def misnamed(launch: Launch) -> Matches:
    for flag, replacement in RENAMED.items():
        if flag in launch.flags and flag not in launch.vllm.by_name:
            reason = f"is no flag of {launch.vllm.vllm}: {replacement}"
            yield about(flag, add_history(reason, methodcaller("has", flag)))


def longer_than_model(launch: Launch, *, is_allowed: bool) -> Matches:
    """A length beyond the model's own. `is_allowed`: whether to match those that a variable allows, or the others."""
    may_be_longer = launch.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower() in ("1", "true")
    if may_be_longer is not is_allowed or _changes_config(launch):
        return
    wanted, longest = launch.amount("max-model-len"), launch.model.max_length
    if wanted and longest and wanted > longest:
        yield about("max-model-len", f"{wanted}, and the model's config.json allows {longest}")


def uneven_heads(launch: Launch) -> Matches:
    """vLLM's verify_with_parallel_config refuses attention heads that the ranks do not divide."""
    ranks, heads = launch.amount("tensor-parallel-size") or 1, launch.model.heads
    if heads % ranks and not _changes_config(launch):
        yield about("tensor-parallel-size", f"{ranks}, and the model has {heads} attention heads: {_fit_ranks(launch)}")


def uneven_kv_heads(launch: Launch) -> Matches:
    """vLLM's QKVParallelLinear divides KV heads, or copies fewer of them to more ranks."""
    ranks, heads = launch.amount("tensor-parallel-size") or 1, launch.model.kv_heads
    if heads and heads % ranks and ranks % heads and not launch.model.heads % ranks and not _changes_config(launch):
        yield about("tensor-parallel-size", f"{ranks}, and the model has {heads} KV heads: {_fit_ranks(launch)}")


def _fit_ranks(launch: Launch) -> str:
    """Numbers of ranks that divide the model's heads, in words."""
    heads, kv_heads = launch.model.heads, launch.model.kv_heads or 1
    even = (ranks for ranks in range(1, MOST_RANKS + 1) if heads % ranks == 0)
    fitting = [str(ranks) for ranks in even if 0 in (kv_heads % ranks, ranks % kv_heads)]
    return f"{', '.join(fitting)} would fit"


def other_quantization(launch: Launch) -> Matches:
    """A value that vLLM's _verify_quantization or get_quant_config refuses. For some models vLLM takes any value."""
    value, checkpoint = launch.flags.get("quantization") or "", launch.model.quantization
    family = _FAMILY.get(value.lower(), "")
    if checkpoint is None or not family or _changes_config(launch) or launch.model.kind.startswith("deepseek_v4"):
        return
    if not checkpoint and family not in AT_LOAD:
        yield about("quantization", f"{value}, and the model's files do not say that it is quantized")
    # With a checkpoint of modelopt vLLM takes its own method, whatever the flag says; unknown ones are not judged.
    elif checkpoint and _FAMILY.get(checkpoint, "modelopt") not in (family, "modelopt"):
        yield about("quantization", f"{value}, and the model's config.json says {checkpoint}")


def _changes_config(launch: Launch) -> bool:
    """Whether a flag changes what config.json gives."""
    return any(flag.partition(".")[0] in CHANGE_CONFIG for flag in launch.flags)


def longer_than_pool(launch: Launch) -> Matches:
    # vLLM reports its pool as concurrency x max-model-len. With sliding-window layers the pool grows with that length,
    # so a longer length may still fit.
    wanted, pool = launch.amount("max-model-len"), launch.pool_tokens
    if wanted and pool and wanted > pool:
        yield about("max-model-len", f"{wanted}, and the recipe expects a KV cache of {pool} tokens")


def many_pools(launch: Launch) -> Matches:
    wanted, sequences, pool = launch.amount("max-model-len"), launch.amount("max-num-seqs"), launch.pool_tokens
    if wanted and sequences and pool and pool >= wanted and wanted * sequences > MOST_POOLS * pool:
        yield about(
            "max-num-seqs", f"{sequences}, and a KV cache of {pool} tokens holds {pool // wanted} of full length"
        )


def unchunked(launch: Launch) -> Matches:
    batch, wanted = launch.amount("max-num-batched-tokens"), launch.amount("max-model-len")
    if batch and wanted and batch < wanted and "no-enable-chunked-prefill" in launch.flags:
        yield about("max-num-batched-tokens", f"{batch} is below --max-model-len {wanted}, and chunked prefill is off")


def batch_below_sequences(launch: Launch) -> Matches:
    batch, sequences = launch.amount("max-num-batched-tokens"), launch.amount("max-num-seqs")
    if batch and sequences and batch < sequences:
        yield about("max-num-batched-tokens", f"{batch} is below --max-num-seqs {sequences}")


def much_memory(launch: Launch) -> Matches:
    # The second flag is a fork's, which sets the share in GB.
    if not launch.gpu or {"kv-cache-memory-bytes", "gpu-memory-utilization-gb"} & launch.flags.keys():
        return
    flag = "gpu-memory-utilization"
    share = launch.share(flag)
    if flag not in launch.flags:
        yield about(flag, f"is left out: vLLM takes {DEFAULT_SHARE}, {HIGHEST_SHARE} was seen to work")
    elif share is not None and share > HIGHEST_SHARE:
        yield about(flag, f"{share:g}: at most {HIGHEST_SHARE} was seen to work on a Spark")


def compiles_custom_ops(launch: Launch) -> bool:
    eager = "enforce-eager" in launch.flags
    return launch.gpu and not eager and launch.table("compilation-config").get("custom_ops") in ("all", ["all"])


def eager_with_graphs(launch: Launch) -> Matches:
    mode = launch.table("compilation-config").get("cudagraph_mode")
    graphs = mode[:30] if isinstance(mode, str) and mode.upper() not in ("NONE", "") else ""
    # Without a mode vLLM makes CUDA graphs, too. Recipes of other models give the flag on purpose, as Nemotron's do.
    by_default = mode is None and launch.model.kind == "deepseek_v4"
    if launch.gpu and "enforce-eager" in launch.flags and (graphs or by_default):
        off = f"cudagraph_mode {graphs}" if graphs else "CUDA graphs"
        yield about("enforce-eager", f"switches {off} off: decoding fell from 44 to 25 tokens a second")


def many_drafts(launch: Launch) -> Matches:
    """A number of drafts beyond the best one that was measured with DeepSeek V4 Flash.

    For other models authors of recipes measured higher numbers as best.
    """
    if "deepseek" not in (launch.model.kind or dict(launch.texts).get("model.path", "")).lower():
        return
    table = launch.table("speculative-config")
    method, drafts = table.get("method"), table.get("num_speculative_tokens")
    if method == "mtp" and launch.model.kind.startswith("deepseek"):
        method = "deepseek_mtp"
    best = DRAFTS.get(method) if isinstance(method, str) else None
    if best and isinstance(drafts, int) and drafts > max(best, PUBLISHED_DRAFTS.get(str(method), 0)):
        yield (
            "args.speculative-config",
            f"num_speculative_tokens {drafts} with {method}: more than {best} was measured to cost more than it gives",
        )
