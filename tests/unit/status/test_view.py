"""What a person sees of a node's figures, and that no other node can show what is none."""

import math

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import ALONE, HEAD_REPORT, NOW, PEER, WORKER, ago
from tests.unit.terminal import shown

from sparkd.base.lib.text import cell_width, plain
from sparkd.base.status.figure_texts import activity_figures, bar, gpu_text, memory_share, sparkline
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport
from sparkd.base.status.model import (
    UNKNOWN_RANK,
    Contact,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerStatus,
    Phase,
    RestartReport,
)
from sparkd.base.status.view import Headline, View, headline, overview
from sparkd.tools.cli.status import render

VIEW = View(NOW, alive=True)
BUSY = ActivityReport(3, 1, 310.0, 42.12, 0.41, 0.87, 0.71)
GPU = GpuReport("NVIDIA GB10", 2405, 61, 71, 96)
USED = MemoryReport(128 << 30, 32 << 30, (50,) * 30 + (75,) * 30)
BIG = 10**400
WILD = ActivityReport(BIG, -BIG, math.inf, -math.inf, math.nan, math.nan, -7.0)


def eight(report: NodeReport) -> NodeReport:
    others = [replace(report, rank=rank, activity=None) for rank in range(1, 8)]
    peers = (PeerStatus(f"10.0.0.{one.rank}", one.rank, Contact.ANSWERS, ago(9), one) for one in others)
    return replace(report, peers=tuple(peers))


@pytest.mark.parametrize(
    ("activity", "figures"),
    [
        (BUSY, ["42.1", "310", "3", "1", "41%", "87%", "71%"]),
        (ActivityReport(0, 0, 0.0, 0.0, 0.0), ["0", "0", "0", "0", "0%"]),
        (WILD, ["0", "1,000,000,000", "1,000,000,000", "0", "0%", "0%", "0%"]),
    ],
)
def test_figures_of_the_activity_are_within_their_bounds(activity: ActivityReport, figures: list[str]) -> None:
    assert list(activity_figures(activity).values()) == figures


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        (GPU, "2405 MHz 61 W 71 °C 96 %"),
        (GpuReport("GB10", clock_mhz=600, temperature_celsius=40), "600 MHz 40 °C"),
        (GpuReport("GB10"), ""),
        (GpuReport("GB10", BIG, -5), "1000000000 MHz 0 W"),
    ],
)
def test_a_gpu_as_text(gpu: GpuReport, text: str) -> None:
    assert gpu_text(gpu) == text


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        ((), " " * 10),
        ((0,), " " * 9 + "▁"),
        ((100,) * 7, " " * 8 + "██"),
        ((0, 100, 0, 0, 0, 0), " " * 9 + "█"),
        (tuple(range(100)), "▄▄▄▅▅▆▆▇▇▇"),
        ((BIG, -BIG), " " * 9 + "█"),
    ],
)
def test_a_sparkline_ends_with_the_newest_and_has_the_most_of_each_minute(samples: tuple[int, ...], line: str) -> None:
    assert sparkline(samples) == line


@pytest.mark.parametrize(
    ("total", "available", "filled"),
    [
        (100, 25, 8),
        (0, 0, 0),
        (-1, 5, 0),
        pytest.param(BIG, 1, 0, id="too large"),
        pytest.param(100, BIG, 0, id="more than all"),
        pytest.param(5, -BIG, 10, id="less than none"),
    ],
)
def test_a_bar_of_memory(total: int, available: int, filled: int) -> None:
    assert bar(memory_share(MemoryReport(total, available))) == "█" * filled + "░" * (10 - filled)


LOADING = EngineReport(
    phase="loading weights", progress=0.31, started=ago(120), expected_seconds=480.0, expected_by="last load"
)


