"""What the page for Prometheus has of a report, and how Prometheus reads it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.unit import page_reports
from tests.unit.node_reports import ALONE, HEAD_REPORT, NOW, PEER
from tests.unit.verdicts import present

from sparkd.agent.engine.memory_guard.guard import GuardState
from sparkd.agent.status.metrics import METRICS, OTHER, render_metrics
from sparkd.base.lib.errors import Cause
from sparkd.base.status.bounds import ITEMS_LIMIT
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport, HealthReport
from sparkd.base.status.model import (
    Contact,
    FindingReport,
    MemoryReport,
    NodeReport,
    Phase,
    RestartReport,
)

Sample = tuple[str, frozenset[tuple[str, str]]]


def samples(report: NodeReport) -> dict[Sample, float]:
    """Values by name and labels, as Prometheus reads them."""
    page = render_metrics(report, datetime.now(UTC))[0]
    lines = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in lines}
    assert len(values) == len(lines), "Prometheus refuses a page that has a series twice"
    return values


PEER_LABELS = {"address": "10.0.0.2", "rank": "1"}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("phase", {"phase": "serving"}, 1),
        ("phase", {"phase": "loading"}, 0),
        ("requests_running", {}, 6),
        ("output_tokens_per_second", {}, 96.4),
        ("kv_cache_used_ratio", {}, 0.41),
        ("kv_cache_tokens", {}, 524288),
        ("engine_progress_ratio", {}, 0.25),
        ("gpu_clock_hertz", {}, 2.41e9),
        ("gpu_busy_ratio", {}, 0.94),
        ("findings", {"id": "page-cache", "level": "warn", "action": ""}, 1),
        ("restarts_last_day", {"cause": "peer-lost", "action": "none"}, 1),
        ("launches_total", {}, 12),
        ("ends_total", {"cause": "memory-guard", "action": "none"}, 1),
        ("ends_total", {"cause": "bug", "action": "none"}, 0),
        ("memory_floor_bytes", {}, 512 << 20),
        ("memory_guard", {"state": "watching"}, 1),
        ("memory_guard", {"state": "failed"}, 0),
        ("page_cache_released_bytes_total", {}, 0),
        ("phase_time_seconds_total", {"phase": "loading"}, 431),
        ("canary_seconds", {}, 0.412),
        ("canaries_total", {}, 8),
        ("canary_failures_total", {}, 1),
        ("smoke_passed", {}, 1),
        ("peer_contact", {**PEER_LABELS, "contact": "answers"}, 1),
        ("peer_contact", {**PEER_LABELS, "contact": "silent"}, 0),
    ],
)
def test_the_figures_of_a_serving_head(name: str, labels: dict[str, str], value: float) -> None:
    head = page_reports.serving()
    figures = samples(replace(head, engine=replace(head.engine, progress=0.25, kv_cache_tokens=524288)))
    assert figures[f"sparkd_{name}", frozenset(labels.items())] == value


def test_the_phase_is_one_of_all_and_lasts_since_the_report_says() -> None:
    figures = samples(page_reports.serving())
    phases = {dict(labels)["phase"] for name, labels in figures if name == "sparkd_phase"}
    assert phases == {phase.value for phase in Phase}
    assert figures["sparkd_phase_seconds", frozenset()] == pytest.approx(6 * 3600 + 2400, abs=60)


def test_the_memory_is_the_reports() -> None:
    report = page_reports.serving()
    assert samples(report)["sparkd_memory_total_bytes", frozenset()] == present(report.memory).total_bytes


@pytest.mark.parametrize(
    "make", [page_reports.serving, page_reports.loading, page_reports.broken, page_reports.hostile]
)
def test_labels_of_closed_sets_take_no_value_from_outside(make: Callable[[], NodeReport]) -> None:
    report = make()
    report = replace(report, restarts=(RestartReport("\n{} x", 3, page_reports.ago(5), ""), *report.restarts))
    figures = samples(report)
    labels = {label for _, labels in figures for label in labels}
    levels = {"ok", "warn", "block", "unknown", "skipped", OTHER}
    for name, allowed in (
        ("cause", {*map(str, Cause), OTHER}),
        ("phase", {phase.value for phase in Phase}),
        ("state", {*get_args(GuardState)}),
        ("level", levels),
    ):
        assert {value for label, value in labels if label == name} <= allowed
    assert figures["sparkd_restarts_last_day", frozenset({("cause", OTHER), ("action", "")})] == 3


def test_without_a_history_there_are_no_totals() -> None:
    names = {name for name, _ in samples(page_reports.loading())}
    assert not names & {"sparkd_launches_total", "sparkd_ends_total"}


def test_the_present_phase_counts_into_the_time_of_its_name() -> None:
    report = replace(page_reports.serving(), since=page_reports.ago(20), phase_seconds={"serving": 5.0})
    seconds = samples(report)["sparkd_phase_time_seconds_total", frozenset({("phase", "serving")})]
    assert seconds == pytest.approx(25, abs=2)


def test_the_cause_of_an_end_is_on_the_page_of_the_node_and_of_the_others() -> None:
    report = replace(page_reports.serving(), phase=Phase.FAILED, cause="needs-person", action="reboot")
    assert samples(report)["sparkd_failed", frozenset({("cause", "needs-person"), ("action", "reboot")})] == 1
    beside = samples(
        page_reports.pair(page_reports.serving(), replace(report, cause="from a later version", action="x"))
    )
    labels = {("address", "10.0.0.2"), ("rank", "1"), ("cause", OTHER), ("action", OTHER)}
    assert beside["sparkd_peer_failed", frozenset(labels)] == 1
    assert "sparkd_failed" not in {name for name, _ in beside}


def test_the_action_that_a_blocked_node_requires_is_shown_for_it_and_for_each_finding() -> None:
    finding = FindingReport("gpu", "block", "", "", "reboot")
    figures = samples(replace(page_reports.serving(), phase=Phase.BLOCKED, action="reboot", findings=(finding,)))
    assert figures["sparkd_blocked", frozenset({("action", "reboot")})] == 1
    assert figures["sparkd_findings", frozenset({("id", "gpu"), ("level", "block"), ("action", "reboot")})] == 1
    assert "sparkd_blocked" not in {name for name, _ in samples(page_reports.serving())}


def test_there_are_no_more_findings_than_a_report_of_another_node_may_have() -> None:
    many = tuple(FindingReport(f"hook-{number}", "warn", "", "") for number in range(1000))
    figures = samples(replace(page_reports.serving(), findings=many))
    assert sum(name == "sparkd_findings" for name, _ in figures) == ITEMS_LIMIT


def test_an_end_is_forgotten_after_a_day() -> None:
    old = RestartReport("memory-guard", 2, page_reports.ago(25 * 3600), "")
    assert "sparkd_restarts_last_day" not in {
        name for name, _ in samples(replace(page_reports.serving(), restarts=(old,)))
    }


def test_the_table_names_fields_of_the_report_and_all_states_of_the_guard() -> None:
    reports = (MemoryReport, EngineReport, ActivityReport, HealthReport, GpuReport)
    parts = {report.__name__.removesuffix("Report").lower(): report for report in reports}
    assert list(METRICS) == [*parts, "report"]
    assert all(metric.name == name for name, metric in METRICS["report"].items())
    for part, report in parts.items():
        assert METRICS[part].keys() <= {*report.__struct_fields__}
    assert METRICS["memory"]["guard"].states == get_args(GuardState)[1:], "all except that of a closed guard"


def test_metrics_say_when_the_agent_began() -> None:
    ticks = int((time.clock_gettime(time.CLOCK_BOOTTIME) - 10) * 100)
    began = samples(replace(ALONE, start_time=ticks))["sparkd_start_time_seconds", frozenset()]
    assert time.time() - began == pytest.approx(10, abs=2)


def page(report: NodeReport) -> str:
    return render_metrics(report, NOW)[0]


def test_the_page_names_the_node_and_its_plan() -> None:
    (labels,) = (dict(labels) for name, labels in samples(ALONE) if name == "sparkd_info")
    names = {"version": "0.1.0", "node": "spark1", "role": "head", "rank": "0"}
    assert labels == {**names, "address": ALONE.address, "plan_digest": ALONE.plan_digest}


def test_a_figure_that_is_not_known_is_left_out() -> None:
    known = page(replace(HEAD_REPORT, engine=EngineReport(progress=0.25, kv_cache_tokens=1)))
    unknown = page(replace(ALONE, memory=None, since="?"))
    for name in ("memory", "engine_progress", "kv_cache", "phase_seconds", "peer"):
        assert f"sparkd_{name}" in known
        assert f"sparkd_{name}" not in unknown


@pytest.mark.parametrize("contact", list(Contact))
def test_a_peer_is_up_while_it_answers(contact: Contact) -> None:
    figures = samples(replace(HEAD_REPORT, peers=(replace(PEER, contact=contact),)))
    peer = {("address", "10.0.0.2"), ("rank", "1")}
    assert figures["sparkd_peer_up", frozenset(peer)] == (contact is Contact.ANSWERS)
    assert figures["sparkd_peer_phase", frozenset({*peer, ("phase", "loading")})] == 1
    assert figures["sparkd_peer_phase", frozenset({*peer, ("phase", "serving")})] == 0


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=400))
def test_every_name_is_read_back_whole_except_its_end_and_lone_surrogates(name: str) -> None:
    (shown,) = (
        dict(labels)["node"] for family, labels in samples(replace(ALONE, node=name)) if family == "sparkd_info"
    )
    assert shown == name[:200].encode("utf-8", "backslashreplace").decode()


def test_the_page_has_no_metrics_of_the_process_or_of_the_library() -> None:
    assert {name.partition("_")[0] for name, _ in samples(HEAD_REPORT)} == {"sparkd"}
