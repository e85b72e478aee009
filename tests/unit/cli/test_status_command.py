"""What `sparkd status` says of this node: its report, its exit code, and why there is none."""

import json
import re

import pytest
from msgspec.structs import replace
from tests.tree import Tree

from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ExitCode
from sparkd.base.lib.text import plain
from sparkd.base.recipes.lookup import NOT_SET_UP, SET_UP_HINT
from sparkd.base.status.figures import EngineReport
from sparkd.base.status.model import (
    Contact,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerStatus,
    Phase,
    dump,
)
from sparkd.tools.cli.status import UNREADABLE, describe_endpoint, exit_code, render_report

SINCE_BOOT = "not running: sparkd has not run since boot"
START = "sudo systemctl start sparkd-{0}; to have each boot start it, too: sudo systemctl enable sparkd-{0}"
PAIR = '[engine]\nrecipe = "tiny-cpu-pair"\n[cluster]\nnodes = ["{}", "{}"]\n'
FOLLOWS = f"{PAIR}follow_head = true\n"
REPORT = NodeReport(
    node="spark1",
    role="head",
    rank=0,
    phase=Phase.SERVING,
    since="2026-01-01T00:00:00.000+00:00",
    epoch="e" * 32,
    incarnation="e" * 32,
    version="0.1.0",
    plan_digest="d" * 64,
    message="tiny on port 8000",
    findings=(
        FindingReport("page-cache", "warn", "4 GiB of page cache", ""),
        FindingReport("stray-workers", "ok", "none", ""),
    ),
    engine=EngineReport(container_id="c" * 64, kv_cache_tokens=7),
    memory=MemoryReport(total_bytes=2, available_bytes=1),
    pid=77,
    start_time=1234,
)


@pytest.mark.parametrize(
    ("phase", "alive", "code"),
    [
        (Phase.SERVING, True, ExitCode.GOOD),
        (Phase.DEGRADED, True, ExitCode.GOOD),
        (Phase.LOADING, True, ExitCode.ON_THE_WAY),
        (Phase.COOLING, True, ExitCode.ON_THE_WAY),
        (Phase.AWAITING_DOCKER, True, ExitCode.ON_THE_WAY),
        (Phase.BLOCKED, True, ExitCode.DOWN),
        (Phase.FAILED, True, ExitCode.DOWN),
        (Phase.STOPPED, True, ExitCode.DOWN),
        (Phase.SERVING, False, ExitCode.DOWN),
    ],
)
def test_the_exit_code_says_serving_on_the_way_or_down(phase: Phase, code: ExitCode, *, alive: bool) -> None:
    assert exit_code(replace(REPORT, phase=phase), alive=alive) is code


def test_without_a_report_the_node_is_down() -> None:
    assert exit_code(None, alive=False) is ExitCode.DOWN


def read_status(tree: Tree, *, as_json: bool = False) -> tuple[str, ExitCode]:
    shown, code = render_report(Files(str(tree.root)), as_json=as_json)
    return plain(shown), code


def show(tree: Tree, report: NodeReport | str, *, as_json: bool = False) -> tuple[str, ExitCode]:
    """The status of a node where the process runs that wrote REPORT."""
    tree.file("/run/sparkd/report.json", report if isinstance(report, str) else dump(report))
    tree.process(77, "sparkd", start_time=1234)
    return read_status(tree, as_json=as_json)


def test_an_agents_report_is_shown_and_good_while_it_runs(tree: Tree) -> None:
    text, code = show(tree, REPORT)
    assert code is ExitCode.GOOD
    assert text.startswith("serving for ")
    assert "\n0  spark1  serving for " in text


def test_url_and_model_stand_below_the_headline_where_the_configuration_can_be_read(tree: Tree) -> None:
    assert show(tree, REPORT)[0].splitlines()[1] == "next: nothing is to be done"
    describe_endpoint.cache_clear()
    tree.file("/etc/sparkd/sparkd.toml", '[engine]\nrecipe = "tiny-cpu"\n')
    _, served, todo, *_ = show(tree, REPORT)[0].splitlines()
    assert re.fullmatch(r"http://[0-9.]+:8000/v1  model tiny", served)
    assert todo == "next: nothing is to be done"


def test_url_and_model_of_a_head_that_serves_need_no_configuration(tree: Tree) -> None:
    engine = replace(REPORT.engine, url="http://10.0.0.1:8000/v1", model="tiny\x1b[2J")
    _, served, *_ = show(tree, replace(REPORT, engine=engine))[0].splitlines()
    assert served == "http://10.0.0.1:8000/v1  model tiny\\x1b[2J"


