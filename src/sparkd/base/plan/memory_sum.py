"""Whether a plan's model fits into memory: the rank's share of it, and what that share has to hold."""

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.config import Settings
from sparkd.base.host import Host, weights
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.plan.rank_weights import RankWeights, divide_weights
from sparkd.base.vllm.args import parse_count
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.flag_values import DATA_SIZE, RANK_SIZES, SAFETENSORS_FORMATS
from sparkd.base.vllm.kv_cache import MOST_LAYERS, KvCache, read_kv_cache
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import parse_limits
from sparkd.base.vllm.releases import is_before, known_release

OTHER_SHARE, MOST_OTHER_SHARE = 0.05, 0.15
"""Parts of the share for activations, CUDA graphs and NCCL: 1.3 to 10.5 % in 20 public logs of vLLM 0.10 to 0.33 on
GPUs of 24 to 192 GiB, and up to 13 % in logs of refused starts."""
DEFAULTS = {"max-num-batched-tokens": 2048, "max-num-seqs": 256}
EARLIER_DEFAULTS = {"max-num-batched-tokens": 8192, "max-num-seqs": 1024}
"""vLLM's defaults on a GB10, since 0.33 and before (vllm/engine/arg_utils.py)."""
CHANGES_WEIGHTS = (
    "cpu-offload-gb", "hf-config-path", "hf-overrides", "kv-cache-memory-bytes", "offload-backend",
    "offload-group-size", "offload-num-in-group", "prefill-context-parallel-size", "quantization-config",
)  # fmt: skip
CHANGES_CACHE = ("decode-context-parallel-size", "num-gpu-blocks-override", "hf-overrides", "hf-config-path")
"""Flags whose effect is not computed: with one of them the size of weights, or of the KV cache, is unknown."""


class ModelFit(Enum):
    WEIGHTS_TOO_BIG = "weights-too-big"
    REQUEST_TOO_BIG = "request-too-big"
    TIGHT = "tight"
    FITS = "fits"
    UNKNOWN = "unknown"


class MemorySum(Struct, frozen=True):
    """Bytes of the fullest rank; None: unknown."""

    share_bytes: int
    """Room for weights, KV cache, activations and CUDA graphs; 0: no GPU answers, so whose memory counts is unknown."""
    weights: RankWeights | None
    cache: KvCache | None
    length: int | None
    """The longest request, in tokens."""
    sequences: int
    defaults: Mapping[str, int] = {}
    """vLLM's defaults of flags that the plan does not set; empty where its release is unknown."""

    @property
    def request_bytes(self) -> int | None:
        """KV cache of one request of that length."""
        return self.cache.request_bytes(self.length) if self.cache and self.length else None

    @property
    def left_bytes(self) -> int | None:
        """Memory for the KV cache, as far as is known before the engine measures it."""
        if self.weights is None or not self.share_bytes:
            return None
        return round(self.share_bytes * (1 - OTHER_SHARE)) - self.weights.expected

    @property
    def tokens(self) -> int | None:
        """Size of the KV cache, as the engine will count it."""
        left_bytes = self.left_bytes or 0
        return self.cache.tokens(left_bytes, self.length) if self.cache and self.length and left_bytes > 0 else None

    @property
    def fit(self) -> ModelFit:
        if self.weights is None or not self.share_bytes:
            return ModelFit.UNKNOWN
        if self.weights.least > self.share_bytes:
            return ModelFit.WEIGHTS_TOO_BIG
        if (request := self.request_bytes) is None:
            return ModelFit.UNKNOWN
        if self.weights.least + request > self.share_bytes:
            return ModelFit.REQUEST_TOO_BIG
        tight = self.weights.expected + request > self.share_bytes * (1 - MOST_OTHER_SHARE)
        return ModelFit.TIGHT if tight else ModelFit.FITS

    @property
    def is_too_big(self) -> bool:
        return self.fit in (ModelFit.WEIGHTS_TOO_BIG, ModelFit.REQUEST_TOO_BIG)

    def describe(self) -> str:
        """One sentence; empty where nothing is known."""
        if self.weights is None or not self.share_bytes:
            return ""
        share, expected, request_bytes = self.share_bytes, self.weights.expected, self.request_bytes or 0
        amount, fits = f"weights of {size(expected)}", "fit" if expected + request_bytes <= share else "may not fit"
        both = f"{amount} and the KV cache of a request of {self.length} tokens, {size(request_bytes)},"
        of_share = f"the share of {size(share)}"
        match self.fit:
            case ModelFit.WEIGHTS_TOO_BIG:
                return f"{amount} on each node are {size(expected - share)} more than {of_share}"
            case ModelFit.REQUEST_TOO_BIG:
                return f"{both} are {size(expected + request_bytes - share)} more than {of_share}"
            case ModelFit.TIGHT:
                return f"{both} {fits} {of_share}: activations and CUDA graphs must take little"
            case ModelFit.FITS:
                return f"{both} fit {of_share}: about {self.tokens} tokens in all"
            case _:
                return f"{amount} {fits} {of_share}; the KV cache of such a model is not computed"

    def rows(self) -> tuple[tuple[str, str], ...]:
        """Rows of the table for people."""
        share, weights, request = self.share_bytes, self.weights, self.request_bytes
        least, most = (size(round(share * part)) for part in (OTHER_SHARE, MOST_OTHER_SHARE))
        length = f"{self.length} tokens" if self.length else "unknown length"
        alone, together = ("unknown",) * 2 if request is None else (size(request), size(request * self.sequences))
        cache_text = f"{self.tokens} tokens in about {size(self.left_bytes or 0)}" if self.tokens else "unknown"
        return (
            ("share of the memory", size(share) if share else "unknown, since no GPU answers"),
            ("weights", size(weights.expected) if weights else "unknown"),
            ("activations, CUDA graphs", f"about {least}, at most {most}" if share else "unknown"),
            (f"KV cache of a request of {length}", alone),
            (f"the same of {self.sequences} at once", together),
            ("KV cache", cache_text),
            *((f"{flag}, not set", f"{value}, by vLLM's default") for flag, value in self.defaults.items()),
        )


