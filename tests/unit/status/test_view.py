"""What a person sees of a node's figures, and that no other node can show what is none."""

import math

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import ALONE, BIG, BUSY, GPU, HEAD_REPORT, LOADING, NOW, PEER, USED, WILD, WORKER, ago

from sparkd.base.status.figure_texts import activity_figures, bar, gpu_text, memory_share, sparkline
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport
from sparkd.base.status.model import (
    UNKNOWN_RANK,
    Contact,
    MemoryReport,
    NodeReport,
    Phase,
    RestartReport,
)
from sparkd.base.status.view import Headline, View, headline, overview

VIEW = View(NOW, alive=True)
BUSY_WORKER = replace(WORKER, activity=BUSY, gpu=GPU, memory=USED)
TO_FOLLOW = "nothing is to be done; to follow it: sparkd status --watch"


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
def test_the_time_left_of_a_load_is_the_last_loads_less_what_passed(engine: EngineReport, left: str) -> None:
    assert overview(replace(WORKER, engine=engine), VIEW).nodes[0].left == left


def test_restarts_of_the_last_day_are_listed_with_their_node() -> None:
    restarts = (
        RestartReport("kernel-oom", 1, ago(90000), "long ago"),
        RestartReport("peer-silent", 1, ago(7200), "rank 1 was silent"),
        RestartReport("engine-ended", 3, ago(60), "boom"),
        RestartReport("", 1, "no time", "x"),
    )
    peer = replace(PEER, report=replace(WORKER, restarts=restarts[2:3]))
    screen = overview(replace(HEAD_REPORT, restarts=restarts, peers=(peer,)), VIEW)
    assert screen.restarts == (
        "peer-silent 2 h 0 min ago: rank 1 was silent",
        "engine-ended 3 times, last 1 min ago: boom",
        "spark2: engine-ended 3 times, last 1 min ago: boom",
    )


def test_many_causes_of_restarts_do_not_flood_the_screen() -> None:
    many = tuple(RestartReport(f"cause-{number}", 1, ago(60), "x") for number in range(100))
    assert overview(replace(ALONE, restarts=many), VIEW).restarts[0] == "cause-95 1 min ago: x"
    assert len(overview(replace(ALONE, restarts=many), VIEW).restarts) == 5


@pytest.mark.parametrize(("contact", "alive"), [(contact, contact is not Contact.ANSWERS) for contact in Contact])
def test_figures_of_a_node_that_does_not_answer_or_of_an_agent_that_is_gone_are_not_shown(
    contact: Contact, alive: bool
) -> None:
    peer = replace(PEER, contact=contact, report=BUSY_WORKER)
    screen = overview(replace(HEAD_REPORT, activity=BUSY, peers=(peer,)), View(NOW, alive))
    assert screen.nodes[1].living is None
    assert screen.nodes[1].level == "unknown"
    assert screen.activity == (BUSY if alive else None)


BLOCKED_WORKER = replace(WORKER, phase=Phase.BLOCKED)
SERVING_PAIR = replace(HEAD_REPORT, peers=(replace(PEER, report=replace(WORKER, phase=Phase.SERVING)),))
LOADING_PAIR = replace(SERVING_PAIR, phase=Phase.LOADING, engine=LOADING)
NOTHING, WARNINGS = "nothing is to be done", "sudo sparkd logs --since 1d --level warning"


def alone(phase: Phase, message: str = ALONE.message, **changes: object) -> NodeReport:
    return replace(ALONE, phase=phase, message=message, **changes)


def with_peer(node: NodeReport, **changes: object) -> NodeReport:
    return replace(node, peers=(replace(PEER, **changes),))


@pytest.mark.parametrize(
    ("report", "level", "text", "todo"),
    [
        (ALONE, "ok", "serving for 3 min", NOTHING),
        (SERVING_PAIR, "ok", "serving for 3 min", NOTHING),
        (LOADING_PAIR, "", "loading: loading weights 31%, about 6 min left", TO_FOLLOW),
        (alone(Phase.AWAITING_PEERS), "", "not serving yet: awaiting-peers, tiny", TO_FOLLOW),
        (
            replace(BLOCKED_WORKER, rank=0),
            "block",
            "blocked: memory: 9 GiB available, 96 GiB needed",
            "stop other work",
        ),
        (
            with_peer(LOADING_PAIR, report=BLOCKED_WORKER),
            "block",
            "blocked: spark2 (10.0.0.2): memory: 9 GiB",
            "on spark2 (10.0.0.2): stop other work",
        ),
        (
            with_peer(SERVING_PAIR, contact=Contact.REFUSED),
            "warn",
            "degraded: spark2 (10.0.0.2): ",
            "on spark2 (10.0.0.2): sparkd status",
        ),
        (
            alone(Phase.AWAITING_DOCKER, "waiting for dockerd: sudo systemctl start docker"),
            "block",
            "not serving: waiting for dockerd",
            "sudo systemctl start docker",
        ),
        (alone(Phase.LAUNCHING), "", "loading: launching", TO_FOLLOW),
        (with_peer(SERVING_PAIR, contact=Contact.UNHEARD), "ok", "serving for", NOTHING),
        (alone(Phase.DEGRADED, "rank 1 is silent", last_hint="less context"), "warn", "degraded: rank 1 is", WARNINGS),
        (
            with_peer(WORKER, address="10.0.0.1", rank=0, contact=Contact.SILENT, report=None),
            "unknown",
            "not known: 10.0.0.1: silent for 1 min",
            "on 10.0.0.1: look at its power, the cable and the switch: ip -brief link; a firewall: sudo ufw status",
        ),
        (
            alone(Phase.COOLING, "9 s before the next launch", last_hint="less context"),
            "block",
            "not serving: 9 s before the next launch; last: the engine ended (exit 13)",
            "less context",
        ),
        (
            with_peer(LOADING_PAIR, report=replace(WORKER, phase=Phase.FAILED, findings=(), last_hint="old")),
            "block",
            "blocked: spark2 (10.0.0.2): load",
            WARNINGS,
        ),
    ],
)
def test_the_headline_has_the_state_and_what_to_do(report: NodeReport, level: str, text: str, todo: str) -> None:
    line = headline(report, VIEW)
    assert line.level == level
    assert line.text.startswith(text)
    assert line.next == todo


START, LOOK_FIRST = "sudo systemctl start sparkd-", "sudo sparkd preflight --dry-run; then: "


@pytest.mark.parametrize(
    ("report", "level", "text", "todo"),
    [
        (ALONE, "unknown", "not running: its agent is gone", f"{START}head"),
        (replace(WORKER, phase=Phase.STOPPED), "unknown", "stopped", f"{START}worker"),
        (replace(WORKER, rank=UNKNOWN_RANK, phase=Phase.STOPPED), "unknown", "stopped", f"{START}worker"),
        (
            alone(Phase.FAILED, "no tea", action="none"),
            "block",
            "failed: no tea",
            f"{NOTHING}: systemd starts it again",
        ),
        (alone(Phase.FAILED, "no tea", action="inspect"), "block", "failed: no tea", f"{LOOK_FIRST}{START}head"),
        (alone(Phase.BLOCKED, "another", action="inspect"), "block", "blocked: another", f"{LOOK_FIRST}{START}head"),
    ],
)
def test_the_headline_without_an_agent_has_the_command_that_starts_it(
    report: NodeReport, level: str, text: str, todo: str
) -> None:
    assert headline(report, View(NOW, alive=False)) == Headline(level, text, todo)
