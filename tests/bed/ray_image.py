"""The engine's image with Ray in a layer of its own, made by a node's docker from the image that it has."""

import shutil
import subprocess
import sys
from pathlib import Path

from . import cache, engine_image
from .command import BedError, run
from .node import Node

NAME = "sparkd-test/vllm-cpu-ray:0.32.0"
PINS = ("ray==2.60.0", "msgpack==1.2.4")
"""What the engine's image lacks of Ray and what that needs."""
PYTHON = (3, 11)
"""Of the engine's image, whichever this one is."""
FOR = ("--python-version", "3.11", "--only-binary", ":all:", "--no-deps")
PLUGIN = Path(__file__).parent / "files/cpu-for-ray"
LAUNCHER = """#!/usr/bin/python3
import sys
from ray.scripts.scripts import main

if __name__ == "__main__":
    sys.exit(main())
"""
DROPPED = [
    "ray/jars", "ray/dashboard/client", "ray/rllib", "ray/serve", "ray/tune", "ray/train", "ray/data", "ray/llm",
]  # fmt: skip


def key() -> str:
    return cache.recipe_key(Path(__file__), PLUGIN)


def archive() -> Path:
    return cache.artefact("ray", key(), ".tar", build)


def build(target: Path) -> None:
    with cache.scratch("ray") as scratch:
        site = scratch / "root" / engine_image.SITE
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "install", *FOR, "--no-compile", "--target", site, *PINS)
        for pattern in DROPPED:
            cache.remove(site / pattern)
        shutil.rmtree(site / "bin")
        _program(scratch / "root/usr/local/bin/ray")
        _plugin(site)
        if sys.version_info[:2] == PYTHON:  # else each container compiles for itself, and starts later
            run(sys.executable, "-m", "compileall", "-q", "-j", "2", "-s", scratch / "root", site)
        run("tar", "-C", scratch / "root", "--owner=0", "--group=0", "-cf", target, ".")


def _program(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(LAUNCHER)
    path.chmod(0o755)


def _plugin(site: Path) -> None:
    shutil.copy(PLUGIN, site / "cpu_for_ray.py")
    info = site / "cpu_for_ray-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu-for-ray\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.platform_plugins]\ncpu_for_ray = cpu_for_ray:register\n")


def make(node: Node) -> None:
    """In the docker of a booted node. Each node's own: its layer has another digest than the other nodes'."""
    node.run("docker", "create", "--name", "with-ray", engine_image.NAME)
    with archive().open("rb") as layer:
        command = node.entered("docker", "cp", "-", "with-ray:/")
        done = subprocess.run(command, stdin=layer, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise BedError(f"docker cp: {done.stderr.strip()}")
    node.run("docker", "commit", "with-ray", NAME, timeout=120)
    node.run("docker", "rm", "with-ray")