@pytest.mark.parametrize(
    ("engine", "left"),
    [
        (LOADING, "about 6 min left (last load)"),
        (replace(LOADING, expected_by="recipe"), "about 6 min left (recipe)"),
        (replace(LOADING, expected_seconds=60.0), "1 min over (last load)"),
        (replace(LOADING, expected_seconds=None), ""),
        (replace(LOADING, started=""), ""),
        (replace(LOADING, expected_seconds=math.inf), ""),
        (replace(LOADING, expected_seconds=1e300), ""),
        (replace(LOADING, expected_seconds=-1e300), ""),
    ],
)
def test_a_load_is_over_when_the_last_one_was(engine: EngineReport, left: str) -> None:
    assert overview(replace(WORKER, engine=engine), VIEW).nodes[0].left == left


def test_restarts_of_the_last_day_are_listed_with_their_node() -> None:
    restarts = (
        RestartReport("kernel-oom", 1, ago(90000), "long ago"),
        RestartReport("peer-silent", 1, ago(7200), "rank 1 was silent"),
        RestartReport("engine-ended", 3, ago(60), "boom"),
        RestartReport("", 1, "no time", "x"),
    )
    peer = replace(PEER, report=replace(WORKER, restarts=restarts[2:3]))
    seen = overview(replace(HEAD_REPORT, restarts=restarts, peers=(peer,)), VIEW)
    assert seen.restarts == (
        "peer-silent 2 h 0 min ago: rank 1 was silent",
        "engine-ended 3 times, last 1 min ago: boom",
        "spark2: engine-ended 3 times, last 1 min ago: boom",
    )


def test_many_causes_of_restarts_do_not_flood_the_screen() -> None:
    many = tuple(RestartReport(f"cause-{number}", 1, ago(60), "x") for number in range(100))
    assert overview(replace(ALONE, restarts=many), VIEW).restarts[0] == "cause-95 1 min ago: x"
    assert len(overview(replace(ALONE, restarts=many), VIEW).restarts) == 5


@pytest.mark.parametrize("contact", [one for one in Contact if one is not Contact.ANSWERS])
def test_figures_of_a_node_that_does_not_answer_are_not_shown(contact: Contact) -> None:
    busy = replace(WORKER, activity=BUSY, gpu=GPU, memory=USED)
    for view, met in ((VIEW, contact), (View(NOW, alive=False), Contact.ANSWERS)):
        seen = overview(replace(HEAD_REPORT, activity=BUSY, peers=(replace(PEER, contact=met, report=busy),)), view)
        peer = seen.nodes[1]
        assert (peer.living, peer.level) == (None, "unknown")
        assert (seen.activity is None) == (not view.alive)


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
        "            3 requests running, 1 requests waiting",
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
    busy = eight(replace(HEAD_REPORT, activity=BUSY, gpu=GPU, memory=USED, last_cause="", findings=(), peers=()))
    lines = shown(render(busy, VIEW, "http://192.0.2.2:8000/v1  model tiny"), TERM="dumb").splitlines()
    assert len(lines) == 24
    assert max(map(cell_width, lines)) <= 80


def test_whatever_a_node_writes_each_line_of_a_screen_stays_one() -> None:
    evil = "界\x1b[2J\r\n\u202e\u0301" * 300
    gpu = GpuReport(evil, -BIG, BIG)
    restarts = (RestartReport(evil, BIG, ago(1), evil),)
    findings = (FindingReport(evil, evil, evil, evil),)
    engine = replace(LOADING, phase=evil, progress=math.nan, started=evil, expected_seconds=math.nan, expected_by=evil)
    memory = MemoryReport(BIG, -BIG, (BIG,) * 9)
    bad = replace(WORKER, node=evil, role=evil, message=evil, last_cause=evil, last_hint=evil, since=evil)
    bad = replace(bad, findings=findings, engine=engine, gpu=gpu, restarts=restarts, activity=WILD, memory=memory)
    for phase in Phase:
        made = eight(replace(bad, phase=phase))
        for alive in (True, False):
            view = View(NOW, alive)
            text = plain([*render(made, view), *render(made, view, whole=True), *render(bad, view)])
            assert all(one == "\n" or one.isprintable() for one in text)
        nodes = shown(render(made, VIEW)[:1], TERM="dumb").splitlines()
        assert len(nodes) <= 8 * 14
        assert max(map(cell_width, nodes)) <= 80


