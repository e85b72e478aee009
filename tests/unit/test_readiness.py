from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest
from tests.unit.engine_server import Reply, engine, models, token
from tests.unit.nodes import network

from sparkd.engine.story import Story
from sparkd.errors import NotReadyError
from sparkd.host.endpoint import Endpoint, counters
from sparkd.pulse import Pulse
from sparkd.readiness import Gate, Knock, Limits, await_ready, knock
from sparkd.systemd import Notifier

METRICS = Path(__file__).parent / "engine-logs" / "metrics.txt"


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def serving(request: str, _: str) -> Reply:
    return {"GET /v1/models": models("tiny"), "POST /v1/completions": token()}[request]


def tried(port: int, completion_seconds: float, api_key: str | None = None) -> Knock:
    return asyncio.run(knock(Endpoint("127.0.0.1", port, "tiny", api_key), "tiny", completion_seconds))


def test_a_refused_connection_closes_the_first_gate() -> None:
    assert tried(closed_port(), 1).closed is Gate.HTTP


def test_a_model_that_is_not_listed_closes_the_second() -> None:
    with engine(lambda *_: models("other")) as port:
        result = tried(port, 1)
    assert (result.closed, result.said) == (Gate.MODEL, "other")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, b"engine is dead"), "HTTP 500 engine is dead"),
        ((200, b'{"usage": {"completion_tokens": 0}}'), "no token was made"),
        ((200, b"not json"), "no completion: not json"),
    ],
)
def test_a_completion_without_a_token_closes_the_third(answer: Reply, said: str) -> None:
    with engine(lambda request, _: models("tiny") if request.startswith("GET") else answer) as port:
        result = tried(port, 1)
    assert (result.closed, result.said) == (Gate.COMPLETION, said)


def test_a_completion_has_a_deadline_of_its_own() -> None:
    with engine(serving, slow_seconds=0.5) as port:
        result = tried(port, 0.1)
    assert (result.closed, result.said) == (Gate.COMPLETION, "no answer within 0.1 s")


def test_a_token_opens_all_gates_and_the_key_is_shown_to_the_engine_alone() -> None:
    keys: list[str] = []

    def reply(request: str, key: str) -> Reply:
        keys.append(key)
        return serving(request, key)

    with engine(reply) as port:
        assert tried(port, 1, "s3cret").closed is None
    assert keys == ["Bearer s3cret", "Bearer s3cret"]


def wait_for(port: int, limits: Limits, pidfd: int) -> bool:
    story = Story(step="loading weights")
    with network() as loop:
        endpoint = Endpoint("127.0.0.1", port, "tiny")
        return await_ready(Pulse(Notifier(), {}, loop), pidfd, endpoint, "tiny", limits, lambda _: story)


def test_ready_follows_the_first_possible_completion_within_half_a_second() -> None:
    reading, writing = os.pipe()
    opens_at = time.monotonic() + 1.0

    def reply(request: str, key: str) -> Reply:
        return serving(request, key) if time.monotonic() >= opens_at else (503, b"")

    with engine(reply) as port:
        assert wait_for(port, Limits(30, 5), reading)
        assert time.monotonic() - opens_at < 0.5
    os.close(reading)
    os.close(writing)


def test_an_ended_container_ends_the_wait() -> None:
    reading, writing = os.pipe()
    os.close(writing)  # readable, as a pidfd is once its process has ended
    assert wait_for(closed_port(), Limits(30, 5), reading) is False
    os.close(reading)


def test_too_late_says_what_was_waited_for_and_what_the_engine_was_doing() -> None:
    reading, writing = os.pipe()
    with pytest.raises(NotReadyError, match=r"not ready within 0.5 s: waited for HTTP .* engine was loading weights"):
        wait_for(closed_port(), Limits(0.5, 5), reading)
    os.close(reading)
    os.close(writing)


def test_an_endpoint_of_another_model_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    with engine(lambda *_: models("other")) as port, pytest.raises(NotReadyError, match="serves other, not tiny"):
        wait_for(port, Limits(30, 5), reading)
    os.close(reading)
    os.close(writing)


def test_counters_are_read_off_a_real_page() -> None:
    found = counters(METRICS.read_bytes())
    assert found is not None
    assert found.work == (6.0, 32.0, 32.0)
    assert not found.busy


def test_a_page_that_lacks_a_counter_has_none() -> None:
    page = METRICS.read_bytes().replace(b"vllm:iteration_tokens_total_count", b"vllm:other")
    assert counters(page) is None


def test_counters_of_several_engines_are_summed() -> None:
    page = METRICS.read_bytes()
    second = page.replace(b'engine="0"', b'engine="1"').replace(
        b"vllm:num_requests_running{", b"vllm:num_requests_running{"
    )
    found = counters(page + second)
    assert found is not None
    assert found.generation_tokens == 64.0


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_not_waited_for(status: int) -> None:
    reading, writing = os.pipe()
    with engine(lambda *_: (status, b"")) as port, pytest.raises(NotReadyError, match="refuses sparkd's key"):
        wait_for(port, Limits(30, 5), reading)
    os.close(reading)
    os.close(writing)
