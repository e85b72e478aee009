"""Requests that warm an engine, which stands in: it compiles a kernel for each new kind of batch; and a run with it."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.integration.agent_world import API_PORT, World, configuration, world
from tests.integration.test_stop_while_hung import RECIPE
from tests.unit.engine_server import engine as answering
from tests.unit.engine_server import models
from tests.unit.nodes import until
from tests.unit.wire import reserved_port

from sparkd.base.lib.errors import ExitCode
from sparkd.base.lib.http_client import HttpError
from sparkd.base.status.figures import EngineReport
from sparkd.base.status.model import Phase
from sparkd.base.vllm import warm_up as module
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.warm_up import Compiled, Result
from sparkd.base.vllm.warm_up_steps import Limits

PROGRAM = Path(__file__).parent / "programs/endpoint_alike.py"
LIMITS = Limits(batch_tokens=2048, requests=8, context_tokens=4096)
STORM = 500
STILL_SECONDS = 10.0
CACHE = f"/var/lib/sparkd/cache/{'d' * 64}/triton"
WARMING, WARM, COLD = "engine.kernels.warming", "engine.kernels.warm ", "engine.kernels.cold"
READY = "engine.readiness.reached"
NODE = "10.77.0.2"
SMALL = ("engine.args.max-num-seqs = 8", "engine.args.max-num-batched-tokens = 2048")


warm_up = partial(module.warm_up, settle_seconds=0.0)
"""Of an engine that has no reports to be waited for."""


@contextmanager
def engine(folder: Path) -> Iterator[int]:
    """Its port."""
    with reserved_port() as port:
        command = (sys.executable, "-I", "-S", str(PROGRAM), str(port), "serving", "compiling", str(folder))
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                until(lambda: answers(port), 10)
                yield port
            finally:
                process.kill()


def endpoint_of(port: int) -> Endpoint:
    """For one event loop."""
    return Endpoint("127.0.0.1", port, "tiny", connections=16)


def answers(port: int) -> bool:
    try:
        return asyncio.run(endpoint_of(port).health()) == 200
    except HttpError:
        return False


def warmed(port: int, folder: Path, seconds: float = 30.0, limits: Limits = LIMITS) -> Result:
    async def look() -> Compiled:
        return Compiled(0, len(list(folder.iterdir())), 0)

    return asyncio.run(warm_up(endpoint_of(port), limits, look, lambda *_: None, seconds, STILL_SECONDS))


def storm(port: int, seed: int) -> None:
    """Requests of random sizes, one to eight at a time."""
    draw, left, endpoint = Random(seed), STORM, endpoint_of(port)

    async def send() -> None:
        nonlocal left
        while left > 0:
            count = draw.randint(1, 8)
            left -= count
            prompts = [[100] * draw.randint(1, 2048 // count) for _ in range(count)]
            wishes = [{"temperature": draw.choice((0, 1))} for _ in range(count)]
            pairs = zip(prompts, wishes, strict=True)
            await asyncio.gather(*(endpoint.generate(prompt, draw.randint(1, 4), 10, wish) for prompt, wish in pairs))

    asyncio.run(send())


def kernels(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(2, 10))])
def test_after_a_warm_up_a_storm_of_requests_compiles_nothing(tmp_path: Path, seed: int) -> None:
    with engine(tmp_path) as port:
        result = warmed(port, tmp_path)
        assert result.whole and not result.fault.startswith("HTTP 5"), result
        before = kernels(tmp_path)
        assert len(before) == result.files > 15
        storm(port, seed)
        assert kernels(tmp_path) == before


def test_without_a_warm_up_the_storm_compiles(tmp_path: Path) -> None:
    with engine(tmp_path) as port:
        storm(port, 1)
        assert len(kernels(tmp_path)) > 15


def test_a_warm_up_ends_in_time_and_says_that_it_is_not_whole(tmp_path: Path) -> None:
    with engine(tmp_path) as port:
        result = warmed(port, tmp_path, seconds=0.05)
    assert not result.whole and result.passes == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [(404, b"Not Found"), (400, b"The temperature is not yet supported with diffusion models.")],
    ids=["no text", "diffusion"],
)
def test_a_model_that_refuses_prompts_of_text_needs_no_warm_up(tmp_path: Path, status: int, body: bytes) -> None:
    with answering(lambda *_: (status, body)) as port:
        result = warmed(port, tmp_path)
    assert (result.whole, result.over, result.requests < 10) == (True, True, True)
    assert result.shown.startswith("passes: 0, ")
    assert result.shown.endswith(f"not answered: HTTP {status} {body.decode()}")


def test_an_endpoint_that_is_gone_ends_a_warm_up(tmp_path: Path) -> None:
    with engine(tmp_path) as port:
        pass
    result = warmed(port, tmp_path)
    assert (result.whole, result.over, result.lost, result.requests) == (False, False, True, module.TRIES)
    assert "refused" in result.shown


def test_json_is_requested_alone_and_beside_others(tmp_path: Path) -> None:
    """Triton compiles another kernel where a number is 1: three came in the first JSON after a ladder without it."""
    calls = list[str]()

    def reply(call: str, _: str) -> tuple[int, bytes]:
        calls.append(call)
        return 400, b"{}"

    with answering(reply) as port:
        assert warmed(port, tmp_path, limits=Limits(1, 1, 64)).passes == 1
    assert sum(call.endswith("chat/completions") for call in calls) == 2


@pytest.mark.parametrize("status", [400, 500])
def test_a_warm_up_without_an_answer_is_not_whole(tmp_path: Path, status: int) -> None:
    with answering(lambda call, _: (status, b"no") if call.endswith("completions") else models("tiny")) as port:
        result = warmed(port, tmp_path, limits=Limits(16, 2, 64))
    assert (result.whole, result.over, result.lost) == (False, False, False)
    assert f"HTTP {status} no" in result.shown


@pytest.mark.parametrize(
    ("progress", "lost"),
    [
        ([Compiled(0, 0, 0)], True),
        ([Compiled(0, 0, 1)], False),
        ([Compiled(0, 0, 0, works=True)], False),
        ([Compiled(0, number, 0) for number in range(99)], False),
    ],
)
@pytest.mark.parametrize("engines", [1, 3])
def test_a_request_that_hangs_is_waited_for_while_somebody_compiles(
    tmp_path: Path, progress: list[Compiled], lost: bool, engines: int
) -> None:
    looks = iter(progress)

    async def look() -> Compiled:
        return next(looks, progress[-1])

    limits = Limits(1, 1, 64, engines=engines)  # of several, each step is a batch

    async def warm() -> tuple[Result, float]:
        began = time.monotonic()
        return await warm_up(endpoint_of(port), limits, look, lambda *_: None, 3, 0.5), began

    def reply(call: str, _: str) -> tuple[int, bytes]:
        time.sleep(8 if call.endswith("/completions") else 0)
        return 404, b"{}"

    with answering(reply) as port:
        result, began = asyncio.run(warm())
        took_seconds = time.monotonic() - began
    assert (result.lost, result.over) == (lost, False)
    assert ("nothing is compiled" in result.fault) == lost
    assert (took_seconds < 2.5) == lost, took_seconds


def test_a_kernel_that_is_compiled_in_each_pass_does_not_hold_a_warm_up_for_ever(tmp_path: Path) -> None:
    counts = iter(range(100))

    async def look() -> Compiled:
        return Compiled(next(counts), 0, 0)

    with engine(tmp_path) as port:
        limits = Limits(16, 2, 64)
        result = asyncio.run(warm_up(endpoint_of(port), limits, look, lambda *_: None, 30, STILL_SECONDS))
    assert (result.whole, result.passes) == (False, module.MOST_PASSES)


def test_a_warm_up_waits_for_a_compiler_that_still_runs(tmp_path: Path) -> None:
    compilers = iter([0, 3, 2, 0, 0])

    async def look() -> Compiled:
        return Compiled(0, 0, next(compilers))

    with engine(tmp_path) as port:
        assert asyncio.run(warm_up(endpoint_of(port), Limits(4, 1, 64), look, lambda *_: None, 30, STILL_SECONDS)).whole
    assert list(compilers) == [0]


@contextmanager
def node_with_gpu(*lines: str, pair: bool = False) -> Iterator[World]:
    with world(pair=pair) as node:
        recipe = RECIPE.replace("extends: tiny-cpu", "extends: tiny-cpu-pair") if pair else RECIPE
        node.tree.file("/etc/sparkd/recipes/gpu.yaml", recipe)
        node.configure(configuration(*SMALL, *lines, recipe="gpu", pair=pair))
        node.control(engine=[str(API_PORT), "serving", "compiling", CACHE])
        yield node


def serves(node: World) -> list[str]:
    """Started again: its events of kernels and of readiness, in order."""
    node.lines.clear()
    (node.root / "run/sparkd/report.json").unlink(missing_ok=True)  # of the run before
    node.start_agent()
    if node.peer is not None:
        node.lead_peer()
    node.await_phase("serving")
    node.await_line(READY)  # before that in the journal, whose lines the test reads a moment later
    known = (WARMING, WARM, COLD, READY)
    return [event.strip() for line in node.lines for event in known if f"{event.strip()} " in f"{line} "]


def ends(node: World) -> None:
    node.terminate()
    assert node.exit_code(30) == 0


def warmth(node: World) -> object:
    engine = node.report["engine"]
    assert isinstance(engine, dict)
    return engine.get("warmth")


def test_a_cold_start_is_warmed_before_ready_and_the_next_one_is_not() -> None:
    with node_with_gpu() as node:
        folder = node.root / CACHE.lstrip("/")
        assert serves(node) == [WARMING, WARM.strip(), READY]
        assert warmth(node) == "warm"
        assert len(kernels(folder)) > 15
        ends(node)
        began = time.monotonic()
        assert serves(node) == [READY]
        again_seconds = time.monotonic() - began
        assert warmth(node) == "warm"
        ends(node)
        sorted(folder.iterdir())[0].unlink()  # as a pruned cache, or one that a request has filled
        began = time.monotonic()
        assert serves(node) == [WARMING, WARM.strip(), READY]
        assert time.monotonic() - began > again_seconds
        ends(node)


def test_the_setting_can_turn_warming_off_and_an_engine_that_cant_be_warmed_serves() -> None:
    with node_with_gpu('readiness.warm = "never"') as node:
        assert serves(node) == [READY]
        assert warmth(node) == ""
        ends(node)
        node.configure(configuration(*SMALL, 'readiness.warm = "always"'))
        assert serves(node) == [WARMING, WARM.strip(), READY]
        ends(node)
        node.configure(configuration(recipe="gpu"))
        node.control(engine=[str(API_PORT), "serving"])  # it does not say how long its context is
        assert serves(node) == [WARMING, COLD, READY]
        assert warmth(node) == "cold"
        ends(node)


def test_a_worker_that_is_cold_is_warmed_by_its_head_too() -> None:
    with node_with_gpu(pair=True) as node:
        assert serves(node) == [WARMING, WARM.strip(), READY]
        ends(node)
        assert node.peer is not None
        node.peer.publish(phase=Phase.AWAITING_PEERS, epoch="", engine=EngineReport(warmth="cold"))
        assert serves(node) == [WARMING, WARM.strip(), READY]
        assert any(NODE in line for line in node.lines if WARMING in line and "spark1" not in line)
        ends(node)


def test_an_engine_that_dies_while_it_is_warmed_ends_the_run() -> None:
    with node_with_gpu() as node:
        node.start_agent()
        node.await_line(WARMING)
        node.control(signal=9)
        assert node.exit_code(30) == ExitCode.ENGINE_ENDED
        assert begun(node) == 1
        node.lines.clear()
        node.start_agent()
        node.await_line(WARMING)
        node.terminate()  # which is no fault of the engine's
        assert node.exit_code(30) == 0
        assert begun(node) == 1
        node.start_agent()
        until(lambda: begun(node) == 2, 60)
        node.control(signal=9)
        assert node.exit_code(30) == ExitCode.ENGINE_ENDED
        assert serves(node) == [COLD, READY]
        assert warmth(node) == ""
        ends(node)


def test_an_engine_whose_api_closes_before_it_ends_is_counted_too() -> None:
    with node_with_gpu("supervise.stall_seconds = 10") as node:
        node.start_agent()
        node.await_line(WARMING)
        node.control(signal=10)  # it closes its port, and ends by itself three seconds later
        assert node.exit_code(60) in (ExitCode.ENGINE_ENDED, ExitCode.NOT_READY)
        assert begun(node) == 1


def begun(node: World) -> int:
    """How often in a row the engine has ended while it was warmed."""
    plans = node.read("var/lib/sparkd/warm.json").get("plans")
    return int(plans[0]["begun"]) if isinstance(plans, list) and plans else 0
