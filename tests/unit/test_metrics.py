"""The page that Prometheus reads."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from tests.unit.test_report_table import ALONE, HEAD, NOW, PEER

from sparkd.report.metrics import render
from sparkd.report.node_report import Contact, EngineReport, NodeReport, Phase

_SAMPLE = re.compile(
    r'sparkd_[a-z_]+(\{[a-z_]+="([^"\\\n]|\\[\\"n])*"(,[a-z_]+="([^"\\\n]|\\[\\"n])*")*\})? [0-9.e+-]+'
)


def page(report: NodeReport) -> list[str]:
    return render(report, NOW, 1767265000.5).splitlines()


def test_every_line_is_help_type_or_a_sample() -> None:
    for line in page(HEAD):
        assert line.startswith(("# HELP sparkd_", "# TYPE sparkd_")) or _SAMPLE.fullmatch(line), line
    assert render(HEAD, NOW, None).endswith("\n")


def test_samples_of_one_name_stand_together_below_one_type() -> None:
    kinds = [line.split()[2] for line in page(HEAD) if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    at = ""
    for line in page(HEAD):
        at = line.split()[2] if line.startswith("#") else at
        assert line.startswith("#") or re.split(r"[ {]", line)[0] == at


def test_the_figures_of_a_report() -> None:
    lines = page(replace(ALONE, engine=EngineReport(progress=0.25, kv_cache_tokens=524288)))
    for line in (
        'sparkd_phase{phase="serving"} 1',
        'sparkd_phase{phase="loading"} 0',
        "sparkd_phase_seconds 200.0",
        "sparkd_memory_total_bytes 128849018880",
        "sparkd_engine_progress_ratio 0.25",
        "sparkd_kv_cache_tokens 524288",
        "sparkd_start_time_seconds 1767265000.5",
    ):
        assert line in lines
    assert any(line.startswith('sparkd_info{version="0.1.0",node="spark1",role="head",rank="0",') for line in lines)
    assert sum(line.startswith("sparkd_phase{") for line in lines) == len(Phase)


def test_what_is_not_known_is_left_out() -> None:
    text = "\n".join(page(replace(ALONE, memory=None, since="?")))
    for name in ("memory", "progress", "kv_cache", "phase_seconds", "peer"):
        assert f"sparkd_{name}" not in text


@pytest.mark.parametrize("contact", list(Contact))
def test_a_peer_is_up_while_it_answers(contact: Contact) -> None:
    lines = page(replace(HEAD, peers=(replace(PEER, contact=contact),)))
    assert f'sparkd_peer_up{{address="10.0.0.2",rank="1"}} {int(contact is Contact.ANSWERS)}' in lines
    assert 'sparkd_peer_phase{address="10.0.0.2",rank="1",phase="loading"} 1' in lines
    assert 'sparkd_peer_phase{address="10.0.0.2",rank="1",phase="serving"} 0' in lines


def test_a_name_cannot_end_its_label() -> None:
    (line,) = [one for one in page(replace(ALONE, node='a"} 1\n\\')) if one.startswith("sparkd_info")]
    assert 'node="a\\"} 1\\n\\\\"' in line
    assert _SAMPLE.fullmatch(line)
