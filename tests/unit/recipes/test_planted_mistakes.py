"""Mistakes planted into shipped recipes: each is seen, in a sentence with its line and its value or remedy."""

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

NAMES = ("deepseek-v4-flash-nvidia", "deepseek-v4-flash-eugr", "dspark-nvfp4-1m", "nemotron-3-super-nvfp4")
LONG = [flag.name for flag in SHIPPED.flags if len(flag.name) > 14 and flag.kind == "int"]
KNOWN = [name for name in SHIPPED.variables if name.startswith("VLLM_USE_")]
OTHERS = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "TRITON_CACHE_DIR", "B12X_MOE_FORCE_A8", "TRANSFORMERS_OFFLINE")
SIZES = ("shm_bytes", "memory_limit_bytes")
Mistake = tuple[str, str, object]
"""Section, which is empty for a key of its own, key and value."""
CLASSES: dict[str, Callable[[Random], Mistake]] = {
    "misprinted flag": lambda random: ("args", swapped(random.choice(LONG), random), 4),
    "unknown flag": lambda random: ("args", f"no-such-thing-{random.randint(0, 9)}x", 1),
    "no number": lambda random: ("args", random.choice(LONG), random.choice(("many", "1.5", "8k8"))),
    "no choice": lambda random: ("args", "dtype", random.choice(("nvfp4", "bf61", "fp8x"))),
    "attention backend": lambda random: ("args", "attention-backend", random.choice(("FLASHINFERR", "FLASHY"))),
    "misprinted variable": lambda random: ("env", swapped(random.choice(KNOWN), random), "1"),
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
    "others' variable": lambda random: ("env", swapped(random.choice(OTHERS), random), "1"),
    "container's bytes": lambda random: ("container", random.choice(SIZES), random.choice((6, 64, 100, 4096))),
    "rank's bytes": lambda random: ("", "memory_bytes", random.choice((6, 90, 1 << 40))),
    "shared memory": lambda random: ("container", "shm_bytes", random.choice(("64g", "16G", "8gb"))),
}  # fmt: skip
EACH = 17
"""Mistakes that are drawn of each class. What is drawn again is checked once."""
VALUE_LINE = 5
"""The line of a planted recipe that has the mistake."""


def swapped(name: str, random: Random) -> str:
    """Two neighbours that differ, in the last word, change places."""
    places = [
        at for at in range(len(name) - 6, len(name) - 1) if name[at] != name[at + 1] and name[at : at + 2].isalpha()
    ]
    at = random.choice(places)
    return name[:at] + name[at + 1] + name[at] + name[at + 2 :]


def check(path: Path) -> list[str]:
    try:
        loaded, problems = read_recipe(str(path), (path.parent, recipes_dir()))
    except ConfigError as error:
        return [str(error)]
    errors, warnings = lint(loaded, whole=not problems) if loaded else ([], [])
    return [*problems, *errors, *warnings]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_planted_mistake_is_seen(kind: str, tmp_path: Path) -> None:
    random = Random(kind)
    drawn = [(CLASSES[kind](random), random.choice(NAMES)) for _ in range(EACH)]
    for number, ((section, key, value), name) in enumerate({repr(pair[0]): pair for pair in drawn}.values()):
        path = tmp_path / f"planted-{number}.yaml"
        head = ["schema: 1", f"name: planted-{number}", f"extends: {name}"]
        line = f"  {key}: {json.dumps(value)}" if section else f"{key}: {json.dumps(value)}"
        path.write_text("\n".join([*head, f"{section}:" if section else "", line]) + "\n")
        sentences = [line for line in check(path) if f"{path}:" in line or f"{path}," in line]
        shown = next(iter(value.values())) if isinstance(value, dict) else value
        place = re.compile(rf"[:, ](line )?{VALUE_LINE}\b")
        good = [line for line in sentences if place.search(line) and (key in line or str(shown) in line)]
        assert good, (key, value, check(path))
        assert any("(" in line or "must be" in line or "needed" in line for line in good), good


def test_the_images_own_variables_count() -> None:
    table = replace(SHIPPED, image="i:1", variables=("VLLM_USE_V1",))
    loaded, _ = read_recipe(NAMES[0], (recipes_dir(),))
    assert loaded is not None
    old = loaded.recipe.model_copy(update={"env": {"VLLM_USE_V1": "1"}})
    loaded = replace(loaded, recipe=old)
    assert not any("VLLM_USE_V1" in warning for warning in lint(loaded, vllm=table)[1])
    assert any("VLLM_USE_V1" in warning for warning in lint(loaded)[1])
