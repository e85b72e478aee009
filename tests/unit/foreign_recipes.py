"""Recipes as eugr and sparkrun users publish them, made by chance, and what those tools would have run.

The templating here shares nothing with sparkd's: eugr's is Python's own `str.format`, sparkrun's is its regular
expression, and the words are those that bash itself makes.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

MODELS = ("deepseek-ai/DeepSeek-V4-Flash", "Qwen/Qwen3.6-35B-A3B-FP8", "nvidia/Nemotron-3-Super-NVFP4", "org/tiny_1.5")
DEFAULTS: dict[str, tuple[str, tuple[object, ...]]] = {
    "port": ("--port", (8000, 8080, 9000)),
    "host": ("--host", ("0.0.0.0", "127.0.0.1", "::")),
    "gpu_memory_utilization": ("--gpu-memory-utilization", (0.9, 0.85, 0.875, 0.7)),
    "max_model_len": ("--max-model-len", (32768, 131072, 262144, "auto")),
    "max_num_seqs": ("--max-num-seqs", (1, 4, 10)),
    "max_num_batched_tokens": ("--max_num_batched_tokens", (4096, 16384)),
    "kv_cache_dtype": ("--kv-cache-dtype", ("fp8", "auto")),
    "block_size": ("--block-size", (64, 256)),
    "tool_call_parser": ("--tool-call-parser", ("qwen3_coder", "deepseek_v4")),
    "load_format": ("--load-format", ("safetensors", "fastsafetensors")),
    "seed": ("--seed", (0, -1, 42)),
    "dtype": ("--dtype", ("bfloat16",)),
    "quantization": ("-q", ("fp8", "modelopt")),
}
BARE = ("--trust-remote-code", "--enable-prefix-caching", "--no-enable-chunked-prefill", "--enforce_eager", "-ep")
JSON = (
    '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}',
    '{"method": "mtp", "num_speculative_tokens": 2}',
    '{"a":{"b":{"c":0.90}},"d":[1,2.50,null]}',
    '{"text":"it costs $5, 100% (or less) & more; <think>"}',
)
LITERAL = (
    "--chat-template /workspace/unsloth.jinja",
    "--cudagraph-capture-sizes 1 2 4 8",
    '--allowed-origins "*"',
    "--allowed-media-domains '*'",
    "--compilation-config.cudagraph_mode=PIECEWISE",
    "--uvicorn-log-level=warning",
    '--override-generation-config "{\\"top_k\\": 20}"',
    "--response-role a\\ b",
    "--long-prefill-token-threshold -1",
)
OWNED = (
    "--distributed-executor-backend ray",
    "--nnodes 2",
    "--node-rank=0",
    "--master_addr 10.0.0.1",
    "--master-port 29501",
    "--headless",
)
SHORT = {"-tp": "tensor-parallel-size", "-q": "quantization", "-ep": "enable-expert-parallel"}
NAMES_OF_SPARKD = {one.split()[0].split("=")[0].replace("_", "-")[2:] for one in OWNED}


@dataclass
class Made:
    """A published recipe, and the text of the command that its tool would hand to bash."""

    text: str
    command: str
    model: str
    overrides: dict[str, str] = field(default_factory=dict)


def eugr(seed: int) -> Made:
    chance = random.Random(seed)  # recipes, not keys
    model = chance.choice(MODELS)
    defaults, lines = _flags(chance, spell=lambda value: value.replace("{", "{{").replace("}", "}}"))
    command = _joined(chance, f"vllm serve {model}", lines)
    overrides = {"port": str(chance.randint(1024, 29000))} if "{port}" in command and chance.random() < 0.5 else {}
    keys: dict[str, object] = {"recipe_version": "1", "name": "Some Model", "container": "vllm-node", "model": model}
    chances: dict[str, object] = {
        "description": "what it is: good for",
        "mods": ["mods/fix-chat-template"],
        "build_args": ["--rebuild-vllm", "-f", "Dockerfile.x"],
        "env": {"VLLM_USE_X": 1, "NCCL_DEBUG": "WARN", "ARCH": "12.1a", "RATIO": 0.5, "HF_TOKEN": "$HF_TOKEN"},
        "solo_only": False,
    }
    keys |= {key: value for key, value in chances.items() if chance.random() < 0.5}
    rendered = command.format(**{**defaults, **overrides})
    return Made(_yaml(chance, keys, defaults, command), rendered, model, overrides)


def sparkrun(seed: int) -> Made:
    chance = random.Random(seed)  # recipes, not keys
    model = chance.choice(MODELS)
    defaults, lines = _flags(chance, spell=None)
    if chance.random() < 0.3:
        defaults["served_model_name"] = "some-name"
    if chance.random() < 0.3:
        defaults["chosen"] = "{port}"
        defaults.setdefault("port", 8000)
        lines.append("--data-parallel-rpc-port {chosen}")
    if chance.random() < 0.3:
        lines.append("--stays '{not_known}'")
    command = _joined(chance, "vllm serve {model}", lines)
    if chance.random() < 0.3:
        command = command.replace("\\\n", "\\  \n", 2)
    overrides = {"port": str(chance.randint(1024, 29000))} if "{port}" in command and chance.random() < 0.5 else {}
    keys: dict[str, object] = {"recipe_version": "2", "model": model, "runtime": "vllm", "container": "i:1"}
    keys["min_nodes"] = 1
    chances: dict[str, object] = {
        "metadata": {"description": "what it is", "created": "2026-07-11"},
        "mods": ["mods/drop-caches", "@registry/x"],
        "build_args": ["--apply-vllm-pr", "40991"],
        "pre_exec": ["pip install x", {"copy": "a", "dest": "/b"}],
        "env": {"VLLM_USE_X": "1", "HF_TOKEN": "${HF_TOKEN}"},
        "executor_config": {"shm_size": "64gb", "ulimit": ["memlock=-1:-1"], "user": "1000"},
        "maintainer": "somebody",
    }
    keys |= {key: value for key, value in chances.items() if chance.random() < 0.5}
    known: dict[str, object] = {"model": model, **defaults, **overrides}
    if chance.random() < 0.15:
        return Made(_yaml(chance, keys, defaults, ""), _without_command(model, defaults), model)
    rendered = filled(command.strip(), known).replace("\\  \n", "\\\n")
    if "served_model_name" in defaults and "--served-model-name" not in rendered:
        rendered += f" --served-model-name {defaults['served_model_name']}"
    return Made(_yaml(chance, keys, defaults, command), rendered, model, overrides)


def _flags(chance: random.Random, spell: object) -> tuple[dict[str, object], list[str]]:
    """Defaults, and flags that select them or give their value; JSON as the format has to write it."""
    defaults: dict[str, object] = {"tensor_parallel": chance.choice((1, 2))}
    lines = [chance.choice(("-tp {tensor_parallel}", "--tensor-parallel-size {tensor_parallel}"))]
    for name in chance.sample(sorted(DEFAULTS), chance.randint(1, len(DEFAULTS))):
        flag, values = DEFAULTS[name]
        value = chance.choice(values)
        if chance.random() < 0.7:
            defaults[name] = value
            lines.append(f"{flag} {{{name}}}")
        else:
            lines.append(f"{flag} {value}")
    for name, value in zip(("speculative-config", "compilation-config"), chance.sample(JSON, 2), strict=True):
        if chance.random() < 0.3:
            continue
        if callable(spell):
            lines.append(f"--{name} '{spell(value)}'")
        else:
            defaults[name.replace("-", "_")] = value
            lines.append(f"--{name} '{{{name.replace('-', '_')}}}'")
    lines += chance.sample(BARE, chance.randint(0, 3)) + chance.sample(OWNED, chance.randint(0, 3))
    literal = chance.sample(LITERAL, chance.randint(0, 4))
    lines += [spell(one) if callable(spell) else one for one in literal if callable(spell) or "{" not in one]
    chance.shuffle(lines)
    return defaults, lines


def _joined(chance: random.Random, start: str, lines: list[str]) -> str:
    gap = chance.choice((" \\\n    ", " \\\n", " ", "  \\\n\t"))
    return gap.join((start, *lines)) + chance.choice(("\n", "", " # that is all\n"))


def _yaml(chance: random.Random, keys: Mapping[str, object], defaults: Mapping[str, object], command: str) -> str:
    parts = [f"{key}: {json.dumps(value)}\n" for key, value in keys.items()]
    parts.append("defaults:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in defaults.items()))
    if command:
        block = "".join(f"  {line}\n" for line in command.splitlines())
        is_block = "\t" not in command
        parts.append(f"command: |\n{block}" if is_block else f"command: {json.dumps(command)}\n")
    chance.shuffle(parts)
    return "# A recipe\n" + "\n".join(parts)


def filled(text: str, known: Mapping[str, object]) -> str:
    def value(match: re.Match[str]) -> str:
        found = known.get(match.group().strip("}{"))
        return match.group() if found is None else str(found)

    done = re.sub(r"\{(.*?)\}", value, text)
    return done if done == text else filled(done, known)


def _without_command(model: str, defaults: Mapping[str, object]) -> str:
    spelled = {name: flag.replace("_", "-") for name, (flag, _) in DEFAULTS.items()}
    spelled |= {"quantization": "--quantization", "served_model_name": "--served-model-name"}
    left_out = ("block_size", "tool_call_parser", "load_format", "seed")
    words = ["vllm", "serve", model, "-tp", str(defaults["tensor_parallel"])]
    for name, flag in spelled.items():
        if name in defaults and name not in left_out:
            words += [flag, str(defaults[name])]
    return " ".join(words)


def words_by_bash(command: str) -> list[str]:
    """The words that the program `vllm` is given when bash runs the command."""
    program = f'vllm() {{ printf "%s\\0" "$@"; }}\n{command}\n'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.split("\0")[:-1]


def meaning(words: list[str]) -> dict[str, list[str]]:
    """Values by flag as vLLM's parser takes them; what sparkd says itself left out."""
    found: dict[str, list[str]] = {}
    last: list[str] = []
    for word in words:
        head, equals, value = word.partition("=")
        if head.startswith("--") or head in SHORT:
            name, dot, rest = (SHORT.get(head) or head[2:]).partition(".")
            last = [value] if equals else []
            found[name.replace("_", "-") + dot + rest] = last
        else:
            last.append(word)
    return {name: values for name, values in found.items() if name not in NAMES_OF_SPARKD}
