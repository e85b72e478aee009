"""The HTTP answers for monitors."""

import asyncio
import http.client
import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import ALONE
from tests.unit.nodes import network

from sparkd.agent.status.http_api import make_handler
from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.status.figures import EngineReport
from sparkd.base.status.model import IN_SERVICE, NodeReport, Phase, parse
from sparkd.base.status.publisher import make_public


def request(
    path: str, host: str | None = "127.0.0.1:29511", report: NodeReport = ALONE, beat_age: float = 0.1
) -> Response:
    headers = {} if host is None else {"host": host}
    handle = make_handler(lambda: make_public(report), lambda: beat_age)
    return asyncio.run(handle(Request("127.0.0.1", path, headers)))


def test_monitors_are_answered_over_http() -> None:
    server = HttpServer("127.0.0.1", 0, make_handler(lambda: make_public(ALONE), lambda: 0.0))
    with network() as loop, closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        loop.spawn(server.serve())
        for path, kind in (
            ("/livez", "text/plain"),
            ("/metrics", "text/plain; version=0.0.4"),
            ("/report", "application/json"),
        ):
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
            assert answer.status == 200
            assert answer.getheader("Cache-Control") == "no-store"
            assert (answer.getheader("Content-Type") or "").startswith(kind)
            assert body
        assert parse(body) == ALONE
        connection.request("POST", "/livez")
        assert connection.getresponse().status == 405


def retry_after(report: NodeReport) -> str | None:
    return dict(request("/readyz", report=report).headers).get("Retry-After")


@pytest.mark.parametrize(("age", "status"), [(0.0, 200), (30.0, 200), (30.1, 503), (900.0, 503)])
def test_an_agent_lives_while_its_main_loop_turns(age: float, status: int) -> None:
    assert request("/livez", beat_age=age).status == status
    assert request("/readyz", beat_age=age).status == status


@pytest.mark.parametrize("phase", IN_SERVICE)
def test_a_node_is_ready_while_it_serves(phase: Phase) -> None:
    answer = request("/readyz", report=replace(ALONE, phase=phase))
    assert answer.status == 200
    assert answer.body.decode() == f"{phase.value}\n"
    assert "Retry-After" not in dict(answer.headers)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in IN_SERVICE])
def test_a_node_that_is_not_ready_says_what_is_awaited_and_when_to_try_again(phase: Phase) -> None:
    answer = request("/readyz", report=replace(ALONE, phase=phase, message="what is\nawaited"))
    assert answer.status == 503
    assert answer.body.decode() == f"{phase.value}: what is\\nawaited\n"
    assert "Retry-After" in dict(answer.headers)


@pytest.mark.parametrize(
    ("phase", "left", "seconds"),
    [
        (Phase.LOADING, 118.6, "119"),
        (Phase.LOADING, 0, "1"),
        (Phase.LOADING, 1e18, "3600"),
        (Phase.LOADING, None, "60"),
        (Phase.PREFLIGHT, 118.6, "10"),
        (Phase.STOPPING, None, "10"),
        (Phase.COOLING, None, "60"),
    ],
)
def test_retry_after_is_the_loads_estimate_else_a_guess(phase: Phase, left: float | None, seconds: str) -> None:
    assert retry_after(replace(ALONE, phase=phase, engine=EngineReport(seconds_left=left))) == seconds


@pytest.mark.parametrize(("passed", "seconds"), [(400, "80"), (500, "118"), (0, "480")])
def test_retry_after_is_of_the_whole_load_where_an_earlier_one_is_known(passed: float, seconds: str) -> None:
    started = (datetime.now(UTC) - timedelta(seconds=passed)).isoformat()
    engine = EngineReport(seconds_left=118, started=started, expected_seconds=480)
    assert retry_after(replace(ALONE, phase=Phase.LOADING, engine=engine)) == seconds


OURS = "127.0.0.1 192.168.1.7:29511 [::1]:29511 [::1] localhost:29511 LOCALHOST spark1 Spark1:29511"
FOREIGN = "evil.example evil.example:29511 spark1.evil.example 127.0.0.1.evil.example :29511 :"


@pytest.mark.parametrize("host", OURS.split())
def test_a_client_that_names_this_machine_is_answered(host: str) -> None:
    assert request("/livez", host).status == 200


@pytest.mark.parametrize("host", [None, "", *FOREIGN.split()])
@pytest.mark.parametrize("path", ["/report", "/metrics", "/livez"])
def test_a_strangers_name_that_points_here_is_refused(path: str, host: str | None) -> None:
    answer = request(path, host)
    assert answer.status == 403
    assert b"phase" not in answer.body


@pytest.mark.parametrize("path", ["/status", "/livez/"])
def test_an_unknown_path_is_refused_with_the_known_ones(path: str) -> None:
    answer = request(path)
    assert answer.status == 404
    assert b"/metrics" in answer.body


def test_a_query_changes_no_answer() -> None:
    assert request("/livez?verbose=1").status == 200


def test_a_report_is_json_whatever_a_name_holds() -> None:
    odd = replace(ALONE, node="a\ud800")
    assert json.loads(request("/report", report=odd).body)["node"] == "a\\ud800"
    assert request("/metrics", report=odd).status == 200
