from __future__ import annotations

import pytest
from tests.unit.rank_records import rank_record

from sparkd.base.host.docker import ContainerFacts
from sparkd.base.host.owner import NodeOwner
from sparkd.base.state.rank_record import KnownRank
from sparkd.tools.node.sweep import find_orphans

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
    found = find_orphans(ALL, holder, KnownRank(), invocation, role)
    assert [one.name.removeprefix("sparkd-rank") for one in found] == orphans


@pytest.mark.parametrize(
    ("holder", "owner", "invocation", "swept"),
    [
        pytest.param(OTHERS, OTHERS, "", False, id="the owner has taken it over"),
        pytest.param(OTHERS, OTHERS, MINE, False, id="after the end of the agent that made it, too"),
        pytest.param(OTHERS, None, MINE, False, id="another agent has just ended"),
        pytest.param(OTHERS, None, OTHERS, True, id="the agent that has just ended had it"),
        pytest.param(MINE, OTHERS, "", True, id="its agent is gone"),
    ],
)
def test_a_rank_is_swept_after_the_agent_that_has_it_by_the_record(
    holder: str, owner: str | None, invocation: str, swept: bool
) -> None:
    made = ContainerFacts("c", "sparkd-rank0", (*ours("", MINE).labels, ("io.sparkd.rank-id", "rank")), True, 7, "", "")
    record = rank_record(rank_id="rank", invocation=holder, container_id="c", pid=7)
    owns = None if owner is None else NodeOwner(7, "sparkd run", owner)
    assert find_orphans((made,), owns, KnownRank(record, alive=True), invocation, None) == (made,) * swept
