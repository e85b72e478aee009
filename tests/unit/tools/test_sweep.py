"""Which containers of sparkd are swept, and which rank is left to the next agent."""

import pytest
from tests.tree import Tree
from tests.unit.rank_records import rank_record
from tests.unit.traffic_programs import Programs

from sparkd.base.host import Host
from sparkd.base.host.docker import ContainerFacts
from sparkd.base.host.owner import NodeOwner
from sparkd.base.state.rank_record import GUARD, RANK_FILE, KnownRank, RankStage
from sparkd.tools.node.sweep import find_orphans, is_left

MINE, OTHERS, OLD = "a" * 32, "b" * 32, "c" * 32


def container(name: str, *labels: tuple[str, str]) -> ContainerFacts:
    return ContainerFacts(name * 8, name, labels, True, 10, "sha256:i", "no")


def ours(name: str, invocation: str, role: str = "head") -> ContainerFacts:
    return container(name, ("io.sparkd.role", role), ("io.sparkd.invocation", invocation))


ALL = (
    ours("sparkd-rank0", MINE),
    ours("sparkd-rank1", OTHERS),
    ours("sparkd-rank2", OLD, "worker"),
    container("sparkd-rank3"),
    container("sparkd-rank4", ("role", "head")),
    ours("made-from-a-committed-image", OLD),
)


@pytest.mark.parametrize(
    ("owner", "invocation", "role", "orphans"),
    [
        (None, MINE, None, ["0"]),
        (None, "", None, ["0", "1", "2"]),
        (OTHERS, MINE, None, ["0"]),
        (OTHERS, "", None, ["0", "2"]),
        (MINE, MINE, None, []),
        (None, "", "worker", ["2"]),
        ("", "", None, []),
    ],
)
def test_only_containers_of_sparkds_whose_owner_is_gone_are_orphans(
    owner: str | None, invocation: str, role: str | None, orphans: list[str]
) -> None:
    """An owner without an invocation is unknown: any container might be its own."""
    holder = None if owner is None else NodeOwner(7, "sparkd run", owner)
    names = [orphan.name for orphan in find_orphans(ALL, holder, KnownRank(), invocation, role)]
    assert names == [f"sparkd-rank{number}" for number in orphans]


@pytest.mark.parametrize(
    ("recorded", "running", "ended", "swept"),
    [
        pytest.param(OTHERS, OTHERS, "", False, id="another agent has taken it over"),
        pytest.param(OTHERS, OTHERS, MINE, False, id="after the end of the agent that made it, too"),
        pytest.param(OTHERS, None, MINE, False, id="the agent that made it has just ended, and had it no more"),
        pytest.param(OTHERS, None, OTHERS, True, id="the agent that has just ended had it"),
        pytest.param(MINE, OTHERS, "", True, id="its agent is gone"),
    ],
)
def test_a_rank_is_swept_once_the_agent_that_its_record_names_is_gone_not_the_one_on_its_label(
    recorded: str, running: str | None, ended: str, swept: bool
) -> None:
    """Each is an invocation: by the record, of the agent that runs, and of the one after whose end this is called."""
    labels = (*ours("", MINE).labels, ("io.sparkd.rank-id", "rank"))
    rank = ContainerFacts("c", "sparkd-rank0", labels, True, 7, "", "")
    known = KnownRank(rank_record(rank_id="rank", invocation=recorded, container_id="c", pid=7), alive=True)
    owner = None if running is None else NodeOwner(7, "sparkd run", running)
    assert find_orphans((rank,), owner, known, ended, None) == ((rank,) if swept else ())


@pytest.mark.parametrize(
    ("invocation", "role", "swept"),
    [
        pytest.param("", None, False, id="by hand"),
        pytest.param("", "head", False, id="by hand, of its role"),
        pytest.param(MINE, None, True, id="its own agent's end"),
        pytest.param(OTHERS, None, False, id="of a unit that names no role"),
        pytest.param(OTHERS, "worker", False, id="another role's"),
        pytest.param(OTHERS, "head", True, id="the next agent's, which had not yet taken it over"),
    ],
)
def test_a_rank_that_another_agent_is_expected_for_is_ended_after_an_agent_of_its_role_alone(
    invocation: str, role: str | None, swept: bool
) -> None:
    rank = ContainerFacts("c", "sparkd-rank0", (*ours("", MINE).labels, ("io.sparkd.rank-id", "rank")), True, 7, "", "")
    record = rank_record(rank_id="rank", invocation=MINE, container_id="c", pid=7, stage=RankStage.READY)
    known = KnownRank(record, alive=True, guarded=True)
    for owner in (None, NodeOwner(9, "sparkd preflight", "d" * 32)):
        assert find_orphans((rank,), owner, known, invocation, role) == ((rank,) if swept else ())


CRASHED = {"SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}
FAILED = {"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "1"}


@pytest.fixture
def left(tree: Tree) -> Tree:
    """A node whose agent of MINE has just ended, with a rank that serves."""
    tree.file("/proc/sys/kernel/random/boot_id", "b1\n")
    tree.process(400, "bash", start_time=9)
    tree.process(410, "sparkd-guard")
    tree.file(GUARD, "0 400 9 77 88 410 100")
    served = {"stage": RankStage.READY, "container_id": "c", "pid": 400, "start_time": 9}
    record = rank_record(invocation=MINE, boot_id="b1", role="head", **served)
    tree.file(RANK_FILE.path, RANK_FILE.encode(record))
    return tree


@pytest.mark.parametrize(
    ("env", "jobs", "expected"),
    [
        (CRASHED, "", True),
        (CRASHED, "No jobs running.", True),
        ({**CRASHED, "SERVICE_RESULT": "core-dump"}, "", True),
        ({**CRASHED, "SERVICE_RESULT": "watchdog"}, "", True),
        ({**CRASHED, "SERVICE_RESULT": "oom-kill"}, "", True),
        (FAILED, "", True),
        ({**FAILED, "EXIT_STATUS": "10"}, "", True),
        ({**FAILED, "EXIT_STATUS": "13"}, "", False),
        ({**CRASHED, "SERVICE_RESULT": "success"}, "", False),
        ({**CRASHED, "SERVICE_RESULT": "timeout"}, "", False),
        ({}, "", False),
        (CRASHED, "12 sparkd-head.service start waiting", True),
        (CRASHED, "12 sparkd-head.service stop running", False),
        *((CRASHED, jobs, False) for jobs in ("12 sparkd-head.service restart waiting", "12 what is this", None)),
    ],
)
def test_a_rank_is_left_to_the_next_agent_after_a_crash_alone_and_where_no_stop_is_ordered(
    left: Tree, programs: Programs, env: dict[str, str], jobs: str | None, expected: bool
) -> None:
    """`jobs`: what systemctl lists; None where it fails."""
    programs.write("systemctl", f"echo '{jobs}'" if jobs is not None else "exit 1")
    assert is_left(Host(left.root), "head", env) is expected
    assert not is_left(Host(left.root), "worker", env)
    assert not is_left(Host(left.root), None, env)


def test_a_rank_that_no_guard_has_is_not_left(left: Tree, programs: Programs) -> None:
    programs.write("systemctl", "exit 0")
    assert is_left(Host(left.root), "head", CRASHED)
    left.file(GUARD, "")
    assert not is_left(Host(left.root), "head", CRASHED)
