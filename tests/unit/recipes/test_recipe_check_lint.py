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


def test_the_pools_size_is_a_number_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE.replace("SHARE", "0.9").replace("HOW", "spawn") + "expect: {kv_cache_tokens: many}\n")
    completed = sparkd("recipe", "check", str(path))
    assert completed.returncode == 78
    assert 'line 10: expect.kv_cache_tokens = "many": must be a whole number of tokens' in completed.stderr


def test_a_switch_that_is_off_is_found_by_its_key(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("schema: 1\nname: x\nextends: tiny-cpu\nargs:\n  seed: 1\n  grpcs: false\n")
    assert f"{path}: line 6: --no-grpcs is no flag of vLLM" in sparkd("recipe", "check", str(path)).stdout
