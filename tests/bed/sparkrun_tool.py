"""sparkrun itself, with no more than what it needs to fill in a recipe, beside the Python of a node: it needs 3.12."""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from . import cache, nodebase
from .command import run
from .tree import Tree

PROGRAM = Path(__file__).with_name("programs") / "sparkrun_renderer.py"
PACKAGES = (
    "sparkrun==0.4.2", "vpd==0.9.13", "scitrera-app-framework==0.0.69", "botwinick-utils==0.0.20",
    "huggingface-hub==2.2.0", "packaging==26.0", "pyyaml==6.0.3", "six==1.17.0",
)  # fmt: skip
PARTS = (
    "./bin", "./lib", "./lib64", "./usr/lib64", "./usr/bin/env", "./usr/bin/python3", "./usr/bin/python3.13",
    "./usr/lib/python3.13", f"./usr/lib/{platform.machine()}-linux-gnu", "./etc/python3.13", "./proc", "./dev", "./tmp",
)  # fmt: skip
"""Of the node's tree: Python and its libraries."""
SITE = "usr/local/lib/python3.13/dist-packages"

Answer = Mapping[str, Any]
"""As the program writes it: `error`, or what each node would run."""


def render(recipes: Sequence[tuple[str, Sequence[str]]]) -> list[Answer]:
    """What sparkrun would run of each text, with its options KEY=VALUE, in one process."""
    key = cache.recipe_key(Path(__file__), nodebase.key("trixie"))
    root = cache.artefact("sparkrun", key, "", _build)
    with cache.lock("sparkrun"):
        (root / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
        (root / "recipes.json").write_text(json.dumps([(text, [*options]) for text, options in recipes]))
        Tree(root).run("python3", f"/{PROGRAM.name}", "/recipes.json", "/answers.json")
        return cast(list[Answer], json.loads((root / "answers.json").read_text()))


def _build(root: Path) -> None:
    root.mkdir()
    run("tar", "-C", root, "-I", "zstd -dq", "--no-recursion", "-xf", nodebase.archive("trixie"), "--recursion", *PARTS)
    wheels = ("--only-binary", ":all:", "--python-version", "3.13", "--platform", f"manylinux2014_{platform.machine()}")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    # The Python that it is for is another than the one that pip runs in, and pip holds the latter against the package.
    run(*pip, "--no-deps", "--ignore-requires-python", *wheels, "--target", root / SITE, *PACKAGES)
