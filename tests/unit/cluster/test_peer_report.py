"""What is kept of another node's signed report."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace
from tests.unit.nodes import report
from tests.unit.verdicts import present

from sparkd.agent.cluster.peer_reader import parse_peer_report
from sparkd.base.status.bounds import ITEMS_LIMIT, TEXT_LIMIT
from sparkd.base.status.figures import EngineReport
from sparkd.base.status.model import (
    Contact,
    FindingReport,
    MemoryReport,
    PeerStatus,
    dump,
)

FULL = report(
    message="loading 3/46",
    last_cause="boom (exit 13)",
    plan_digest="d" * 64,
    versions={"docker": "29.0"},
    findings=(FindingReport("ports", "block", "29501 is taken", "ss -ltnp"),),
    engine=EngineReport("c" * 64, "image", "loading", 0.5, 12.5, 1_000_000),
    memory=MemoryReport(128 << 30, 64 << 30),
    pid=12,
    start_time=3456,
)


def changed(**values: object) -> bytes:
    return json.dumps({**json.loads(dump(FULL)), **values}).encode()


def test_a_report_of_a_node_is_taken_as_it_was_sent() -> None:
    assert parse_peer_report(dump(FULL).encode(), 1) == FULL


def test_the_peers_that_a_peer_knows_are_left_out() -> None:
    known = PeerStatus("10.0.0.3", 2, Contact.ANSWERS, FULL.since, report(2))
    assert parse_peer_report(dump(replace(FULL, peers=(known,))).encode(), 1) == FULL


def find_texts(value: object) -> Iterator[str]:
    """Each text of a report, at any depth."""
    match value:
        case str():
            yield value
        case dict():
            yield from (text for item in value.items() for text in find_texts(item))
        case list() | tuple():
            yield from (text for part in value for text in find_texts(part))


@settings(deadline=None)
@given(st.one_of(st.text(), st.text().map(lambda text: text * 2000)))
def test_every_text_is_bounded_and_sanitized(text: str) -> None:
    words = ("node", "role", "since", "epoch", "incarnation", "version", "address", "plan_digest", "message")
    sent = changed(
        **dict.fromkeys((*words, "last_cause"), text),
        versions={text: text},
        findings=[dict.fromkeys(("id", "level", "reason", "hint"), text)],
        engine=dict.fromkeys(("container_id", "image", "phase"), text),
    )
    parsed = to_builtins(present(parse_peer_report(sent, 1)))
    assert all(kept.isprintable() and len(kept) <= TEXT_LIMIT for kept in find_texts(parsed))


def test_no_list_is_longer_than_any_node_needs() -> None:
    finding = {"id": "a", "level": "ok", "reason": "", "hint": ""}
    parsed = present(
        parse_peer_report(changed(findings=[finding] * 5000, versions={str(n): "1" for n in range(5000)}), 1)
    )
    assert len(parsed.findings) == ITEMS_LIMIT
    assert len(parsed.versions) == ITEMS_LIMIT


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "NaN", "1" + "0" * 4000, "1" + "0" * 5000, '"nan"', str(1 << 63)]
)
@pytest.mark.parametrize("field", ["pid", "progress", "seconds_left", "kv_cache_tokens", "total_bytes"])
def test_a_number_out_of_range_makes_no_report(field: str, number: str) -> None:
    document = json.loads(dump(FULL))
    for part in (document, document["engine"], document["memory"]):
        if field in part:
            part[field] = "PUT"
    assert parse_peer_report(json.dumps(document).replace('"PUT"', number).encode(), 1) is None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(changed(rank=2), id="another rank's"),
        pytest.param(changed(rank=None), id="no rank"),
        pytest.param(changed(rank="1.5"), id="half a rank"),
        pytest.param(changed(phase="dancing"), id="phase"),
        pytest.param(changed(schema=2), id="schema"),
        pytest.param(dump(FULL).encode()[:-9], id="cut"),
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="{"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="[]"),
        pytest.param(b"\xff" * 100, id="ff"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_a_text_that_is_no_report_of_this_rank_is_none(body: bytes) -> None:
    assert parse_peer_report(body, 1) is None


def test_no_nested_report_is_taken_however_deep() -> None:
    """Python 3.13 reads the first depth, and the peers are left out of it; 3.11 and 3.12 read neither."""
    head = dump(replace(FULL, peers=())).rstrip().removesuffix("}").rstrip().removesuffix('"peers": []').encode()
    peer = b'"peers": [{"address": "a", "rank": 1, "contact": "answers", "since": "s", "report": '
    for depth in (2000, 20_000):
        read = parse_peer_report((head + peer) * depth + b"null" + b"}]}" * depth, 1)
        assert read is None or read == replace(FULL, peers=())
