"""`sparkd recipe check` applies the rules on plans: it prints warnings, and fails on errors."""

from pathlib import Path

import pytest
from tests.unit.commands import sparkd

RECIPE = """schema: 1
name: x
model: {path: m}
image: {ref: i}
args:
  gpu-memory-utilization: SHARE
  tensor-parallel-size: "{cluster.size}"
  kv-transfer-config: "{\\"rank\\": {node.rank}}"
env: {VLLM_WORKER_MULTIPROC_METHOD: HOW}
"""


@pytest.mark.parametrize(
    ("share", "method", "code", "out", "err"),
    [
        ("0.9", "spawn", 0, "x is good (", ""),
        ("0.93", "spawn", 0, "x is good, with 1 warning (", ""),
        (
            "0.9\n  max-num-seqs: 0",
            "fork",
            78,
            "x.yaml: line 10: VLLM_WORKER_MULTIPROC",
            "x.yaml: line 7: --max-num-seqs 0",
        ),
    ],
)
def test_recipe_check_prints_warnings_and_fails_on_errors(
    tmp_path: Path, share: str, method: str, code: int, out: str, err: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE.replace("SHARE", share).replace("HOW", method))
    completed = sparkd("recipe", "check", str(path))
    assert completed.returncode == code, completed.stderr
    assert out in completed.stdout
    assert err in completed.stderr
    assert ("is good" in completed.stdout) == (code == 0)
