"""`sparkd preflight` on the machine that runs these tests: it is well, and no check says otherwise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.agent.preflight.runner import IDS

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGURATION = """\
[engine]
recipe = "{recipe}"
models_dir = "{models}"
[observe]
listen = "127.0.0.1:{observers}"
"""
RECIPE = """\
schema: 1
name: small
extends: tiny-cpu
args: {{host: 127.0.0.1, port: {port}}}
memory_bytes: 268435456
"""
PORT, OBSERVERS = 28417, 28418
"""Of nobody else here."""


TRUE = {
    ("script-paths", "sparkd-head.service is not installed"),
    ("docker", "docker is away: a launch waits for it"),
    ("image", "docker is away, so the image was not checked"),
    ("stale-container", "docker is away, so containers were not checked"),
    ("remove-ipc", "not checked: docker or the image is away"),
    ("compile-cache", "not inspected: docker is away"),
    ("compile-cache", "not inspected: the image is not on this node"),
    ("image", "image sparkd-test/vllm-cpu:0.32.0 is not on this node"),
}
"""What may be so on a machine that only tests."""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A configuration whose model is there and whose recipe needs little."""
    tree = Tree(tmp_path)
    tree.file("/models/tiny/config.json", '{"max_position_embeddings": 2048}')
    tree.file("/models/tiny/tokenizer.json", "{}")
    tree.safetensors("/models/tiny/model.safetensors")
    recipe = tree.file("/small.yaml", RECIPE.format(port=PORT))
    text = CONFIGURATION.format(recipe=recipe, models=tmp_path / "models", observers=OBSERVERS)
    return tree.file("/sparkd.toml", text)


@pytest.mark.alone
def test_only_real_faults_of_this_machine_are_reported(plan: Path) -> None:
    """What the machine really lacks: sparkd's package, and the docker or the image that nobody has put there."""
    done = subprocess.run(
        [sys.executable, "-m", "sparkd.tools.cli.main", "preflight", "--dry-run", "--json"],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}/src", "SPARKD_CONFIG": str(plan)},
        capture_output=True,
        text=True,
    )
    assert not done.stderr, done.stderr
    checks = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
    assert tuple(checks) == IDS
    reported = {name: check["reason"] for name, check in checks.items() if check["level"] != "ok"}
    assert set(reported.items()) <= TRUE
