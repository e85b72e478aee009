"""`sparkd preflight` as a program, on a machine made of files."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.audited import ACTING_MODULES
from tests.unit.commands import sparkd
from tests.unit.preflight.nodes import faulty, healthy

from sparkd.agent.preflight.runner import IDS

REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True)
class AuditedRun:
    code: int
    out: str
    err: str
    offences: tuple[str, ...]


def run_audited(tmp_path: Path, *arguments: str, **env: str) -> AuditedRun:
    report = tmp_path / "offences"
    report.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-B", "-m", "tests.unit.audited", str(report), *arguments],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "src", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return AuditedRun(done.returncode, done.stdout, done.stderr, tuple(report.read_text().splitlines()))


def snapshot(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    entries = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        entries[str(path)] = (facts.st_mode, facts.st_mtime_ns, facts.st_ctime_ns, content)
    return entries


def test_a_healthy_node_is_good(tree: Tree, tmp_path: Path) -> None:
    healthy(tree)
    done = run_audited(tmp_path, "preflight", "--root", str(tree.root))
    assert done.code == 0, done.err
    assert done.out.endswith("spark1 (head): ok (34 ok)\nnext: nothing is to be done\n")


def test_a_dry_run_of_a_faulty_node_shows_what_would_be_done_and_changes_nothing(tree: Tree, tmp_path: Path) -> None:
    faulty(tree)
    before = snapshot(tree.root)
    done = run_audited(tmp_path, "preflight", "--dry-run", "--json", "--root", str(tree.root))
    assert snapshot(tree.root) == before
    assert done.offences == ()
    assert done.code == 10
    report = json.loads(done.out)
    assert report["dry_run"] is True
    assert report["verdict"] == "block"
    states = {fix["kind"]: fix["state"] for check in report["checks"] for fix in check["fixes"]}
    assert states["end-process"] == states["drop-page-cache"] == "would apply"
    if os.getuid() == 0:
        assert states["unlink-segment"] == "would apply"
        assert report["hooks"] == ["/etc/sparkd/preflight.d/10-site"]


def test_the_audit_sees_what_changes_the_machine(tmp_path: Path) -> None:
    done = run_audited(tmp_path, "write-a-file", str(tmp_path / "x"))
    assert len(done.offences) == 1
    assert done.offences[0].startswith("open")


def test_the_audit_names_modules_that_exist() -> None:
    assert all(find_spec(module) for module in ACTING_MODULES)


def test_the_root_may_be_named_relative_to_here_and_is_never_left(tree: Tree) -> None:
    healthy(tree)
    tree.link("/srv/other", str(REPOSITORY))
    tree.file("/etc/sparkd/sparkd.toml", '[engine]\nrecipe = "tiny-cpu"\nmodels_dir = "/srv/other"\n')
    done = sparkd("preflight", "--root", os.path.relpath(tree.root))
    assert done.returncode == 10
    assert "/srv/other/tiny does not exist" in done.stdout


@pytest.mark.parametrize("dry", [("--dry-run",), ("--root", "/tmp")])  # read, and refused
def test_a_dry_run_ends_nothing_for_a_person_either(dry: tuple[str, ...]) -> None:
    done = sparkd("preflight", "--fix", "1", *dry)
    assert done.returncode == 2
    assert "sparkd preflight --fix 1" in done.stderr


def test_settings_of_this_process_are_not_the_trees(tree: Tree) -> None:
    healthy(tree)
    done = sparkd("preflight", "--root", str(tree.root), SPARKD_ENGINE__RECIPE="no-such-recipe")
    assert done.returncode == 0, done.stderr


def test_the_wrong_role_ends_with_78(tree: Tree) -> None:
    healthy(tree)
    assert sparkd("preflight", "--root", str(tree.root), "--role", "worker").returncode == 78


def test_a_check_explains_itself_without_any_configuration() -> None:
    done = sparkd("preflight", "--explain", "shared-memory")
    assert done.returncode == 0
    assert done.stdout.startswith("shared-memory\n\nvLLM's processes talk through segments")
    listed = sparkd("preflight", "--explain").stdout.splitlines()
    assert "shared-memory" in listed
    assert listed[-1] == "next: sparkd preflight --explain ID"
    done = sparkd("preflight", "--explain", "shard-memory")
    assert done.returncode == 2
    assert "did you mean shared-memory" in done.stderr


def test_a_name_from_outside_cannot_break_the_terminal_or_the_json(tree: Tree) -> None:
    healthy(tree)
    tree.process(50, "a\x1b[2J", opened=("socket:[5]",))
    tree.listening((8000, 5))
    done = sparkd("preflight", "--root", str(tree.root))
    assert "\x1b" not in done.stdout
    assert "pid 50 (a\\x1b[2J)" in done.stdout


NEEDS_NO_PLAN = {
    *("disk", "kernel", "kernel-log", "gpu", "docker", "stray-workers", "foreign-units", "shared-memory"),
    *("script-paths", "page-cache", "unified-memory", "other-tenants", "swap", "memory-fragmented", "fabric-link"),
}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[engine\n", "/etc/sparkd/sparkd.toml"),
        ('[engine]\nrecipe = "tiny-cpi"\n', "did you mean tiny-cpu"),
        ('[cluster]\nnodes = ["10.9.9.1", "10.9.9.2"]\n', "addresses"),
        ('[preflight]\nskip = ["page-cash"]\n', "did you mean page-cache"),
        ("", "this node is not set up"),
    ],
    ids=["toml", "recipe", "address", "check id", "nothing configured"],
)
def test_a_dry_run_examines_the_node_whatever_the_configuration(tree: Tree, text: str, reason: str) -> None:
    faulty(tree)
    tree.file("/etc/sparkd/sparkd.toml", text)
    as_json = sparkd("preflight", "--dry-run", "--json", "--root", str(tree.root))
    assert as_json.returncode == 78, as_json.stderr
    report = json.loads(as_json.stdout)
    checks = {check["id"]: check for check in report["checks"]}
    assert report["verdict"] == "block"
    assert set(checks) == {"configuration", *IDS}
    assert reason in checks["configuration"]["reason"]
    assert {name for name, check in checks.items() if check["level"] != "skipped"} >= NEEDS_NO_PLAN
    assert checks["weights"]["level"] == "skipped"
    assert checks["stray-workers"]["fixes"][0]["state"] == "held back"
    shown = sparkd("preflight", "--dry-run", "--root", str(tree.root)).stdout.splitlines()
    assert shown[0].split()[:2] == ["BLOCK", "configuration"]
    assert shown[-1] == f"next: {checks['configuration']['hint']}"


def test_a_root_that_is_no_folder_is_refused(tree: Tree) -> None:
    tree.file("/there", "")
    for path in ("there", "nowhere"):
        done = sparkd("preflight", "--root", str(tree.root / path))
        assert done.returncode == 2
        assert "is no folder" in done.stderr
