"""`sparkd preflight --root TREE --json` on healthy machines and on ill ones, against what it said before.

SPARKD_GOLDEN=write writes what it says now into golden/, to be read as a diff.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.machines.areas import ILLNESSES, healthy
from tests.machines.illness import Illness
from tests.tree import Tree

from sparkd import cli
from sparkd.preflight.catalogue import CHECKS, IDS
from sparkd.preflight.check import Level

GOLDEN = Path(__file__).parent / "golden"
RANKS = (0, 1)
VARIES = frozenset({"seconds", "age_seconds", "device", "own_device", "inode", "uid", "gid"})
"""Keys whose values are this run's, or this machine's, own."""
Findings = dict[str, dict[str, object]]


def looked(tree: Tree, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    cli.main(["preflight", "--root", str(tree.root), "--json"])
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


def compared(name: str, shown: dict[str, object]) -> None:
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
def like(tmp_path: Path, nodes: tuple[Path, ...]) -> Callable[[int], Tree]:
    """A copy of a healthy node, to fall ill: by rank."""

    def copied(rank: int) -> Tree:
        subprocess.run(["cp", "--archive", nodes[rank], tmp_path / "machine"], check=True)
        return Tree(tmp_path / "machine")

    return copied


@pytest.mark.parametrize("rank", RANKS)
def test_a_healthy_machine_is_good(like: Callable[[int], Tree], rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    shown = looked(like(rank), capsys)
    assert {name: one["level"] for name, one in findings(shown).items()} == dict.fromkeys(IDS, "ok")
    for name, one in findings(shown).items():
        compared(f"healthy-{shown['role']}/{name}", one)


@pytest.mark.parametrize("illness", [pytest.param(one, id=one.name) for one in ILLNESSES])
def test_an_illness_is_seen(like: Callable[[int], Tree], illness: Illness, capsys: pytest.CaptureFixture[str]) -> None:
    if illness.of_root and os.getuid() != 0:
        pytest.skip("its files are root's")
    tree = like(illness.rank)
    illness.cause(tree)
    shown = looked(tree, capsys)
    found = findings(shown)
    seen = found.pop(illness.check)
    assert seen["level"] == illness.level.value
    assert illness.says in f"{seen['reason']} {seen['hint']}"
    others = {name: one["level"] for name, one in found.items() if name not in illness.also}
    assert others == dict.fromkeys(others, "ok"), "a check that has nothing to do with it"
    (judging,) = (check for check in CHECKS if check.id == illness.check)
    assert illness.level is Level.UNKNOWN or illness.level in judging.about.levels, "docs/checks.md says otherwise"
    compared(illness.name, {**shown, "checks": [seen, *(one for one in found.values() if one["level"] != "ok")]})


def test_every_check_sees_an_illness() -> None:
    assert {illness.check for illness in ILLNESSES} == set(IDS)


def test_every_golden_answer_is_of_a_machine() -> None:
    names = {f"healthy-{role}/{check_id}" for role in ("head", "worker") for check_id in IDS}
    names |= {illness.name for illness in ILLNESSES}
    assert {str(path.relative_to(GOLDEN).with_suffix("")) for path in GOLDEN.rglob("*.json")} == names
