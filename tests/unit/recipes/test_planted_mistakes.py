"""Mistakes planted into shipped recipes: each is seen, in a sentence with its line, what is wrong, and a remedy."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.loader import read_recipe
from sparkd.base.vllm.flag import SHIPPED
from sparkd.tools.node.recipe_lint import lint

PAIRS = ("deepseek-v4-flash-nvidia", "deepseek-v4-flash-eugr", "dspark-nvfp4-1m")
NAMES = (*PAIRS, "nemotron-3-super-nvfp4")
Mistake = tuple[str, str, object]
"""Section, which is empty for a key of its own, key and value."""


def find_swaps(name: str) -> list[str]:
    """The name with two neighbours that differ, in the last word, in each other's place."""
    places = range(max(len(name) - 6, 0), len(name) - 1)
    return [
        name[:at] + name[at + 1] + name[at] + name[at + 2 :]
        for at in places
        if name[at] != name[at + 1] and name[at : at + 2].isalpha()
    ]


LONG = [flag.name for flag in SHIPPED.flags if len(flag.name) > 14 and flag.kind == "int" and find_swaps(flag.name)]
KNOWN = [name for name in SHIPPED.variables if name.startswith("VLLM_USE_") and find_swaps(name)]
OTHERS = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "TRITON_CACHE_DIR", "B12X_MOE_FORCE_A8", "TRANSFORMERS_OFFLINE")
SIZES = ("shm_bytes", "memory_limit_bytes")
SWITCHES = ("trust-remote-code", "enable-auto-tool-choice")
ADDRESSED = ("VLLM_HOST_IP", "MASTER_ADDR", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES")
WITHOUT_NVFP4 = ("FLASH_ATTN", "FLEX_ATTENTION", "TRITON_ATTN", "TORCH_SDPA", "flash_attn", "triton_attn")
CLASSES: dict[str, Callable[[Random], Mistake]] = {
    "misprinted flag": lambda random: ("args", random.choice(find_swaps(random.choice(LONG))), 4),
    "unknown flag": lambda random: ("args", f"no-such-thing-{random.randint(0, 9)}x", 1),
    "no number": lambda random: ("args", random.choice(LONG), random.choice(("many", "1.5", "8k8"))),
    "no choice": lambda random: ("args", "dtype", random.choice(("nvfp4", "bf61", "fp8x"))),
    "attention backend": lambda random: ("args", "attention-backend", random.choice(("FLASHINFERR", "FLASHY"))),
    "misprinted variable": lambda random: ("env", random.choice(find_swaps(random.choice(KNOWN))), "1"),
    "removed variable": lambda random: ("env", random.choice(("VLLM_ATTENTION_BACKEND", "VLLM_USE_V1")), "0"),
    "allocator": lambda random: ("env", "PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments={random.choice('TF')}rue"),
    "GPUs": lambda random: ("env", "CUDA_VISIBLE_DEVICES", random.choice(("0,1", "1", "0,1,2,3"))),
    "device": lambda random: ("env", "NCCL_SOCKET_IFNAME", random.choice(("mlx5_0", "eth0"))),
    "KV bytes": lambda random: ("args", "kv-cache-memory-bytes", random.choice((6, "200G", 80, "1T"))),
    "port": lambda random: ("args", "port", random.choice((22, 80, 443))),
    "host": lambda random: ("args", "host", f"192.168.1.{random.randint(256, 999)}"),
    "offload": lambda random: ("args", "cpu-offload-gb", random.choice((16, 64))),
    "block size": lambda random: ("args", "block-size", random.choice((100, 17, 50))),
    "model": lambda random: ("model", "path", random.choice(("~/models/x", "/a/models--b--c/snapshots/0"))),
    "image": lambda random: ("image", "ref", random.choice(("r/i:v1-x86_64", "r/i-amd64:v1", "r/amd64/i:v1"))),
    "limit": lambda random: ("container", "ulimits", {"memlock": "unlimited"}),
    "KV dtype": lambda random: ("args", "kv-cache-dtype", random.choice(("fp9", "fp8_e4m", "nvpf4", "int8"))),
    "quantization": lambda random: ("args", "quantization", random.choice(("fp8x", "modelopt_fp", "agq", "nvfp4"))),
    "others' variable": lambda random: ("env", random.choice(find_swaps(random.choice(OTHERS))), "1"),
    "container's bytes": lambda random: ("container", random.choice(SIZES), random.choice((6, 64, 100, 4096))),
    "rank's bytes": lambda random: ("", "memory_bytes", random.choice((6, 90, 1 << 40))),
    "shared memory": lambda random: ("container", "shm_bytes", random.choice(("64g", "16G", "8gb"))),
    "both forms": lambda random: ("args", f"no-{random.choice(SWITCHES)}", "true"),
    "octal": lambda random: ("args", random.choice(LONG), f"0{random.randint(8, 4000):o}"),
    "KV backend": lambda random: ("args", "attention-backend", random.choice(WITHOUT_NVFP4)),
    "one node's address": lambda random: ("env", random.choice(ADDRESSED), f"10.0.0.{random.randint(1, 254)}"),
}  # fmt: skip
RECIPES = {"KV backend": ("dspark-nvfp4-1m",), "one node's address": PAIRS}
"""The recipes in which a mistake of the class is one; all others are mistakes in any."""
EACH = 18
"""Pairs of mistake and recipe that are drawn of each class. What is drawn again is checked once."""
VALUE_LINE = 5
"""The line of a planted recipe that has the mistake."""
MISNAMED = {"misprinted flag", "unknown flag", "misprinted variable", "others' variable", "both forms"}
"""Classes whose mistake is the key; that of any other is the value."""
REMEDY = re.compile(r"must be .+|\(.{9,}\)$")


def draw(kind: str) -> list[tuple[Mistake, str]]:
    random = Random(kind)
    pairs = [(CLASSES[kind](random), random.choice(RECIPES.get(kind, NAMES))) for _ in range(EACH)]
    return [*{repr(pair): pair for pair in pairs}.values()]


def check(path: Path) -> list[str]:
    try:
        loaded, problems = read_recipe(str(path), (path.parent, recipes_dir()))
    except ConfigError as error:
        return [str(error)]
    errors, warnings = lint(loaded, whole=not problems) if loaded else ([], [])
    return [*problems, *errors, *warnings]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_planted_mistake_is_seen(kind: str, tmp_path: Path) -> None:
    for number, ((section, key, value), name) in enumerate(draw(kind)):
        path = tmp_path / f"planted-{number}.yaml"
        head = ["schema: 1", f"name: planted-{number}", f"extends: {name}"]
        written = value if section == "args" else json.dumps(value)
        line = f"  {key}: {written}" if section else f"{key}: {written}"
        path.write_text("\n".join([*head, f"{section}:" if section else "", line]) + "\n")
        place = f"{path}: line {VALUE_LINE}: "
        sentences = [line.removeprefix(place) for line in check(path) if line.startswith(place)]
        shown = next(iter(value.values())) if isinstance(value, dict) else value
        wrong = key if kind in MISNAMED else str(shown)
        assert any(wrong in line and REMEDY.search(line) for line in sentences), (key, value, check(path))


def test_the_classes_have_some_three_hundred_pairs() -> None:
    assert sum(len(draw(kind)) for kind in CLASSES) >= 300


def test_the_images_own_variables_count() -> None:
    table = replace(SHIPPED, image="i:1", variables=("VLLM_USE_V1",))
    loaded, _ = read_recipe(NAMES[0], (recipes_dir(),))
    assert loaded is not None
    old = loaded.recipe.model_copy(update={"env": {"VLLM_USE_V1": "1"}})
    loaded = replace(loaded, recipe=old)
    assert not any("VLLM_USE_V1" in warning for warning in lint(loaded, vllm=table)[1])
    assert any("VLLM_USE_V1" in warning for warning in lint(loaded)[1])