def read_sum(
    plan: LaunchPlan, settings: Settings, host: Host, *, known_gb: object = None, total_bytes: int | None = None
) -> MemorySum:
    """The sum of a plan on a node, or on one with `total_bytes` of memory that its GPU shares.

    `known_gb`: a rank's weights by the recipe's source, where the model is not on this node. Raises OSError, ValueError
    where the memory is unreadable.
    """
    gpu = host.gpu() if total_bytes is None and plan.container.gpus == "all" else None
    if total_bytes is None:
        total_bytes = (gpu.total_bytes if gpu else None) or host.meminfo().total_bytes
    tensors: Mapping[str, int] = {}
    with suppress(OSError, ValueError):
        tensors = host.tensor_sizes(plan.model_path)
    config, need = weights.read_config(host.files, plan.model_path), CheckInputs(plan, settings).need
    memory = add_up(plan, config, tensors, need.engine_bytes(total_bytes))
    if gpu is not None and (gpu.error or not gpu.names):
        memory = replace(memory, share_bytes=0)
    if tensors or not isinstance(known_gb, int | float) or not 1 < known_gb < 1e6:  # a bool is an int
        return memory
    return replace(memory, weights=RankWeights(round(known_gb * 1e9), round(known_gb * GIB)))  # sources mix GB and GiB


def add_up(plan: LaunchPlan, config: Mapping[str, object], tensors: Mapping[str, int], share_bytes: int) -> MemorySum:
    """The sum of a plan, by the model's `config` and the bytes of its `tensors`. Pure."""
    launch = Launch(flags=first_values(plan.argv), env=dict(plan.env), model=parse_limits(config))
    flags, drafts = launch.flags, _count_own_drafts(launch)
    ranks, stages, copies = (launch.amount(flag) or 1 for flag in (*RANK_SIZES[:2], DATA_SIZE))
    release = known_release(*plan.release_names)
    defaults = EARLIER_DEFAULTS if release and is_before(release, 33) else DEFAULTS
    unset = {flag: value for flag, value in defaults.items() if release and flag not in flags}
    batched, sequences = (launch.amount(flag) or value for flag, value in defaults.items())
    cache = rank_weights = None
    if flags.keys().isdisjoint(CHANGES_CACHE):
        cache_type = (flags.get("kv-cache-dtype") or "auto").lower()
        cache = read_kv_cache(config, cache_type, ranks, stages, 2 * batched, drafts)
    if tensors and _loads_as_stored(launch, config):
        rank_weights = divide_weights(tensors, _count_layers(config), ranks, stages, copies, drafts=drafts > 0)
    length = launch.amount("max-model-len") if "max-model-len" in flags else launch.model.max_length
    return MemorySum(share_bytes, rank_weights, cache, length, sequences, unset)


def _count_layers(config: Mapping[str, object]) -> int:
    """Layers of the model, which may be only a part of one for several kinds of input; 0 where it does not say."""
    nested = config.get("text_config")
    return parse_count((nested if isinstance(nested, Mapping) else config).get("num_hidden_layers"), MOST_LAYERS) or 0


def _count_own_drafts(launch: Launch) -> int:
    """Tokens that layers of the model itself draft (multi-token prediction)."""
    drafts = launch.table("speculative-config")
    wanted = parse_count(drafts.get("num_speculative_tokens"), 1000) or 0
    return wanted if "mtp" in str(drafts.get("method")) else 0


def _loads_as_stored(launch: Launch, config: Mapping[str, object]) -> bool:
    """Whether a rank holds what the files have, divided as the flags say."""
    quantizes = "quantization" in launch.flags and not config.get("quantization_config")
    converts = (launch.flags.get("load-format") or "") not in SAFETENSORS_FORMATS
    if quantizes or converts or "VLLM_PP_LAYER_PARTITION" in launch.env:
        return False
    return launch.flags.keys().isdisjoint(CHANGES_WEIGHTS)
