"""When an engine is ready: its stages, and how long it is waited for."""

import asyncio
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest
from tests.unit.clock import unstalled
from tests.unit.engine_server import Reply, engine, models, serve, token
from tests.unit.nodes import least

from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.agent.engine.readiness import ProbeResult, ReadinessStage, await_ready, probe
from sparkd.base.lib.endings import Ending
from sparkd.base.lib.errors import NotReadyError, RankEndedError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier
from sparkd.base.vllm.api import Endpoint


def serving(request: str, _: str) -> Reply:
    answers = {"GET /v1/models": models("tiny"), "POST /v1/completions": token(), "GET /metrics": (404, b"")}
    return answers[request]


def probe_port(port: int, completion_seconds: float, api_key: str | None = None) -> ProbeResult:
    return asyncio.run(probe(Endpoint("127.0.0.1", port, "tiny", api_key), completion_seconds))


def test_a_refused_connection_is_no_http(port: int) -> None:
    assert probe_port(port, 10).failed is ReadinessStage.HTTP


def test_another_model_fails_the_stage_of_the_model() -> None:
    with engine(lambda *_: models("other")) as port:
        assert probe_port(port, 10) == ProbeResult(ReadinessStage.MODEL, "other")


def test_brackets_without_end_list_no_model() -> None:
    with engine(lambda *_: (200, b"[" * 100_000)) as port:
        assert probe_port(port, 10) == ProbeResult(ReadinessStage.MODEL)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((500, b"engine is dead"), "HTTP 500 engine is dead"),
        ((200, b'{"usage": {"completion_tokens": 0}}'), "no token was made"),
        ((200, b"not json"), "no completion: not json"),
        ((200, b"[" * 100_000), f"no completion: {'[' * 199}…"),
    ],
)
def test_a_completion_without_a_token_fails_the_last_stage(answer: Reply, reason: str) -> None:
    with engine(lambda request, _: models("tiny") if request.startswith("GET") else answer) as port:
        assert probe_port(port, 10) == ProbeResult(ReadinessStage.COMPLETION, reason)


def without_text(pooled: Reply) -> Callable[[str, str], Reply]:
    """An engine of a model that makes no text, as vLLM serves it: without the route of completions."""

    def reply(request: str, key: str) -> Reply:
        if request == "POST /pooling":
            return pooled
        return (404, b'{"detail":"Not Found"}') if request.startswith("POST") else serving(request, key)

    return reply


@pytest.mark.parametrize("body", [b"{}", b"x" * 300_000], ids=["a score", "a vector of each token"])
def test_a_model_that_makes_no_text_is_ready_once_it_pools(body: bytes) -> None:
    with engine(without_text((200, body))) as port:
        assert probe_port(port, 10).failed is None
    for status in (401, 429, 500):
        with engine(without_text((status, b"no"))) as port:
            assert probe_port(port, 10) == ProbeResult(ReadinessStage.COMPLETION, f"HTTP {status} no")


