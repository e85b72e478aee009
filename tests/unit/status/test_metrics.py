"""The page that Prometheus reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.node_reports import ALONE, HEAD, NOW, PEER

from sparkd.status.metrics import LABEL_LIMIT, render
from sparkd.status.model import Contact, EngineReport, NodeReport, Phase


def page(report: NodeReport) -> list[str]:
    return render(report, NOW, 1767265000.5).splitlines()


def values(report: NodeReport) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of the page by its name and labels, as another program reads it."""
    families = text_string_to_metric_families(render(report, NOW, 1767265000.5))
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def test_the_figures_of_a_report() -> None:
    found = values(replace(ALONE, engine=EngineReport(progress=0.25, kv_cache_tokens=524288)))
    for name, labels, value in (
        ("sparkd_phase", {"phase": "serving"}, 1),
        ("sparkd_phase", {"phase": "loading"}, 0),
        ("sparkd_phase_seconds", {}, 200),
        ("sparkd_memory_total_bytes", {}, 128849018880),
        ("sparkd_engine_progress_ratio", {}, 0.25),
        ("sparkd_kv_cache_tokens", {}, 524288),
        ("sparkd_start_time_seconds", {}, 1767265000.5),
    ):
        assert found[name, frozenset(labels.items())] == value
    (info,) = [dict(labels) for name, labels in found if name == "sparkd_info"]
    names = {"version": "0.1.0", "node": "spark1", "role": "head", "rank": "0"}
    assert info == {**names, "address": ALONE.address, "plan_digest": ALONE.plan_digest}
    assert sum(name == "sparkd_phase" for name, _ in found) == len(Phase)


def test_what_is_not_known_is_left_out() -> None:
    known = "\n".join(page(replace(HEAD, engine=EngineReport(progress=0.25, kv_cache_tokens=1))))
    unknown = "\n".join(page(replace(ALONE, memory=None, since="?")))
    for name in ("memory", "engine_progress", "kv_cache", "phase_seconds", "peer"):
        assert f"sparkd_{name}" in known
        assert f"sparkd_{name}" not in unknown


@pytest.mark.parametrize("contact", list(Contact))
def test_a_peer_is_up_while_it_answers(contact: Contact) -> None:
    found = values(replace(HEAD, peers=(replace(PEER, contact=contact),)))
    peer = {("address", "10.0.0.2"), ("rank", "1")}
    assert found["sparkd_peer_up", frozenset(peer)] == (contact is Contact.ANSWERS)
    assert found["sparkd_peer_phase", frozenset({*peer, ("phase", "loading")})] == 1
    assert found["sparkd_peer_phase", frozenset({*peer, ("phase", "serving")})] == 0


def test_a_name_cannot_end_its_label() -> None:
    (line,) = [one for one in page(replace(ALONE, node='a"} 1\n\\')) if one.startswith("sparkd_info")]
    assert 'node="a\\"} 1\\n\\\\"' in line


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=2 * LABEL_LIMIT))
def test_every_name_is_read_back_whole_except_its_end_and_lone_surrogates(name: str) -> None:
    (shown,) = [dict(labels)["node"] for sample, labels in values(replace(ALONE, node=name)) if sample == "sparkd_info"]
    assert shown == name[:LABEL_LIMIT].encode("utf-8", "backslashreplace").decode()


def test_the_page_has_no_metrics_of_the_process_or_of_the_library() -> None:
    assert {name.partition("_")[0] for name, _ in values(HEAD)} == {"sparkd"}