HELD = replace(WORKER, phase=Phase.BLOCKED)
CALM = replace(HEAD_REPORT, peers=(replace(PEER, report=replace(WORKER, phase=Phase.SERVING)),))
STILL = replace(CALM, phase=Phase.LOADING, engine=LOADING)


def peered(of: NodeReport, **changes: object) -> NodeReport:
    return replace(of, peers=(replace(PEER, **changes),))


@pytest.mark.parametrize(
    ("report", "level", "text", "todo"),
    [
        (ALONE, "ok", "serving for 3 min", "nothing is to be done"),
        (CALM, "ok", "serving for 3 min", "nothing is to be done"),
        (STILL, "", "loading: loading weights 31%, about 6 min left", "nothing is to be done; to follow it: sparkd s"),
        (
            replace(HEAD_REPORT, phase=Phase.AWAITING_PEERS, peers=()),
            "",
            "not serving yet: awaiting-peers, tiny",
            "nothing",
        ),
        (
            replace(HELD, rank=0, peers=()),
            "block",
            "blocked: memory: 9 GiB available, 96 GiB needed",
            "stop other work",
        ),
        (
            peered(STILL, report=HELD),
            "block",
            "blocked: spark2 (10.0.0.2): memory: 9 GiB",
            "on spark2 (10.0.0.2): stop",
        ),
        (
            peered(CALM, contact=Contact.REFUSED),
            "warn",
            "degraded: spark2 (10.0.0.2): ",
            "on spark2 (10.0.0.2): systemctl",
        ),
        (peered(CALM, contact=Contact.UNHEARD), "ok", "serving for", "nothing"),
        (
            replace(ALONE, phase=Phase.DEGRADED, message="rank 1 is silent"),
            "warn",
            "degraded: rank 1 is",
            "sudo sparkd l",
        ),
        (
            peered(WORKER, address="10.0.0.1", rank=0, contact=Contact.SILENT, report=None),
            "unknown",
            "not known: 10.0.0.1: silent for 1 min",
            "on 10.0.0.1: look at the cable",
        ),
        (
            replace(ALONE, phase=Phase.COOLING, message="9 s before the next launch", last_hint="less context"),
            "block",
            "not serving: 9 s before the next launch; last: the engine ended (exit 13)",
            "less context",
        ),
        (
            peered(STILL, report=replace(WORKER, phase=Phase.FAILED, findings=(), last_hint="old")),
            "block",
            "blocked: spark2 (10.0.0.2): load",
            "sudo sparkd logs",
        ),
        (replace(ALONE, phase=Phase.DEGRADED, last_hint="less context"), "warn", "degraded: ", "sudo sparkd logs"),
    ],
)
def test_the_headline_has_the_state_and_what_to_do(report: NodeReport, level: str, text: str, todo: str) -> None:
    seen = headline(report, VIEW)
    assert seen.level == level
    assert seen.text.startswith(text)
    assert seen.next.startswith(todo)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (ALONE, Headline("unknown", "not running: its agent is gone", "sudo systemctl start sparkd-head")),
        (replace(WORKER, phase=Phase.STOPPED), Headline("unknown", "stopped", "sudo systemctl start sparkd-worker")),
        (
            replace(ALONE, phase=Phase.FAILED, message="out of tea", action="none"),
            Headline("block", "failed: out of tea", "nothing is to be done: systemd starts it again"),
        ),
        (
            replace(ALONE, phase=Phase.FAILED, message="out of tea", action="inspect"),
            Headline("block", "failed: out of tea", "sudo sparkd preflight --dry-run"),
        ),
        (
            replace(ALONE, phase=Phase.BLOCKED, message="another agent runs", action="inspect"),
            Headline("block", "blocked: another agent runs", "sudo sparkd preflight --dry-run"),
        ),
        (
            replace(WORKER, rank=UNKNOWN_RANK, phase=Phase.STOPPED),
            Headline("unknown", "stopped", "sudo systemctl start sparkd-worker"),
        ),
    ],
)
def test_the_headline_without_an_agent_has_the_command_that_starts_it(report: NodeReport, expected: Headline) -> None:
    assert headline(report, View(NOW, alive=False)) == expected
