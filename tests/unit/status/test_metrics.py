"""What the page for Prometheus has of reports of several conditions."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.unit import page_reports

from sparkd.agent.status.metrics import METRICS, OTHER, render_metrics
from sparkd.base.lib.errors import Cause
from sparkd.base.status.bounds import ITEMS_LIMIT
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport, HealthReport
from sparkd.base.status.model import GUARD_STATES, FindingReport, MemoryReport, NodeReport, Phase, RestartReport

Sample = tuple[str, frozenset[tuple[str, str]]]


def values(report: NodeReport) -> dict[Sample, float]:
    page = render_metrics(report, datetime.now(UTC))[0]
    samples = [one for family in text_string_to_metric_families(page) for one in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    assert len(found) == len(samples), "Prometheus refuses a page that has a series twice"
    return found


def test_what_a_serving_head_does() -> None:
    found = values(page_reports.serving())
    peer = {"address": "10.0.0.2", "rank": "1"}
    for name, labels, value in (
        ("requests_running", {}, 6),
        ("output_tokens_per_second", {}, 96.4),
        ("kv_cache_used_ratio", {}, 0.41),
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
        ("peer_contact", {**peer, "contact": "answers"}, 1),
        ("peer_contact", {**peer, "contact": "silent"}, 0),
    ):
        assert found[f"sparkd_{name}", frozenset(labels.items())] == value


@pytest.mark.parametrize("name", ["serving", "loading", "broken", "hostile"])
def test_labels_of_closed_sets_take_no_value_from_outside(name: str) -> None:
    report = getattr(page_reports, name)()
    report = replace(report, restarts=(RestartReport("\n{} x", 3, page_reports.ago(5), ""), *report.restarts))
    found = values(report)
    labels = [dict(labels) for _, labels in found]
    assert {one["cause"] for one in labels if "cause" in one} <= {*map(str, Cause), OTHER}
    assert {one["phase"] for one in labels if "phase" in one} <= {one.value for one in Phase}
    assert {one["state"] for one in labels if "state" in one} <= set(GUARD_STATES)
    assert {one["level"] for one in labels if "level" in one} <= {"ok", "warn", "block", "unknown", "skipped", OTHER}
    assert found["sparkd_restarts_last_day", frozenset({("cause", OTHER), ("action", "")})] == 3


def test_without_a_history_there_are_no_totals() -> None:
    names = {name for name, _ in values(page_reports.loading())}
    assert not names & {"sparkd_launches_total", "sparkd_ends_total"}


def test_the_present_phase_counts_into_the_time_of_its_name() -> None:
    report = replace(page_reports.serving(), since=page_reports.ago(20), phase_seconds={"serving": 5.0})
    found = values(report)["sparkd_phase_time_seconds_total", frozenset({("phase", "serving")})]
    assert found == pytest.approx(25, abs=2)


def test_the_cause_of_an_end_is_there_on_the_node_and_on_the_others() -> None:
    report = replace(page_reports.serving(), phase=Phase.FAILED, cause="needs-person", action="reboot")
    assert values(report)["sparkd_failed", frozenset({("cause", "needs-person"), ("action", "reboot")})] == 1
    there = values(page_reports.pair(page_reports.serving(), replace(report, cause="from a later version", action="x")))
    labels = {("address", "10.0.0.2"), ("rank", "1"), ("cause", OTHER), ("action", OTHER)}
    assert there["sparkd_peer_failed", frozenset(labels)] == 1
    assert "sparkd_failed" not in {name for name, _ in there}


def test_what_a_blocked_node_requires_is_there_for_it_and_for_each_finding() -> None:
    finding = FindingReport("gpu", "block", "", "", "reboot")
    found = values(replace(page_reports.serving(), phase=Phase.BLOCKED, action="reboot", findings=(finding,)))
    assert found["sparkd_blocked", frozenset({("action", "reboot")})] == 1
    assert found["sparkd_findings", frozenset({("id", "gpu"), ("level", "block"), ("action", "reboot")})] == 1
    assert "sparkd_blocked" not in {name for name, _ in values(page_reports.serving())}


def test_there_are_no_more_findings_than_a_report_of_another_node_may_have() -> None:
    many = tuple(FindingReport(f"hook-{number}", "warn", "", "") for number in range(1000))
    found = values(replace(page_reports.serving(), findings=many))
    assert sum(name == "sparkd_findings" for name, _ in found) == ITEMS_LIMIT


def test_an_end_is_forgotten_after_a_day() -> None:
    old = RestartReport("memory-guard", 2, page_reports.ago(25 * 3600), "")
    assert "sparkd_restarts_last_day" not in {
        name for name, _ in values(replace(page_reports.serving(), restarts=(old,)))
    }


def test_the_table_names_fields_of_the_report_and_all_states_of_the_guard() -> None:
    reports = (MemoryReport, EngineReport, ActivityReport, HealthReport, GpuReport)
    parts = {report.__name__.removesuffix("Report").lower(): report for report in reports}
    assert list(METRICS) == list(parts)
    for part, report in parts.items():
        assert METRICS[part].keys() <= {*report.__struct_fields__}
    assert METRICS["memory"]["guard"].states == GUARD_STATES
