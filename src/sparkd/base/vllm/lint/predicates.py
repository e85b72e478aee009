"""Predicates on single flags, on pairs of them, and on flags that the memory does not fit."""

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


def without_counters(launch: Launch) -> Matches:
    if "disable-log-stats" in launch.flags:
        yield about("disable-log-stats", "leaves sparkd no counters: to it a queue of some minutes looks like a hang")


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
