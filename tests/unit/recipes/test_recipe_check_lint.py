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
        pytest.param("0.9", "spawn", 0, "x is good (", "", id="good"),
        pytest.param("0.93", "spawn", 0, "x is good, with 1 warning (", "", id="a warning"),
        pytest.param(
            "0.9\n  max-num-seqs: 0",
            "fork",
            78,
            "x.yaml: line 10: VLLM_WORKER_MULTIPROC",
            "x.yaml: line 7: --max-num-seqs 0",
            id="a warning and an error",
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


WRONG = """\
schema: 2  # another one, and no name
arg: 1  # no such key
model: {served_name: -x}  # a dash, and no path
image: {ref: i, entrypoint: []}  # no program
nodes: {min: 0}  # too few
args:
  gpu-memory-utilization: [true]  # a list of switches
  headless: true  # sparkd's own
  compilation-config: '{"cudagraph_mode": FULL'  # no JSON
  max-model-lem: 5  # no such flag
env: {VLLM_WORKER_MULTIPROC_METHOD: fork, A: true}  # no text, and a warning
"""
"""Each line but the sixth has a fault, two lines have two."""


def test_faults_of_the_format_hide_no_fault_of_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(WRONG)
    ran = sparkd("recipe", "check", str(path))
    assert ran.returncode == 78
    faults = [line.partition(": line ")[2] for line in ran.stderr.splitlines()]
    assert sorted(int(fault.partition(":")[0]) for fault in faults) == [1, 1, 2, 3, 3, 4, 5, 7, 8, 9, 10, 11]
    for needle in ("name is missing", 'model.path = ""', "--compilation-config is no JSON"):
        assert needle in ran.stderr
    assert "ShmRingBuffer" in ran.stdout
    assert "is left out" not in ran.stderr, "it is wrong instead"


def test_a_value_that_is_wrong_only_beside_another_one_is_found_too(tmp_path: Path) -> None:
    """It is judged once what is wrong by itself is put aside."""
    path = tmp_path / "x.yaml"
    path.write_text(
        "schema: 1\nname: y\nmodel: {path: m}\nimage: {ref: i}\nnodes: {min: x}\nexpect: {kv_cache_tokens: -1}\n"
    )
    faulted = sparkd("recipe", "check", str(path)).stderr
    assert "nodes.min" in faulted
    assert "expect.kv_cache_tokens = -1" in faulted


def test_a_switch_that_is_off_is_found_by_its_key(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("schema: 1\nname: x\nextends: tiny-cpu\nargs:\n  seed: 1\n  grpcs: false\n")
    assert f"{path}: line 6: --no-grpcs is no flag of vLLM" in sparkd("recipe", "check", str(path)).stdout
