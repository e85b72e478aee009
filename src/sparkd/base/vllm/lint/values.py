"""Predicates on values of flags and variables, and on flags that need each other."""

import re

from sparkd.base.lib.text import did_you_mean
from sparkd.base.vllm.container_paths import HOME, is_below
from sparkd.base.vllm.lint.launch import NOTHING, Launch, Matches, about
from sparkd.base.vllm.releases import list_registered

PLUGINS = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}
"""Flags whose names a plugin extends, each with the flag that loads the plugin."""
OF_ANY_RELEASE = {"quantization": ("marlin",)}
"""Flags that may be given a name of any release, in upper or lower case, since a plugin may bring it back.

Each has the names that vLLM takes although it does not register them.
"""
_MACHINES = re.compile(r"(?:\A|(?<=[/:._-]))(?:(x86[_-]?64|amd64)|arm64|aarch64)(?=\Z|[/:@._-])", re.IGNORECASE)
"""Machines in the name of an image; the group has one of x86."""
_UNFILLED = re.compile(r"(?<!\$)\{[A-Za-z_][A-Za-z0-9_.-]{0,60}\}|\$\{?[A-Za-z_]\w{0,60}\}?")
"""`{name}`, `$NAME` and `${NAME}`: sparkd fills in its own placeholders alone, and quotes all words for the shell."""
_SHELL_VARIABLE = re.compile(
    r"(?<!\$)\$(?!\{?(?:ORIGIN|LIB|PLATFORM)\b)(?:\{[A-Za-z_]\w{0,60}\}|[A-Z][A-Z0-9_]{1,60}(?![\w]))"
)
"""A variable in a text that may well hold dollars and braces. The dynamic linker fills in the three left out."""
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_BELOW_ONE = re.compile(r"\s*(?:-\d+|0+[kKmMgGtT]?)\s*", re.ASCII)
DRAFTS_APART = ("draft_model", "eagle", "eagle3", "medusa")
"""Methods with a model of their own, at least where the number of tokens is given."""


def incomplete(launch: Launch) -> Matches:
    """Switches without the flag that vLLM demands beside them: it ends."""
    needs = {"enable-auto-tool-choice": "tool-call-parser", "enable-log-outputs": "enable-log-requests"}
    for switch, other in needs.items():
        if switch in launch.flags and not _is_given(launch, other):
            yield about(switch, f"needs --{other}, and it is not given")


def unused(launch: Launch) -> Matches:
    if _is_given(launch, "tool-call-parser") and "enable-auto-tool-choice" not in launch.flags:
        yield about("tool-call-parser", "does nothing without --enable-auto-tool-choice")


def unregistered(launch: Launch) -> Matches:
    for flag, names in ((known.name, known.registered) for known in launch.vllm.flags if known.registered):
        value = launch.flags.get(flag) or ""
        has_plugin = flag in PLUGINS and _is_given(launch, PLUGINS[flag])
        if value in NOTHING or flag in launch.extra or has_plugin:
            continue
        if flag in OF_ANY_RELEASE:
            value, names = value.lower(), (*sorted({*names, *list_registered(flag), *OF_ANY_RELEASE[flag]}),)
        if value not in names:
            suggestion = did_you_mean(value, names) or f": {', '.join(names[:8])}, ..."
            yield about(flag, f"{value[:60]!r} is not registered in {launch.vllm.vllm}{suggestion}")


def unfilled(launch: Launch) -> Matches:
    texts = [(f"args.{flag}", f"--{flag}", text, _UNFILLED) for flag, text in launch.flags.items()]
    texts += [(f"env.{name}", name, text, _SHELL_VARIABLE) for name, text in launch.env.items()]
    texts += [(key, key, text, _UNFILLED) for key, text in launch.texts]
    for key, shown, text, pattern in texts:
        if text and "{{" not in text and "{%" not in text and (match := pattern.search(text)):
            yield key, f"{shown} is given {match[0]} as it stands: nothing fills it in"