@pytest.mark.parametrize("status", [400, 500])
def test_a_diffusion_model_is_sent_the_temperature_that_it_refuses_once(status: int) -> None:
    temperatures = list[int]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            temperatures.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["temperature"])
            refusal = status, b"The temperature is not yet supported with diffusion models."
            answer_status, body = token() if temperatures[-1] else refusal
            self.send_response(answer_status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            """Nothing on stderr."""

    async def complete_twice(endpoint: Endpoint) -> tuple[bool, bool]:
        return (await endpoint.complete(10)).token, (await endpoint.complete(10)).token

    with serve(Handler) as port:
        assert asyncio.run(complete_twice(Endpoint("127.0.0.1", port, "tiny"))) == (True, True)
    assert temperatures == [0, 1, 1]


def test_a_model_that_neither_makes_text_nor_pools_is_not_waited_for() -> None:
    with engine(without_text((404, b""))) as port, pytest.raises(NotReadyError, match="neither /v1/completions nor"):
        wait_for(port, 30)


def test_a_completion_has_its_own_deadline() -> None:
    with engine(serving, slow_seconds=0.5) as port:
        assert probe_port(port, 0.1) == ProbeResult(ReadinessStage.COMPLETION, "no answer within 0.1 s", late=True)


def page_of(moved: str, count: int) -> bytes:
    """A page of counters, of which one has moved."""
    names = ("num_requests_running", "num_requests_waiting", "iteration_tokens_total_count")
    counts = dict.fromkeys((*names, "prompt_tokens_total", "generation_tokens_total"), 20) | {moved: count}
    return "".join(f"vllm:{name} {value}\n" for name, value in counts.items()).encode()


@pytest.mark.parametrize("answer", [(500, b"dead"), (200, b'{"usage": {"completion_tokens": 0}}'), (404, b"")])
def test_tokens_of_an_own_request_that_fails_prove_nothing(answer: Reply) -> None:
    prompts = iter((0, 1))

    def reply(request: str, key: str) -> Reply:
        if request == "GET /metrics":
            return 200, page_of("prompt_tokens_total", next(prompts))
        return answer if request.startswith("POST") else serving(request, key)

    with engine(reply) as port:
        assert probe_port(port, 10).failed is ReadinessStage.COMPLETION


@pytest.mark.parametrize("wait_seconds", [0.5, 0.0], ids=["waits", "is refused"])
@pytest.mark.parametrize(
    ("tokens", "stage"),
    [
        ((0, 3), None),
        ((3, 3), ReadinessStage.COMPLETION),
        ((None, 3), ReadinessStage.COMPLETION),
        ((0, None), ReadinessStage.COMPLETION),
    ],
    ids=["more than before", "as many as before, by the warm-up", "not known before", "not known now"],
)
@pytest.mark.parametrize("moved", ["prompt_tokens_total", "generation_tokens_total"])
def test_tokens_for_clients_prove_an_engine_whose_own_request_waits_or_is_refused(
    tokens: tuple[int | None, int | None], stage: ReadinessStage | None, wait_seconds: float, moved: str
) -> None:
    counts = iter(tokens)

    def reply(request: str, key: str) -> Reply:
        if request == "GET /metrics":
            count = next(counts)
            return (404, b"") if count is None else (200, page_of(moved, count))
        if request == "POST /v1/completions":
            time.sleep(wait_seconds)
        return (503, b"queue full") if request.startswith("POST") else serving(request, key)

    with engine(reply) as port:
        assert probe_port(port, 0.1).failed is stage


def test_a_token_passes_all_stages_and_only_the_engine_gets_the_key() -> None:
    keys: list[str] = []

    def reply(request: str, key: str) -> Reply:
        keys.append(key)
        return serving(request, key)

    with engine(reply) as port:
        assert probe_port(port, 10, "s3cret").failed is None
    assert keys == ["Bearer s3cret"] * 3


def wait_for(
    port: int, seconds: float, *endings: Ending, works: Callable[[], bool] = bool, completion_seconds: float = 5
) -> None:
    progress = LoadProgress(step="loading weights")
    with MainLoop(Notifier(), {}) as main:
        endpoint = Endpoint("127.0.0.1", port, "tiny")
        main.endings.end_by(*endings)
        await_ready(main, endpoint, seconds, completion_seconds, lambda _: progress, works)


def test_ready_follows_the_first_possible_completion_within_half_a_second() -> None:
    def took() -> float:
        opens_at = time.monotonic() + 1.0

        def reply(request: str, key: str) -> Reply:
            return serving(request, key) if time.monotonic() >= opens_at else (503, b"")

        with engine(reply) as port:
            wait_for(port, 30)
            return time.monotonic() - opens_at

    assert least(took, 0.5) < 0.5


def test_an_ended_container_ends_the_wait(port: int) -> None:
    def raise_if_ended() -> None:
        raise RankEndedError("the engine ended")

    with pytest.raises(RankEndedError):
        wait_for(port, 30, Ending(raise_if_ended))


def test_a_timeout_names_the_stage_and_the_engines_step(port: int) -> None:
    with pytest.raises(NotReadyError, match=r"not ready within 0.5 s: waited for HTTP .* engine was loading weights"):
        wait_for(port, 0.5)


def test_a_load_that_still_works_is_not_ended_by_the_time(port: int) -> None:
    works_until = time.monotonic() + 1.0
    with pytest.raises(NotReadyError, match=r"not ready within 0\.5 s"):
        wait_for(port, 0.5, works=lambda: time.monotonic() < works_until)
    assert time.monotonic() >= works_until


def test_a_load_that_works_for_ever_is_ended_after_three_times_its_time(port: int) -> None:
    began = time.monotonic()
    with pytest.raises(NotReadyError, match=r"not ready within 0\.3 s"):
        wait_for(port, 0.3, works=lambda: True)
    assert time.monotonic() - began >= 0.9


def opened_at(opens_at: float, complete: Callable[[], Reply]) -> Callable[[str, str], Reply]:
    def reply(request: str, key: str) -> Reply:
        time.sleep(max(0.0, opens_at - time.monotonic()))
        return complete() if request.startswith("POST") else serving(request, key)

    return reply


def test_a_load_that_takes_longer_has_time_for_its_first_completion_too() -> None:
    """It may compile kernels for it."""
    pauses = iter((0.8, 0.0))

    def complete() -> Reply:
        time.sleep(next(pauses))
        return token()

    with engine(opened_at(time.monotonic() + 1.2, complete)) as port:
        wait_for(port, 1, works=lambda: True, completion_seconds=0.4)


def test_a_load_that_takes_longer_has_no_more_time_for_completions_that_are_refused() -> None:
    began = unstalled()
    with (
        engine(opened_at(time.monotonic() + 1.2, lambda: (503, b""))) as port,
        pytest.raises(NotReadyError, match="the first completion: HTTP 503"),
    ):
        wait_for(port, 1, works=lambda: True)
    assert unstalled() - began < 2.1


def test_of_a_load_that_answered_in_time_the_completion_under_way_is_the_last_one() -> None:
    began = unstalled()

    def complete() -> Reply:
        time.sleep(2)
        return token()

    with (
        engine(opened_at(0.0, complete)) as port,
        pytest.raises(NotReadyError, match="the first completion: no answer"),
    ):
        wait_for(port, 1, works=lambda: True, completion_seconds=1.3)
    assert unstalled() - began < 2.2


def test_an_endpoint_that_answers_without_a_token_is_ended_by_the_time() -> None:
    began = unstalled()
    with engine(lambda *_: (503, b"")) as port, pytest.raises(NotReadyError, match=r"not ready within 1 s"):
        wait_for(port, 1, works=lambda: True)
    assert unstalled() - began < 2.5


def test_an_endpoint_of_another_model_is_not_waited_for() -> None:
    with engine(lambda *_: models("other")) as port, pytest.raises(NotReadyError, match="serves other, not tiny"):
        wait_for(port, 30)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_not_waited_for(status: int) -> None:
    with engine(lambda *_: (status, b"")) as port, pytest.raises(NotReadyError, match="refuses sparkd's key"):
        wait_for(port, 30)
