"""What each rule of a launch looks at, and what it says of what it sees. The table of them is in rules.py."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sparkd.lint.launch import Launch, parsed

Sights = Iterator[tuple[str, str]]
"""What a rule sees: the key of a recipe that says it, and the reason for a person."""

JSON_FLAGS = (
    "attention-config", "compilation-config", "default-chat-template-kwargs", "ec-transfer-config", "eplb-config",
    "kernel-config", "kv-events-config", "kv-transfer-config", "media-io-kwargs", "mm-processor-kwargs",
    "override-generation-config", "pooler-config", "profiler-config", "reasoning-config", "speculative-config",
    "structured-outputs-config", "weight-transfer-config",
)  # fmt: skip
"""Flags that vLLM parses as a JSON object."""
JSON_OR_TEXT = ("additional-config", "hf-overrides", "model-loader-extra-config")
"""Flags that it takes as mere text where there are no braces around it."""
NOTHING = ("", "None")
"""What stands for no value at most flags; where not, the table of flags knows."""
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
"""Flags of recipes in public that vLLM 0.32 does not know, each with what has its place."""
DEFAULT_SHARE = 0.92
"""vLLM's own (vllm/config/cache.py, 0.32)."""
HIGHEST_SHARE = 0.912
TOO_HIGH_SHARE = 0.95
"""115.6 GiB of a Spark's 121.7: with what the engine takes beside it, more than any idle one had available."""
DRAFTS = {"deepseek_mtp": 2, "dspark": 5}
"""Draft tokens that measured best, by method."""
MANY_POOLS = 4
"""A pool of 1.9M tokens served six agents of up to 1M well: 3.3 times."""
REFIT = ("hf-overrides", "hf-config-path", "rope-scaling", "rope-theta", "config-format")
"""Flags that make the model's length another than config.json says."""


def forks(launch: Launch) -> Sights:
    # Without a GPU a forked engine serves (measured on vLLM 0.32).
    if launch.gpu and launch.env.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork":
        yield (
            "env.VLLM_WORKER_MULTIPROC_METHOD",
            "VLLM_WORKER_MULTIPROC_METHOD=fork: the engine dies at its start, 'ShmRingBuffer' has no 'shared_memory'",
        )


def broken_json(launch: Launch) -> Sights:
    for flag in (*JSON_FLAGS, *JSON_OR_TEXT):
        text = (launch.flags.get(flag) or "").strip()
        if text not in NOTHING and (flag in JSON_FLAGS or text.startswith("{")) and (wrong := _no_object(text, flag)):
            yield f"args.{flag}", f"--{flag} {wrong}"


def _no_object(text: str, flag: str) -> str:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        if parsed(text) is not None:
            return ""
        quotes = next((letter for letter in text if letter in TYPOGRAPHIC), "")
        why = f"; it holds {quotes}, which is how pages print quotes" if quotes else ""
        return f"is no JSON: {error.msg}, line {error.lineno} column {error.colno}{why}"
    except (ValueError, RecursionError):
        return "is no JSON that can be read"
    # Older builds took the level of compilation as a number.
    if isinstance(found, dict) or found is None or (flag == "compilation-config" and type(found) is int):
        return ""
    return f"is JSON, but {json.dumps(found)[:40]} is no object"


def misnamed(launch: Launch) -> Sights:
    for flag, right in RENAMED.items():
        if flag in launch.flags:
            yield f"args.{flag}", f"--{flag} is no flag of vLLM 0.32: {right}"


def longer_than_model(launch: Launch) -> Sights:
    if not _may_be_longer(launch):
        yield from _too_long(launch)


def longer_than_model_by_will(launch: Launch) -> Sights:
    if _may_be_longer(launch):
        yield from _too_long(launch)


def _too_long(launch: Launch) -> Sights:
    wanted, longest = launch.amount("max-model-len"), launch.model.max_length
    if wanted and longest and wanted > longest and not any(flag.partition(".")[0] in REFIT for flag in launch.flags):
        yield "args.max-model-len", f"--max-model-len {wanted}, and the model's config.json allows {longest}"


def _may_be_longer(launch: Launch) -> bool:
    return launch.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower() in ("1", "true")


