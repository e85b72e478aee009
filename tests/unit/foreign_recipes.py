"""Recipes as eugr and sparkrun users publish them, made by chance, and what those tools would have run.

The templating here shares nothing with sparkd's: eugr's is Python's own `str.format`, sparkrun's reads one brace after
the other, and the words are those that bash itself makes. tests/bed compares sparkrun's with sparkrun itself.
"""

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
BARE = (
    "--trust-remote-code", "--enable-prefix-caching", "--no-enable-chunked-prefill", "--enforce_eager", "-ep", "-O3",
    "-O=2",
)  # fmt: skip
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
FILLED = (
    '{"method":"mtp","num_speculative_tokens":{tokens}}',
    '{"a":{"b":"{chosen}"},"c":[{tokens},null]}',
    '{"x": {"y": {"z": {tokens}}}}',
)
"""JSON with placeholders in it, as sparkrun's recipes have it."""
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "enforce_eager", "trust_remote_code")
NEGATED = SWITCHES[:3]
MAPPINGS: dict[str, object] = {
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
    "compilation_config": '{"mode": 3, "custom_ops": ["all"]}',
    "generation_config": "vllm",
    "limit_mm_per_prompt": {"image": 2},
    "moe_backend": "marlin",
    "async_scheduling": False,
    "enable_prefix_caching": "off",
    "enforce_eager": 1,
    "no_flag_of_this_name": 3,
}
"""What becomes flags of a recipe without a command."""
OWNED = (
    "--distributed-executor-backend ray",
    "--nnodes 2",
    "--node-rank=0",
    "--master_addr 10.0.0.1",
    "--master-port 29501",
    "--headless",
)
SHORT = {
    "-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-q": "quantization",
    "-ep": "enable-expert-parallel", "-O3": "optimization-level=3", "-O=2": "optimization-level=2",
}  # fmt: skip
NAMES_OF_SPARKD = {one.split()[0].split("=")[0].replace("_", "-")[2:] for one in OWNED}


@dataclass
class Made:
    """A published recipe, and the text of the command that its tool would hand to bash."""

    text: str
    command: str
    model: str
    overrides: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    """What the tool sets, less secrets."""


ENV = {
    "VLLM_USE_X": 1, "NCCL_DEBUG": "WARN", "ARCH": "12.1a", "RATIO": 0.5, "QUOTED": "a b", "JSON": '{"a": 1}',
    "ON": True, "EMPTY": "", "HF_TOKEN": "$HF_TOKEN",
}  # fmt: skip
SECRET = "HF_TOKEN"  # its name
OF_SPARKRUN = {"CUTE_DSL_ARCH": "sm_121a", "NCCL_CUMEM_ENABLE": "0"}
"""What sparkrun sets itself; the last one on several nodes alone, as on one it changes nothing."""
ADDED = {
    "VLLM_ENGINE_READY_TIMEOUT_S": "a cold load takes longer than vLLM waits, and sparkd itself ends one that stalls",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "a step in which a kernel is compiled takes longer than vLLM waits",
    "MAX_JOBS": "as many compilers at once as the node has memory for",
    "FLASHINFER_NVCC_THREADS": "as MAX_JOBS",
    "PYTORCH_CUDA_ALLOC_CONF": "eugr's and sparkrun's launchers set the same, which no other form has",
    "NCCL_DEBUG": "on several nodes NCCL's errors have no reason without WARN",
}
"""Variables that an imported recipe may have where the other side has none, each with its reason."""


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
        "env": ENV,
        "solo_only": False,
        "notes": "a key that nobody reads",
    }
    keys |= {key: value for key, value in chances.items() if chance.random() < 0.5}
    rendered = command.format(**{**defaults, **overrides})
    env = exported_by_bash(ENV) if "env" in keys else {}
    return Made(_yaml(chance, keys, defaults, command), rendered, model, overrides, env)


def sparkrun(seed: int) -> Made:
    chance = random.Random(seed)  # recipes, not keys
    model = chance.choice(MODELS)
    defaults, lines = _flags(chance, spell=None)
    if chance.random() < 0.3:
        defaults["served_model_name"] = "some-name"
    if chance.random() < 0.5:
        defaults |= {"chosen": "{port}", "tokens": 2}
        defaults.setdefault("port", 8000)
        lines += ["--data-parallel-rpc-port {chosen}", f"--hf-overrides '{chance.choice(FILLED)}'"]
    if chance.random() < 0.3:
        lines.append("--attention-config '{\"a\": 1}'")
    if chance.random() < 0.2:
        lines.append("--revision {model_revision}")
    # As in recipes that were eugr's: doubled wherever braces are text.
    doubled = chance.random() < 0.3
    if doubled:
        lines.append('--override-generation-config \'{{"top_k": {{"b": 20}}}}\'')
        lines = [line for line in lines if "}}" not in line or "{{" in line]
    command = _joined(chance, "vllm serve {model}", lines)
    if chance.random() < 0.3:
        command = command.replace("\\\n", "\\ \t\n", 2)
    overrides = {"port": str(chance.randint(1024, 29000))} if "{port}" in command and chance.random() < 0.5 else {}
    keys: dict[str, object] = {"model": model, "container": "i:1", "min_nodes": 1}
    keys["recipe_version"] = chance.choice(("1", "2", "2", "3", "4", 7))
    keys["runtime"] = chance.choice(("vllm", "vllm", "vllm-distributed", "vllm-ray", ""))
    if "{model_revision}" in command or chance.random() < 0.3:
        keys["model_revision"] = "0123456789abcdef0123456789abcdef01234567"
    chances: dict[str, object] = {
        "metadata": {"description": "what it is", "created": "2026-07-11"},
        "mods": ["mods/drop-caches", "@registry/x"],
        "build_args": ["--apply-vllm-pr", "40991"],
        "pre_exec": ["pip install x", {"copy": "a", "dest": "/b"}],
        "env": ENV,
        "executor_config": chance.choice(EXECUTORS),
        "maintainer": "somebody",
        "name": "Some Model",
    }
    keys |= {key: value for key, value in chances.items() if chance.random() < 0.5}
    env = OF_SPARKRUN | ({name: str(value) for name, value in ENV.items() if name != SECRET} if "env" in keys else {})
    known: dict[str, object] = {"model": model, **keys, **defaults, **overrides}
    if chance.random() < 0.15:
        defaults |= {name: MAPPINGS[name] for name in chance.sample(sorted(MAPPINGS), 4)}
        rendered = _without_command(model, keys.get("model_revision"), defaults)
        return Made(_yaml(chance, keys, defaults, ""), rendered, model, {}, env)
    rendered = filled(command.strip(), known).replace("\\ \t\n", "\\\n")
    if "--served-model-name" not in rendered:
        rendered += f" --served-model-name {defaults.get('served_model_name', model)}"
    return Made(_yaml(chance, keys, defaults, command), rendered, model, overrides, env)