def moves_memory(launch: Launch) -> Matches:
    """A KV connector with memory segments that move, which vLLM's _verify_kv_transfer_compat refuses."""
    connector = launch.table("kv-transfer-config").get("kv_connector") or _is_given(launch, "kv-offloading-size")
    pooled = {"enable-cumem-allocator", "enable-sleep-mode"} & launch.flags.keys()
    if connector and not pooled and "expandable_segments:True" in launch.env.get(ALLOCATOR, ""):
        yield f"env.{ALLOCATOR}", f"{ALLOCATOR} has expandable_segments:True, and the flags set a KV connector"


def out_of_range(launch: Launch) -> Matches:
    for flag in ("max-model-len", "max-num-batched-tokens", "max-num-seqs"):
        text = launch.flags.get(flag) or ""
        if _BELOW_ONE.fullmatch(text) and (flag, text.strip()) != ("max-model-len", "-1"):
            yield about(flag, f"{text[:60]}: at least 1 is needed")
    mode = launch.table("compilation-config").get("mode")
    highest_mode = 3  # of CompilationConfig
    if isinstance(mode, int) and not 0 <= mode <= highest_mode:
        yield about("compilation-config", f"has mode {mode}: 0 to {highest_mode} is needed")
    tokens = launch.table("speculative-config").get("num_speculative_tokens")
    if isinstance(tokens, int) and tokens < 1:
        yield about("speculative-config", f"has num_speculative_tokens {tokens}: at least 1 is needed")
    elif tokens:
        yield from _find_missing_draft(launch)


def _find_missing_draft(launch: Launch) -> Matches:
    drafts = launch.table("speculative-config")
    has_model = drafts.get("model") or "speculative-config.model" in launch.flags
    if (method := drafts.get("method")) in DRAFTS_APART and not has_model:
        yield about("speculative-config", f"has method {method} without the draft's model")


_LEAST_BYTES = 64 << 20
"""The least size that can be meant: smaller numbers were meant as GB."""


def impossible_size(launch: Launch) -> Matches:
    """Sizes that vLLM reads, and that no Spark can hold or no engine can use."""
    flag = "kv-cache-memory-bytes"
    size = launch.amount(flag)
    if launch.gpu and size is not None and (why := _explain_size(size)):
        yield about(flag, f"{(launch.flags[flag] or '')[:60]}: {why}")


def impossible_size_in_recipe(launch: Launch) -> Matches:
    """Sizes that docker or sparkd reads."""
    for key, size in launch.sizes:
        if (launch.gpu or size < _LEAST_BYTES) and (why := _explain_size(size)):
            yield key, f"{key}: {size}: {why}"


def _explain_size(size: int) -> str:
    if size < _LEAST_BYTES:
        return "it is a number of bytes"
    return "a Spark has 128 GB" if size > 128 << 30 else ""


def no_effect(launch: Launch) -> Matches:
    """Values that vLLM takes, and that the user can't have meant."""
    yield from _find_both_forms(launch)
    yield from _find_useless_numbers(launch)
    yield from _find_backend_without_nvfp4(launch)
    yield from _find_octal(launch)
    yield from _find_cached_models(launch)


def _find_both_forms(launch: Launch) -> Matches:
    places = {name: place for place, name in enumerate([parsed.name for parsed in launch.given] or launch.flags)}
    for flag in places:
        if (negative := f"no-{flag}") in places:
            other, last = sorted((flag, negative), key=places.__getitem__)
            yield about(last, f"comes after --{other}, which does nothing then")


