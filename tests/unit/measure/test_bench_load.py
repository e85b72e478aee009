"""`sparkd bench` measures a real server by HTTP, and its own client takes little of a processor."""

import asyncio
import json
import time

from tests.unit.engine_server import Reply, engine
from tests.unit.node_reports import ALONE
from tests.unit.plans import plan, recipe
from tests.unit.stream_server import streaming

from sparkd.agent.actions.rank_process import Rank
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.streaming import Streamed
from sparkd.tools.measure import measuring
from sparkd.tools.measure.bench import Prompts, Wanted, measure, send
from sparkd.tools.measure.figures import Depth, LevelFigures
from sparkd.tools.node.served import Served

WANTED = Wanted((1, 4), (60,), 30, 10, 2, staggered=False, seed=1)


async def collect(port: int, wanted: Wanted) -> list[LevelFigures | Depth]:
    return [figures async for figures in measure(Endpoint("127.0.0.1", port, "tiny", connections=100), wanted)]


def test_levels_and_depths_of_a_server_with_known_times() -> None:
    with streaming(0.1, 0.02) as port:
        single, four, deep = asyncio.run(collect(port, WANTED))
    assert isinstance(single, LevelFigures)
    assert isinstance(four, LevelFigures)
    assert isinstance(deep, Depth)
    assert [level.requests for level in (single, four)] == [2, 8]
    assert single.failed == four.failed == 0
    for level, most in ((single, 10 / 0.28), (four, 40 / 0.28)):  # a busy machine is slower, none is faster
        assert level.output_tokens_per_second is not None
        assert 0.5 * most < level.output_tokens_per_second.median < 1.05 * most
    assert deep.prompt_tokens == 60


def test_staggered_requests_begin_one_after_the_other() -> None:
    with streaming(0.1, 0.0) as port:
        endpoint = Endpoint("127.0.0.1", port, "tiny")
        replies = asyncio.run(send(endpoint, ["a"] * 8, 1, 8, 0.05))
    begun = sorted(reply.begun for reply in replies if isinstance(reply, Streamed))
    assert 0.1 < begun[-1] - begun[0] < 1.5


def test_a_measurement_ends_after_a_level_without_an_answer() -> None:
    served = []

    def reply(request: str, _: str) -> Reply:
        served.append(request)
        usage = {"prompt_tokens": 7, "completion_tokens": 10}
        events = ({"choices": [{"text": "a"}]}, {"choices": [], "usage": usage})
        whole = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        return (503, b"draining") if len(served) > 6 or request.startswith("GET") else (200, whole)

    with engine(reply) as port:
        single, four = asyncio.run(collect(port, WANTED))
    assert isinstance(single, LevelFigures)
    assert isinstance(four, LevelFigures)
    assert single.failed == 0
    assert four.failed == 8
    assert four.fault == "HTTP 503 draining"


def test_an_endpoint_is_measured_once_more_at_once_as_after_kernels_were_compiled() -> None:
    node = NodeContext(plan(), Settings(), recipe(), Settings())
    with streaming(0.0, 0.0) as port:
        served = Served(node, ALONE, Rank("c", "c", "i", 1, -1), Endpoint("127.0.0.1", port, "tiny", connections=4))
        benchmarks = [measuring.run(served, WANTED) for _ in range(2)]
    assert [(len(benchmark.levels), benchmark.fault) for benchmark in benchmarks] == [(2, "")] * 2


def test_no_two_prompts_begin_alike_and_lengths_follow_the_servers_count() -> None:
    with streaming(0.0, 0.0) as port:
        prompts = Prompts(7)
        asyncio.run(prompts.calibrate(Endpoint("127.0.0.1", port, "tiny")))
    texts = [prompts.make(50) for _ in range(100)]
    beginnings = {text[:12] for text in texts}
    assert {len(text.split()) for text in texts} == {50}
    assert len(beginnings) == 100
    assert Prompts(8).make(50)[:12] not in beginnings


def test_a_hundred_requests_in_flight_take_less_than_half_a_core() -> None:
    """1,250 tokens a second, four times what any recipe has."""
    with streaming(0.2, 0.08) as port:
        endpoint = Endpoint("127.0.0.1", port, "tiny", connections=100)
        began, used = time.monotonic(), time.process_time()
        replies = asyncio.run(send(endpoint, ["word"] * 100, 25, 100, 0))
        seconds, cpu = time.monotonic() - began, time.process_time() - used
    assert not [reply for reply in replies if isinstance(reply, str)]
    print(f"100 requests, 2500 tokens in {seconds:.2f} s: {cpu:.2f} s of CPU, {cpu / seconds:.2f} of a core")
    assert cpu / seconds < 0.5
