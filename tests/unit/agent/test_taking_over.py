"""Which rank the next agent takes over, and what it knows of it then."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.kept_ranks import kept_rank
from tests.unit.limits import files_left
from tests.unit.rank_records import rank_record

from sparkd.agent.daemon.kept_rank import FILE
from sparkd.agent.daemon.taking_over import (
    TAKEOVERS_ALLOWED,
    TAKEOVERS_WITHIN_SECONDS,
    AdoptableRank,
    find_adoptable_rank,
    first_report,
    open_rank,
)
from sparkd.base.host import Host
from sparkd.base.lib import recipes_dir
from sparkd.base.state.rank_record import GUARD, RANK_FILE, RankRecord, RankStage
from sparkd.base.status.model import NodeReport, Phase
from sparkd.tools.node.drill import foretell

BOOT, PID, BEGAN, GUARD_PID = "b1", 4000, 900, 4100
ALONE = ("tiny-cpu", "nemotron-3-super-nvfp4")
RECIPES = sorted(path.stem for path in recipes_dir().glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_kept_rank_is_read_as_it_was_written(recipe: str) -> None:
    kept = kept_rank(recipe, () if recipe in ALONE else ("10.0.0.1", "10.0.0.2"))
    assert FILE.decode(FILE.encode(kept).encode()) == kept


def test_a_version_that_knows_fewer_settings_can_read_a_kept_rank_unless_they_are_set() -> None:
    text = FILE.encode(kept_rank())
    assert "agent_return_seconds" not in text, "a default"
    with pytest.raises(ValueError, match="Settings"):
        FILE.decode(text.replace('"settings": {', '"settings": {"later": {"key": 1}, ').encode())


@pytest.fixture
def node(tree: Tree) -> Tree:
    """On which a rank serves, and no agent runs."""
    tree.file("/proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    tree.file("/proc/uptime", "5000.0 1.0\n")
    tree.process(PID, "bash", start_time=BEGAN)
    tree.process(GUARD_PID, "sparkd-guard")
    tree.file(GUARD, f"0 {PID} {BEGAN} 77 88 {GUARD_PID} 100")
    write_record(tree, record())
    tree.file(FILE.path, FILE.encode(kept_rank()))
    return tree


def record(**changes: object) -> RankRecord:
    served = {"boot_id": BOOT, "stage": RankStage.READY, "container_id": "c" * 64, "pid": PID, "start_time": BEGAN}
    return rank_record(**{**served, **changes})


def write_record(tree: Tree, record: RankRecord) -> None:
    tree.file(RANK_FILE.path, RANK_FILE.encode(record))


def find_rank(tree: Tree, role: str = "head") -> tuple[bool, list[str]]:
    """Whether there is a rank to take over, and why there is none."""
    refused = list[str]()
    return find_adoptable_rank(Host(tree.root), role, "new", refused.append) is not None, refused


def test_a_record_that_can_t_be_read_now_is_no_missing_one(node: Tree) -> None:
    with files_left(0), pytest.raises(OSError, match=r"rank\.json can't be read: Too many open files"):
        find_rank(node)


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": RankStage.STARTING},
        {"stage": RankStage.ENDING},
        {"boot_id": "another"},
        {"stage": RankStage.ENDING, "pid": 4001},
    ],
)
def test_a_rank_of_another_boot_or_one_that_did_not_serve_is_not_even_mentioned(
    node: Tree, changes: dict[str, object]
) -> None:
    write_record(node, record(**changes))
    assert find_rank(node) == (False, [])


@pytest.mark.parametrize("changes", [{"pid": 4001}, {"start_time": BEGAN + 1}])
def test_a_rank_that_served_and_has_ended_unseen_is_named(node: Tree, changes: dict[str, object]) -> None:
    """Nobody else says why its container is replaced."""
    write_record(node, record(**changes))
    assert find_rank(node) == (False, ["its engine has ended"])
    assert find_adoptable_rank(Host(node.root), "head", "agent", pytest.fail, handed=True), (
        "explained by the program after a reload"
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        *((GUARD, text) for text in ("", "junk", f"0 {PID} {BEGAN + 1} 77 88 {GUARD_PID} 100")),
        *((GUARD, text) for text in (f"0 {PID} {BEGAN} 77 88 {GUARD_PID} 101", f"0 {PID} {BEGAN} 77 88 1 0")),
    ],
)
def test_a_rank_that_no_guard_would_end_is_not_taken_over(node: Tree, path: str, text: str) -> None:
    node.file(path, text)
    assert find_rank(node) == (False, ["its memory guard has ended"])


def test_a_guard_of_an_earlier_build_writes_no_start_time_and_guards_as_well(node: Tree) -> None:
    node.file(GUARD, f"0 {PID} {BEGAN} 77 88 {GUARD_PID}")
    assert find_rank(node) == (True, [])


def test_a_rank_of_another_role_or_without_its_kept_values_is_refused_with_the_reason(node: Tree) -> None:
    assert find_rank(node, "worker") == (False, ["it is a head's"])
    node.file(FILE.path, FILE.encode(replace(kept_rank(), rank_id="another")))
    assert find_rank(node) == (False, [f"{FILE.path} is of another rank"])
    node.file(FILE.path, "{}")
    assert find_rank(node) == (False, [f"{FILE.path} can't be read: it is no object of schema 1"])
    os.unlink(node.root / FILE.path[1:])
    assert find_rank(node) == (False, [f"{FILE.path} is missing"])


def test_after_the_third_crash_in_ten_minutes_no_agent_takes_the_rank_over(node: Tree) -> None:
    write_record(node, record(taken_over=(5000 - TAKEOVERS_WITHIN_SECONDS - 1, 4999.0)))
    assert find_rank(node) == (True, [])
    write_record(node, record(taken_over=(4998.0, 4999.0)))
    objection = f"it outlives no more than {TAKEOVERS_ALLOWED} crashes of its agents within 10 minutes"
    assert find_rank(node) == (False, [objection])
    question = f"The engine ends with it: {objection}. The endpoint is gone for as long as a load takes."
    assert foretell("agent", Host(node.root), "head", None) == question, "so says a drill that kills the agent"


def test_a_drill_says_whether_the_engine_ends_with_the_agent(node: Tree) -> None:
    host, gone = Host(node.root), "The endpoint is gone for about 2 min, as the last load took."
    assert foretell("rank", host, "head", 120) == gone
    assert foretell("agent", host, "head", 120) == "The engine is to serve on."
    write_record(node, record(stage=RankStage.STARTING))
    unkept = "The engine ends with it: its rank is not kept for the next agent."
    assert foretell("agent", host, "head", 120) == f"{unkept} {gone}"


def test_a_process_is_opened_only_where_it_is_in_the_recorded_container() -> None:
    """This very process is in no container."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    own = record(pid=os.getpid(), start_time=int(stat[19]))
    adoptable = AdoptableRank(own, kept_rank(), None)
    before = len(os.listdir("/proc/self/fd"))
    assert open_rank(Host(), adoptable) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_first_report_has_what_the_agent_before_knew_of_the_rank() -> None:
    adoptable = AdoptableRank(record(epoch="e", transport="rdma"), kept_rank(), None)
    first = NodeReport("spark1", "head", 0, Phase.PREFLIGHT, "now", "", "new", "1.0")
    report = first_report(adoptable, first)
    assert report.phase is Phase.SERVING
    assert report.epoch == "e"
    assert report.transport == "rdma"
    assert report.plan_digest == "d" * 64
    assert report.rank_id == "rank"
    assert report.incarnation == "new"
    assert report.engine.container_id == "c" * 64
    assert report.engine.image == "sha256:i"
    kept_report = replace(report, incarnation="old", versions={"driver": "1"}, smoke_passed=True, message="it serves")
    merged = first_report(replace(adoptable, report=kept_report), first)
    assert merged.incarnation == "new"
    assert merged.versions == {"driver": "1"}
    assert merged.smoke_passed