def _find_useless_numbers(launch: Launch) -> Matches:
    port, block = map(launch.amount, ("port", "block-size"))
    if port is not None and port < 1024:
        yield about("port", f"{port} is a port of the system, such as 22 of ssh: 8000 is usual")
    if launch.gpu and block is not None and block % 16:  # of FlashAttention, FlashInfer and Triton of vLLM 0.32
        yield about("block-size", f"{block} is no multiple of 16, which attention kernels need")
    for flag in ("cpu-offload-gb", "kv-offloading-size"):
        if launch.gpu and (gib := launch.share(flag)) and gib > 0:
            beside = "it is taken beside gpu-memory-utilization, and gains nothing"
            yield about(flag, f"{gib:g}: CPU and GPU of a Spark share one memory: {beside}")


def _find_backend_without_nvfp4(launch: Launch) -> Matches:
    dtype, backend = (launch.flags.get(flag) or "" for flag in ("kv-cache-dtype", "attention-backend"))
    # Backends without nvfp4 in their supported_kv_cache_dtypes (vLLM 0.32).
    if dtype.startswith("nvfp4") and backend.upper() in ("FLASH_ATTN", "FLEX_ATTENTION", "TRITON_ATTN", "TORCH_SDPA"):
        yield about("attention-backend", f"{backend} has no KV cache of {dtype}: FLASHINFER has")


_OCTAL = re.compile(r"0{1,20}[1-7][0-7]{1,20}")
"""An octal number, except those such as 07, which are the same in decimal."""


def _find_octal(launch: Launch) -> Matches:
    """A recipe is YAML 1.2, where 010 is 10; readers of YAML 1.1, as launchers in Python have, take it for 8."""
    for flag, text in launch.flags.items():
        known = launch.vllm.by_name.get(flag)
        if text and known and known.kind in ("int", "amount", "amount or auto") and _OCTAL.fullmatch(text):
            number, octal = int(text), int(text, 8)
            yield about(flag, f"{text} is {number} here, and {octal} to readers of YAML 1.1: write {number} or {octal}")


def _find_cached_models(launch: Launch) -> Matches:
    for key, text in launch.texts:
        if key == "model.path" and "models--" in text and "/snapshots/" in text:
            yield key, f"{text[:200]} is a snapshot of Hugging Face's cache: its files are links out of the folder"


_OF_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,95}", re.ASCII)


def fetched(launch: Launch) -> Matches:
    """Further models by their names on the hub: the container is new at each start, and none of them is in it."""
    env = launch.env
    home = env.get("XDG_CACHE_HOME") or f"{env.get('HOME') or HOME}/.cache"
    cache = env.get("HF_HUB_CACHE") or f"{env.get('HF_HOME') or f'{home}/huggingface'}/hub"
    if env.get("HF_HUB_OFFLINE") == "1" or any(is_below(cache, target) for target in launch.mounts):
        return
    named = [("speculative-config", launch.table("speculative-config").get("model"))]
    named += [(flag, launch.flags.get(flag)) for flag in ("tokenizer", "hf-config-path")]
    loras = (parsed.values for parsed in launch.given if parsed.name == "lora-modules")
    named += [("lora-modules", (value or "").partition("=")[2]) for values in loras for value in values]
    for flag, model in named:
        if isinstance(model, str) and _OF_HUB.fullmatch(model):
            yield about(flag, f"names {model}: each start fetches that from Hugging Face, and fails where it can't")


def is_for_x86(image: str) -> bool:
    """Whether the image's name has x86_64 or amd64, and no other machine."""
    registry, _, path = image.partition("/")
    name = path if path and re.search(r"[.:]", registry) else image
    machines = [match[1] for match in _MACHINES.finditer(name)]
    return bool(machines) and all(machines)


def for_x86(launch: Launch) -> Matches:
    for key, text in launch.texts:
        if key == "image.ref" and launch.gpu and is_for_x86(text):
            yield key, f"{text[:200]}: is for x86_64, and a Spark is arm64"


def _is_given(launch: Launch, flag: str) -> bool:
    """Whether the flag is given, also with a value that is not known yet."""
    return flag in launch.flags and launch.flags[flag] not in NOTHING
