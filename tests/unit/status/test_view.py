"""What a person sees of the nodes: their state, what to do, and figures of living agents alone."""

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import ALONE, BUSY, GPU, HEAD_REPORT, LOADING, NOW, PEER, USED, WORKER, ago

from sparkd.base.status.model import (
    UNKNOWN_RANK,
    Contact,
    NodeReport,
    Phase,
    RestartReport,
)
from sparkd.base.status.view import AFTER_REFUSAL, Headline, View, headline, overview

VIEW = View(NOW, alive=True)
BUSY_WORKER = replace(WORKER, activity=BUSY, gpu=GPU, memory=USED)
TO_FOLLOW = "nothing is to be done; to follow it: sparkd status --watch"


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
            alone(Phase.AWAITING_PEERS, "no address", rank=UNKNOWN_RANK, hint="sudo netplan apply", last_hint="old"),
            "",
            "not serving yet: awaiting-peers, no address",
            "sudo netplan apply",
        ),
        (
            alone(
                Phase.BLOCKED, "the plan of spark2 differs (make it the same)", hint="make it the same", last_hint="old"
            ),
            "block",
            "blocked: the plan of spark2 differs",
            "make it the same",
        ),
        (alone(Phase.BLOCKED, "by an earlier version", last_hint="old"), "block", "blocked: by an earlier", WARNINGS),
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
            alone(Phase.AWAITING_DOCKER, "waiting for dockerd: start it", hint="sudo systemctl start docker"),
            "block",
            "not serving: waiting for dockerd",
            "sudo systemctl start docker",
        ),
        (
            alone(Phase.AWAITING_DOCKER, "by an earlier version: sudo systemctl start docker"),
            "block",
            "not serving: by an earlier version",
            "sudo systemctl start docker",
        ),
        (
            replace(BLOCKED_WORKER, rank=0, message="the plan differs", hint="make it the same"),
            "block",
            "blocked: the plan differs",
            "make it the same",
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
CHECK = f"{AFTER_REFUSAL}; then: "
ENDED = alone(Phase.FAILED, "no tea", action="none")


@pytest.mark.parametrize(
    ("report", "level", "text", "todo"),
    [
        (ALONE, "unknown", "not running: its agent is gone", f"{START}head"),
        (replace(WORKER, phase=Phase.STOPPED), "unknown", "stopped", f"{START}worker"),
        (replace(WORKER, rank=UNKNOWN_RANK, phase=Phase.STOPPED), "unknown", "stopped", f"{START}worker"),
        (ENDED, "block", "failed: no tea", f"{NOTHING}: systemd starts it again"),
        (alone(Phase.FAILED, "no tea", action="inspect"), "block", "failed: no tea", f"{LOOK_FIRST}{START}head"),
        (alone(Phase.BLOCKED, "another", action="inspect"), "block", "blocked: another", f"{LOOK_FIRST}{START}head"),
    ],
)
def test_the_headline_without_an_agent_has_the_command_that_starts_it(
    report: NodeReport, level: str, text: str, todo: str
) -> None:
    assert headline(report, View(NOW, alive=False)) == Headline(level, text, todo)


@pytest.mark.parametrize(
    ("report", "unit", "said", "text", "todo"),
    [
        (ENDED, "failed", "no recipe (try y)", "not running: no recipe (try y)", CHECK),
        (replace(ALONE, phase=Phase.STOPPED), "failed", "no recipe", "not running: no recipe", CHECK),
        (ENDED, "failed", "failed: no tea", "failed: no tea", LOOK_FIRST),
        (ENDED, "failed", "no tea", "not running: no tea", CHECK),
        (replace(ALONE, phase=Phase.STOPPED, message=""), "failed", "stopped", "stopped", ""),
        (replace(ALONE, message=""), "failed", "serving", "not running: its agent is gone", ""),
        (ENDED, "inactive", "", "failed: no tea", LOOK_FIRST),
        (ENDED, "activating", "", "failed: no tea", ""),
    ],
)
def test_a_unit_that_systemd_leaves_down_is_not_said_to_be_started_again(
    report: NodeReport, unit: str, said: str, text: str, todo: str
) -> None:
    """A start that is refused, as by a mistake in the settings, leaves the report of the one before."""
    line = headline(report, View(NOW, False, unit, said))
    assert line.text == text
    is_awaited = unit == "activating"
    assert line.next == (f"{NOTHING}: systemd starts it again" if is_awaited else f"{todo}{START}head")