EXECUTORS: tuple[dict[str, object], ...] = (
    {"shm_size": "64gb", "ulimit": ["memlock=-1:-1"], "user": "1000"},
    {"privileged": True, "ipc": "host", "entrypoint": ""},
    {"devices": ["/dev/infiniband:/dev/infiniband"], "cap_add": ["IPC_LOCK"], "security_opt": []},
    {"ipc": "private", "shm_size": "10g", "volumes": ["/srv/x:/srv/y:ro", "/srv/z"], "auto_remove": False},
)


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
    """sparkrun 0.4: one brace after the other, then values until nothing changes; a name without a value stays."""
    doubled = 1 if "{{" in text else 2
    parts, at = [""], 0
    while at < len(text):
        end = text.find("}", at) + 1
        if text[at : at + 2] in ("{{", "}}"):
            parts.append(("<" if text[at] == "{" else ">") * doubled)
            at += 2
        elif text[at] == "{" and end and "{" not in text[at + 1 : end]:
            parts.append(text[at:end])
            at = end
        else:
            parts.append({"{": "<", "}": ">"}.get(text[at], text[at].translate(_HIDDEN)))
            at += 1
    shown = "".join(parts)
    for _ in range(10):
        shown = re.sub(r"\{(.*?)\}", lambda match: _value(match.group(), known), shown)
    return shown.replace("<", "{").replace(">", "}").translate(_SHOWN)


_HIDDEN, _SHOWN = str.maketrans("<>", "\2\3"), str.maketrans("\2\3", "<>")


def _value(found: str, known: Mapping[str, object]) -> str:
    value = known.get(found.strip("}{"))
    return found if value is None else str(value).translate(_HIDDEN)


def _without_command(model: str, revision: object, defaults: Mapping[str, object]) -> str:
    spelled = {name: flag.replace("_", "-") for name, (flag, _) in DEFAULTS.items()}
    spelled |= {name: f"--{name.replace('_', '-')}" for name in ("quantization", "served_model_name", *MAPPINGS)}
    del spelled["no_flag_of_this_name"]
    words = ["vllm", "serve", model, "-tp", str(defaults["tensor_parallel"])]
    words += ["--revision", str(revision)] if revision else []
    given = {"gpu_memory_utilization": 0.8, "served_model_name": model, **defaults}
    for name, flag in spelled.items():
        value = given.get(name)
        if name in SWITCHES and name in given:
            is_on = value in (True, 1)
            words += [flag] if is_on else [f"--no-{flag[2:]}"] if name in NEGATED else []
        elif isinstance(value, dict):
            words += [flag, f"'{json.dumps(value, separators=(',', ':'))}'"]
        elif value is not None:
            words += [flag, f"'{value}'"]
    return " ".join(words)


def exported_by_bash(env: Mapping[str, object]) -> dict[str, str]:
    """What a script of `export NAME="value"` gives the program that it runs, less the secret."""
    script = "".join(f'export {name}="{value}"\n' for name, value in env.items() if name != SECRET)
    done = subprocess.run(["bash", "-c", f"{script}env -0"], capture_output=True, text=True, check=True, timeout=20)
    found = dict(line.split("=", 1) for line in done.stdout.split("\0")[:-1])
    return {name: found[name] for name in env if name != SECRET}


def words_by_bash(command: str) -> list[str]:
    """The words that the program `vllm` is given when bash runs the command."""
    program = f'vllm() {{ printf "%s\\0" "$@"; }}\n{command}\n'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.split("\0")[:-1]


def meaning(words: list[str]) -> dict[str, list[str]]:
    """Values by flag as vLLM's parser takes them; what sparkd says itself left out."""
    flags: dict[str, list[str]] = {}
    last: list[str] = []
    for word in words:
        long = SHORT.get(word) or SHORT.get(word.partition("=")[0])
        word = f"--{long}{word[word.find('=') :] if '=' in word and '=' not in long else ''}" if long else word
        head, equals, value = word.partition("=")
        if head.startswith("--"):
            name, dot, rest = head[2:].partition(".")
            last = [value] if equals else []
            flags[name.replace("_", "-") + dot + rest] = last
        else:
            last.append(word)
    return {name: values for name, values in flags.items() if name not in NAMES_OF_SPARKD}