def test_url_and_model_are_the_heads_own_word_alone(tree: Tree) -> None:
    engine = replace(REPORT.engine, url="http://203.0.113.9/v1", model="x")
    liar = replace(REPORT, node="spark2", rank=0, engine=engine)
    for peer in (PeerStatus("10.0.0.2", 1, Contact.ANSWERS, "", liar), PeerStatus("", 0, Contact.SILENT, "", liar)):
        shown = show(tree, replace(REPORT, rank=1 - peer.rank, address="10.0.0.1", peers=(peer,)))[0]
        assert "203.0.113.9" not in shown
    assert "http://" not in show(tree, replace(REPORT, engine=engine, pid=78))[0]


def test_json_is_the_report_as_it_stands(tree: Tree) -> None:
    assert show(tree, REPORT, as_json=True) == (dump(REPORT).strip(), ExitCode.GOOD)
    assert show(tree, '{"schema": 2}', as_json=True) == ('{"schema": 2}', ExitCode.DOWN), "of another version"


@pytest.mark.parametrize("text", [dump(REPORT)[:500], "\0\0\0", "\xfc"])
def test_json_of_an_unreadable_report_is_an_error_with_what_to_do(tree: Tree, text: str) -> None:
    error = json.loads(show(tree, text, as_json=True)[0])["error"]
    assert error["reason"] == UNREADABLE[0]
    assert error["hint"].endswith("# ends the engine")


def test_json_of_a_node_that_is_not_set_up_is_an_error(tree: Tree) -> None:
    text, code = show(tree, "", as_json=True)
    error = {"code": 21, "cause": "", "reason": NOT_SET_UP, "hint": SET_UP_HINT}
    assert json.loads(text) == {"schema": 1, "error": error}
    assert code is ExitCode.DOWN


@pytest.mark.parametrize(
    ("settings", "reason", "to_do"),
    [
        ("", "this node is not set up: engine.recipe names no recipe", "sudo sparkd init --plan"),
        ('[engine]\nrecipe = "tiny-cpu"\n', SINCE_BOOT, START.format("head")),
        (PAIR.format("10.0.0.1", "10.0.0.2"), SINCE_BOOT, START.format("worker")),
        (PAIR.format("10.0.0.2", "10.0.0.1"), SINCE_BOOT, START.format("head")),
        (PAIR.format("10.0.0.8", "10.0.0.9"), SINCE_BOOT, "sudo systemctl start sparkd-head"),
        (FOLLOWS.format("10.0.0.8", "10.0.0.9"), SINCE_BOOT, "sudo systemctl start sparkd-worker"),
        (FOLLOWS.format("10.0.0.1", "10.0.0.2"), SINCE_BOOT, START.format("worker")),
        ('[engine]\nrecipe = "none-such"\n', "not running: the configuration is wrong", "sparkd config check"),
        ("[engin]\n", "not running: the configuration is wrong", "sparkd config check"),
    ],
)
def test_a_missing_report_is_explained_with_what_to_do(tree: Tree, settings: str, reason: str, to_do: str) -> None:
    tree.file("/etc/sparkd/sparkd.toml", settings)
    tree.file("/proc/net/fib_trie", "Local:\n  |-- 10.0.0.2\n     /32 host LOCAL\n")
    assert read_status(tree) == (f"{reason}\nnext: {to_do}", ExitCode.DOWN)


def test_a_unit_that_each_boot_starts_is_only_to_be_started(tree: Tree) -> None:
    tree.file("/etc/sparkd/sparkd.toml", '[engine]\nrecipe = "tiny-cpu"\n')
    tree.file("/etc/systemd/system/sparkd.target.wants/sparkd-head.service", "")
    assert read_status(tree)[0].endswith("next: sudo systemctl start sparkd-head")


def test_units_that_can_not_be_read_hide_no_start(tree: Tree) -> None:
    tree.file("/etc/sparkd/sparkd.toml", '[engine]\nrecipe = "tiny-cpu"\n')
    tree.link("/etc/systemd/system", "system")
    assert read_status(tree)[0].endswith("next: sudo systemctl start sparkd-head")


@pytest.mark.parametrize("text", ["{", '{"schema": 2}', "\x1b[2J"])
def test_an_unreadable_report_is_not_called_missing(tree: Tree, text: str) -> None:
    assert show(tree, text) == ("\n".join(UNREADABLE), ExitCode.DOWN)
