"""The screen of `sparkd status`: all figures in 80 columns, whatever the nodes write."""

import math

from msgspec.structs import replace
from tests.unit.node_reports import BIG, BUSY, GPU, HEAD_REPORT, LOADING, NOW, PEER, USED, WILD, WORKER, ago
from tests.unit.terminal import shown

from sparkd.base.lib.text import cell_width, plain
from sparkd.base.status.figures import GpuReport
from sparkd.base.status.model import Contact, FindingReport, MemoryReport, NodeReport, PeerStatus, Phase, RestartReport
from sparkd.base.status.view import View
from sparkd.tools.node.status_text import CAUSE_LIMIT, render

VIEW = View(NOW, alive=True)
CAUSE_LINES = CAUSE_LIMIT // 77 + 2
"""Lines of a cause in 80 columns, of which the rank takes three. It breaks between words, and follows `next: `."""


def with_seven_peers(report: NodeReport) -> NodeReport:
    others = [replace(report, rank=rank, activity=None) for rank in range(1, 8)]
    peers = (PeerStatus(f"10.0.0.{other.rank}", other.rank, Contact.ANSWERS, ago(9), other) for other in others)
    return replace(report, peers=tuple(peers))


def test_a_screen_has_all_figures_in_80_columns() -> None:
    busy = replace(HEAD_REPORT, activity=BUSY, gpu=GPU, memory=USED, last_cause="")
    lines = plain(render(busy, VIEW, "http://192.0.2.2:8000/v1  model tiny")).splitlines()
    assert lines == [
        "serving for 3 min",
        "http://192.0.2.2:8000/v1  model tiny",
        "next: nothing is to be done",
        "",
        "0  spark1 (10.0.0.1)  serving for 3 min  tiny on port 8000",
        "   ████████░░ 32.0 of 128.0 GiB free ▄▄▄▄▄▆▆▆▆▆  2405 MHz 61 W 71 °C 96 %",
        "1  spark2 (10.0.0.2)  loading for 12 s  ████░░░░░░ loading weights 43%",
        "   █████████░ 11.5 of 120.0 GiB free",
        "",
        "activity    42.1 tokens/s out, 310 tokens/s in",
        "            3 requests running, 1 request waiting",
        "caches      41% KV cache used, 87% prefix cache hits, 71% drafts accepted",
        "warn        page-cache: 4 GiB of page cache",
        "block       spark2: memory: 9 GiB available, 96 GiB needed",
        "hint        on spark2: stop other work",
    ]
    assert max(map(cell_width, lines)) <= 80
    worker = replace(WORKER, engine=LOADING, memory=USED)
    loading = plain(
        render(replace(HEAD_REPORT, last_cause="", peers=(replace(PEER, report=worker),)), VIEW)
    ).splitlines()
    assert "   ████████░░ 32.0 of 128.0 GiB free ▄▄▄▄▄▆▆▆▆▆  about 6 min left (last load)" in loading
    assert max(map(cell_width, loading)) <= 80


def test_eight_nodes_fit_24_lines() -> None:
    busy = with_seven_peers(
        replace(HEAD_REPORT, activity=BUSY, gpu=GPU, memory=USED, last_cause="", findings=(), peers=())
    )
    lines = shown(render(busy, VIEW, "http://192.0.2.2:8000/v1  model tiny"), TERM="dumb").splitlines()
    assert len(lines) == 24
    assert max(map(cell_width, lines)) <= 80


def test_whatever_a_node_writes_each_line_of_a_screen_stays_one() -> None:
    evil = "界\x1b[2J\r\n\u202e\u0301" * 100
    gpu = GpuReport(evil, -BIG, BIG)
    restarts = (RestartReport(evil, BIG, ago(1), evil),)
    findings = (FindingReport(evil, evil, evil, evil),)
    engine = replace(LOADING, phase=evil, progress=math.nan, started=evil, expected_seconds=math.nan, expected_by=evil)
    memory = MemoryReport(BIG, -BIG, (BIG,) * 9)
    bad = replace(WORKER, node=evil, role=evil, message=evil, last_cause=evil, last_hint=evil, since=evil)
    bad = replace(bad, findings=findings, engine=engine, gpu=gpu, restarts=restarts, activity=WILD, memory=memory)
    for phase in Phase:
        made = with_seven_peers(replace(bad, phase=phase))
        for alive in (True, False):
            view = View(NOW, alive)
            text = plain([*render(made, view), *render(made, view, whole=True), *render(bad, view)])
            assert all(letter == "\n" or letter.isprintable() for letter in text)
        title, _, table = (shown([part], TERM="dumb").splitlines() for part in render(made, VIEW)[:3])
        assert len(title) <= 2 * CAUSE_LINES, "the state and what to do"
        assert len(table) <= 8 * (1 + CAUSE_LINES + 1), "each node's name, cause and figures"
        assert max(map(cell_width, (*title, *table))) <= 80