def longer_than_pool(launch: Launch) -> Sights:
    # vLLM tells its pool as concurrency x max-model-len: with layers that keep a window alone, the number grows with
    # that length, and what is longer than it may still fit.
    wanted, pool = launch.amount("max-model-len"), launch.pool_tokens
    if wanted and pool and wanted > pool:
        yield "args.max-model-len", f"--max-model-len {wanted}, and the recipe expects a KV cache of {pool} tokens"


def many_pools(launch: Launch) -> Sights:
    wanted, sequences, pool = launch.amount("max-model-len"), launch.amount("max-num-seqs"), launch.pool_tokens
    if wanted and sequences and pool and pool >= wanted and wanted * sequences > MANY_POOLS * pool:
        yield (
            "args.max-num-seqs",
            f"--max-num-seqs {sequences}, and a KV cache of {pool} tokens holds {pool // wanted} of full length",
        )


def unchunked(launch: Launch) -> Sights:
    batch, wanted = launch.amount("max-num-batched-tokens"), launch.amount("max-model-len")
    if batch and wanted and batch < wanted and launch.on("no-enable-chunked-prefill"):
        yield (
            "args.max-num-batched-tokens",
            f"--max-num-batched-tokens {batch} is below --max-model-len {wanted}, and chunked prefill is off",
        )


def batch_below_sequences(launch: Launch) -> Sights:
    batch, sequences = launch.amount("max-num-batched-tokens"), launch.amount("max-num-seqs")
    if batch and sequences and batch < sequences:
        yield (
            "args.max-num-batched-tokens",
            f"--max-num-batched-tokens {batch} is below --max-num-seqs {sequences}",
        )


def too_much_memory(launch: Launch) -> Sights:
    share = launch.share("gpu-memory-utilization")
    if launch.gpu and share is not None and share > TOO_HIGH_SHARE:
        yield (
            "args.gpu-memory-utilization",
            f"--gpu-memory-utilization {share:g}: {share * 121.7:.0f} of 121.7 GiB, and an idle Spark has 110 to 117",
        )


def much_memory(launch: Launch) -> Sights:
    if not launch.gpu or launch.on("kv-cache-memory-bytes"):
        return
    share = launch.share("gpu-memory-utilization")
    if share is None and "gpu-memory-utilization" not in launch.flags:
        yield (
            "args.gpu-memory-utilization",
            f"--gpu-memory-utilization is left out: vLLM takes {DEFAULT_SHARE}, {HIGHEST_SHARE} was seen to work",
        )
    elif share is not None and HIGHEST_SHARE < share <= TOO_HIGH_SHARE:
        yield (
            "args.gpu-memory-utilization",
            f"--gpu-memory-utilization {share:g}: at most {HIGHEST_SHARE} was seen to work",
        )


def compiles_anew(launch: Launch) -> Sights:
    wanted = launch.table("compilation-config").get("custom_ops")
    if launch.gpu and wanted in ("all", ["all"]) and not any(_keeps_compiled(launch, folder) for folder in launch.kept):
        yield (
            "args.compilation-config",
            'custom_ops ["all"] is compiled anew at each start, while weights fill the memory: two machines froze so',
        )


def _keeps_compiled(launch: Launch, folder: str) -> bool:
    """Whether vLLM's own cache lies in it. The home of the container's user is not known here."""
    base = launch.env.get("XDG_CACHE_HOME") or "/root/.cache"
    cache = launch.env.get("VLLM_CACHE_ROOT") or f"{base}/vllm"
    return f"{cache}/".startswith(f"{folder}/") or folder.endswith(("/.cache", "/.cache/vllm"))


def eager_with_graphs(launch: Launch) -> Sights:
    mode = launch.table("compilation-config").get("cudagraph_mode")
    if launch.gpu and launch.on("enforce-eager") and isinstance(mode, str) and mode.upper() not in ("NONE", ""):
        yield (
            "args.enforce-eager",
            f"--enforce-eager switches cudagraph_mode {mode[:30]} off: decoding fell from 44 to 25 tokens a second",
        )


def many_drafts(launch: Launch) -> Sights:
    table = launch.table("speculative-config")
    method, drafts = table.get("method"), table.get("num_speculative_tokens")
    if method == "mtp" and launch.model.kind.startswith("deepseek"):
        method = "deepseek_mtp"
    best = DRAFTS.get(method) if isinstance(method, str) else None
    if best and isinstance(drafts, int) and drafts > best:
        yield (
            "args.speculative-config",
            f"num_speculative_tokens {drafts} with {method}: more than {best} was measured to cost more than it gives",
        )
