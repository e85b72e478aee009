"""Whose a container is, by its labels and the record of the rank: only an orphan is ever ended."""

import os

import pytest
from msgspec.structs import replace
from tests.unit.rank_records import rank_record

from sparkd.base.host.docker import ContainerFacts
from sparkd.base.host.owner import NodeOwner
from sparkd.base.state.container_owner import Whose, whose
from sparkd.base.state.rank_record import KnownRank, RankStage

ID, OTHER_ID = "a" * 64, "b" * 64
STARTED = rank_record(container_id=ID, pid=60, start_time=100)
AGENT, NEXT = NodeOwner(50, "sparkd run --role head", "agent"), NodeOwner(51, "sparkd run --role head", "next")
SELF = replace(AGENT, pid=os.getpid())
NOBODY, NAMELESS = None, NodeOwner(0, "", "")
BY_HAND = NodeOwner(52, "sparkd preflight", "by hand")
NONE, BROKEN = KnownRank(), KnownRank(error="rank.json can't be read: it is no object of schema 1")
KNOWN = KnownRank(STARTED, alive=True)
ENDED = KnownRank(replace(STARTED, stage=RankStage.ENDING))
STAYS = KnownRank(replace(STARTED, stage=RankStage.READY), alive=True, guarded=True)


def container(invocation: str = "agent", rank_id: str = "rank", full_id: str = ID, pid: int = 60) -> ContainerFacts:
    labels = {"io.sparkd.role": "head", "io.sparkd.invocation": invocation, "io.sparkd.rank-id": rank_id}
    pairs = tuple((key, value) for key, value in labels.items() if value)
    return ContainerFacts(full_id, "sparkd-rank0", pairs, pid > 0, pid, "sha256:1", "no")


def known(alive: bool = True, **changes: object) -> KnownRank:
    return KnownRank(replace(STARTED, **changes), alive)


@pytest.mark.parametrize(
    ("made", "owner", "record", "expected"),
    [
        pytest.param(container(), AGENT, KNOWN, Whose.OWNERS, id="recorded"),
        pytest.param(container(), AGENT, known(container_id="", pid=0), Whose.OWNERS, id="not started by the record"),
        pytest.param(container(pid=0), AGENT, known(alive=False), Whose.OWNERS, id="ended, and not removed yet"),
        pytest.param(container("before"), AGENT, KNOWN, Whose.OWNERS, id="taken over"),
        pytest.param(container(), NEXT, KNOWN, Whose.ORPHAN, id="the agent that has it is gone"),
        pytest.param(container(), NOBODY, KNOWN, Whose.ORPHAN, id="nobody owns the node"),
        pytest.param(container(), NAMELESS, KNOWN, Whose.UNKNOWN, id="the owner is not known"),
        # It serves, and its agent has crashed.
        pytest.param(container(), NOBODY, STAYS, Whose.LEFT, id="left for the next agent"),
        pytest.param(container(), BY_HAND, STAYS, Whose.LEFT, id="beside a command of a person's"),
        pytest.param(container(), NEXT, STAYS, Whose.LEFT, id="the next agent has begun"),
        pytest.param(container(full_id=OTHER_ID), BY_HAND, STAYS, Whose.ORPHAN, id="a copy of it"),
        pytest.param(container(), BY_HAND, KNOWN, Whose.ORPHAN, id="one that loads, beside a person's command"),
        # Labels can be copied.
        pytest.param(container(full_id=OTHER_ID), AGENT, KNOWN, Whose.UNKNOWN, id="both labels copied"),
        pytest.param(container("x", full_id=OTHER_ID), AGENT, KNOWN, Whose.UNKNOWN, id="the rank's label copied"),
        pytest.param(container(rank_id="x", full_id=OTHER_ID), AGENT, KNOWN, Whose.UNKNOWN, id="a rank unheard of"),
        pytest.param(container("x", "y", OTHER_ID), AGENT, KNOWN, Whose.ORPHAN, id="of another agent and rank"),
        pytest.param(container(pid=70), AGENT, KNOWN, Whose.UNKNOWN, id="started again by hand"),
        pytest.param(container(), AGENT, known(alive=False), Whose.UNKNOWN, id="its pid is another process"),
        # Without a record, as it was before there were any.
        pytest.param(container(), AGENT, NONE, Whose.OWNERS, id="no record"),
        pytest.param(container("before"), AGENT, NONE, Whose.ORPHAN, id="no record, of another agent"),
        pytest.param(container(), AGENT, BROKEN, Whose.OWNERS, id="a broken record"),
        pytest.param(container("before"), AGENT, BROKEN, Whose.UNKNOWN, id="a broken record, made by another agent"),
        pytest.param(container("before"), NOBODY, BROKEN, Whose.ORPHAN, id="a broken record that nobody needs"),
        # Of an earlier version, and one that is no rank's.
        pytest.param(container(rank_id=""), AGENT, KNOWN, Whose.OWNERS, id="an earlier version's"),
        pytest.param(container(rank_id="", pid=0), AGENT, NONE, Whose.OWNERS, id="of a check, beside another process"),
        pytest.param(container(rank_id="", pid=0), SELF, NONE, Whose.ORPHAN, id="of a check that docker broke off"),
        pytest.param(container(rank_id=""), SELF, NONE, Whose.OWNERS, id="of a check that goes to its end"),
        pytest.param(container(pid=0), SELF, ENDED, Whose.ORPHAN, id="a rank of its own that docker kept"),
        pytest.param(container(pid=0), AGENT, ENDED, Whose.OWNERS, id="a rank that its agent ends"),
        pytest.param(container(pid=0), SELF, known(alive=False), Whose.OWNERS, id="a rank of its own that starts"),
        pytest.param(container("before", ""), AGENT, KNOWN, Whose.ORPHAN, id="an earlier version's orphan"),
        pytest.param(container("before", ""), AGENT, BROKEN, Whose.ORPHAN, id="beside a broken record"),
        pytest.param(container("before", ""), NAMELESS, NONE, Whose.UNKNOWN, id="an earlier version's, no owner known"),
        pytest.param(container("before", ""), AGENT, known(rank_id=""), Whose.ORPHAN, id="a record without a rank"),
    ],
)
def test_whose_a_container_is(
    made: ContainerFacts, owner: NodeOwner | None, record: KnownRank, expected: Whose
) -> None:
    assert whose(made, owner, record) is expected
