"""Predicates on flags that the model does not fit, by its config.json."""

from sparkd.base.vllm.lint.launch import Launch, Matches, about

CHANGE_CONFIG = ("hf-overrides", "hf-config-path", "rope-scaling", "rope-theta", "config-format")
"""Flags that change what config.json gives."""
QUANTIZATIONS = {
    "awq": ("awq_marlin", "auto_awq"), "gptq": ("gptq_marlin", "auto_gptq"), "fp8": (), "compressed-tensors": (),
    "modelopt": ("modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"),
}  # fmt: skip
"""Values of --quantization, each with those that vLLM takes for the same. Others fit several checkpoints."""
_FAMILY = {name: family for family, others in QUANTIZATIONS.items() for name in (family, *others)}


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
    """Numbers of up to 16 ranks that divide the model's heads, in words."""
    heads, kv_heads = launch.model.heads, launch.model.kv_heads or 1
    even = (ranks for ranks in range(1, 17) if heads % ranks == 0)
    fitting = [str(ranks) for ranks in even if 0 in (kv_heads % ranks, ranks % kv_heads)]
    return f"{', '.join(fitting)} would fit"


def other_quantization(launch: Launch) -> Matches:
    """A value that vLLM's _verify_quantization or get_quant_config refuses. For some models vLLM takes any value."""
    value, checkpoint = launch.flags.get("quantization") or "", launch.model.quantization
    family = _FAMILY.get(value.lower(), "")
    if checkpoint is None or not family or _changes_config(launch) or launch.model.kind.startswith("deepseek_v4"):
        return
    if not checkpoint and family != "fp8":  # which quantizes an unquantized checkpoint while it is loaded
        yield about("quantization", f"{value}, and the model's files do not say that it is quantized")
    # With a checkpoint of modelopt vLLM takes its own method, whatever the flag says; unknown ones are not judged.
    elif checkpoint and _FAMILY.get(checkpoint, "modelopt") not in (family, "modelopt"):
        yield about("quantization", f"{value}, and the model's config.json says {checkpoint}")


def _changes_config(launch: Launch) -> bool:
    """Whether a flag changes what config.json gives."""
    return any(flag.partition(".")[0] in CHANGE_CONFIG for flag in launch.flags)
