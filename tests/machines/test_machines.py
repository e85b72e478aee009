"""`sparkd preflight --root TREE --json` on healthy and faulty machines, compared with the recorded answers.

SPARKD_GOLDEN=write records the answers in golden/, for review as a diff.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.machines.areas import FAULTS, healthy
from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.runner import CHECKS, IDS
from sparkd.tools.cli import main

GOLDEN = Path(__file__).parent / "golden"
RANKS = (0, 1)
VARIES = frozenset({"seconds", "age_seconds", "device", "own_device", "inode", "uid", "gid"})
"""Keys with values of this run or this machine."""
Findings = dict[str, dict[str, object]]


def run_preflight(tree: Tree, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    main.main(["preflight", "--root", str(tree.root), "--json"])
    shown = capsys.readouterr()
    assert not shown.err
    found: dict[str, object] = json.loads(shown.out, object_hook=_lasting)
    return found


def _lasting(pairs: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in pairs.items() if key not in VARIES}


def findings(shown: dict[str, object]) -> Findings:
    checks = shown["checks"]
    assert isinstance(checks, list)
    return {check["id"]: check for check in checks}


def compare(name: str, shown: dict[str, object]) -> None:
    """Against golden/NAME.json."""
    path = GOLDEN / f"{name}.json"
    text = json.dumps(shown, indent=1, sort_keys=True) + "\n"
    if os.environ.get("SPARKD_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Healthy ones, by rank."""
    folder = tmp_path_factory.mktemp("nodes")
    for rank in RANKS:
        made = Tree(folder / str(rank))
        made.folder("/proc")
        made.folder("/dev/shm")
        healthy(made, rank)
    return tuple(folder / str(rank) for rank in RANKS)


@pytest.fixture
def copy_node(tmp_path: Path, nodes: tuple[Path, ...]) -> Callable[[int], Tree]:
    """A copy of a healthy node, by rank."""

    def copied(rank: int) -> Tree:
        subprocess.run(["cp", "--archive", nodes[rank], tmp_path / "machine"], check=True)
        return Tree(tmp_path / "machine")

    return copied


@pytest.mark.parametrize("rank", RANKS)
def test_a_healthy_machine_is_good(
    copy_node: Callable[[int], Tree], rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run_preflight(copy_node(rank), capsys)
    assert {name: one["level"] for name, one in findings(shown).items()} == dict.fromkeys(IDS, "ok")
    for name, one in findings(shown).items():
        compare(f"healthy-{shown['role']}/{name}", one)


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in FAULTS])
def test_a_fault_is_found(copy_node: Callable[[int], Tree], fault: Fault, capsys: pytest.CaptureFixture[str]) -> None:
    if fault.of_root and os.getuid() != 0:
        pytest.skip("its files are root's")
    tree = copy_node(fault.rank)
    fault.cause(tree)
    shown = run_preflight(tree, capsys)
    shown.pop("owner")  # the same on all of them
    reported = findings(shown)
    judged = reported.pop(fault.check)
    assert judged["level"] == fault.level.value
    assert fault.says in f"{judged['reason']} {judged['hint']}"
    others = {name: other["level"] for name, other in reported.items() if name not in fault.also}
    assert others == dict.fromkeys(others, "ok"), "a check that has nothing to do with it"
    (judging,) = (check for check in CHECKS if check.id == fault.check)
    assert fault.level is Level.UNKNOWN or fault.level in judging.levels, "docs/sparkd-checks.7.md says otherwise"
    compare(
        fault.name, {**shown, "checks": [judged, *(other for other in reported.values() if other["level"] != "ok")]}
    )


def test_every_check_finds_a_fault() -> None:
    assert {fault.check for fault in FAULTS} == set(IDS)


def test_every_golden_answer_is_of_a_machine() -> None:
    names = {f"healthy-{role}/{check_id}" for role in ("head", "worker") for check_id in IDS}
    names |= {fault.name for fault in FAULTS}
    assert {str(path.relative_to(GOLDEN).with_suffix("")) for path in GOLDEN.rglob("*.json")} == names
