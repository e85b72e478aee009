"""The text of a node's report: it is read as it was written, and never larger than its readers take."""

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.nodes import report
from tests.unit.verdicts import present

from sparkd.agent.cluster.peer_reader import parse_peer_report
from sparkd.base.status.bounds import ITEMS_LIMIT, TEXT_LIMIT
from sparkd.base.status.figures import EngineReport
from sparkd.base.status.model import (
    LIMIT_BYTES,
    PEER_LIMIT_BYTES,
    Contact,
    FindingReport,
    NodeReport,
    PeerStatus,
    dump,
    parse,
)


@pytest.mark.parametrize("node", ["spark1", "Zürich…\x1b", "\U0001f600"])
def test_a_text_is_read_as_it_was_written_except_half_a_surrogate_pair(node: str) -> None:
    odd = replace(HEAD_REPORT, node=node)
    assert parse(dump(odd)) == odd
    halved = present(parse(dump(replace(odd, node=f"{node}\udc00"))))
    assert halved.node.endswith("\\udc00")


@pytest.fixture(params=["a", '"', "\n", "\U0001f600", "\udc80"])
def endless(request: pytest.FixtureRequest) -> NodeReport:
    """A report whose texts and lists are longer than their limits."""
    text = request.param * 2 * TEXT_LIMIT
    return report(
        message=text,
        **dict.fromkeys(("node", "epoch", "incarnation", "version", "last_cause", "last_hint", "plan_digest"), text),
        versions={f"{number}{text}": text for number in range(ITEMS_LIMIT + 1)},
        findings=(FindingReport(text, text, text, text),) * (ITEMS_LIMIT + 1),
        engine=EngineReport(text, text, text),
    )


def test_the_largest_report_is_one_that_its_readers_and_peers_take(endless: NodeReport) -> None:
    sent = dump(endless).encode()
    assert len(sent) <= LIMIT_BYTES
    assert len(dump(present(parse_peer_report(sent, 1))).encode()) <= PEER_LIMIT_BYTES


def test_the_largest_report_of_eight_nodes_is_one_that_every_reader_takes(endless: NodeReport) -> None:
    received = present(parse_peer_report(dump(endless).encode(), 1))
    peers = tuple(PeerStatus("10.0.0.2", 1, Contact.ANSWERS, endless.since, received, "x" * 200) for _ in range(7))
    written = dump(replace(endless, peers=peers))
    assert len(written.encode()) <= LIMIT_BYTES
    read = present(parse(written))
    assert len(read.peers) == 7
    assert read.findings
