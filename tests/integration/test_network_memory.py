"""An hour of an agent's requests and answers, as fast as they go: its memory stays flat."""

from tests.unit.limits import peak_bytes
from tests.unit.nodes import KEY, network, report, served

from sparkd.base.lib.http_client import HttpClient
from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.status.model import dump

HOUR_SECONDS = 3600
LOOKS = 2 * HOUR_SECONDS // 5
"""/health and /metrics of the engine, every five seconds."""
REPORTS = HOUR_SECONDS // 5
"""A report that is held back for five seconds each time."""
METRICS = b"vllm:num_requests_running 0.0\n" * 1800
"""54 KB, as vLLM's page has."""
GROWTH_BYTES = 512 << 10


def test_an_hour_of_polls_leaves_memory_flat() -> None:
    body = dump(report()).encode()

    async def handle(request: Request) -> Response:
        return Response(200, METRICS if request.path == "/metrics" else body)

    async def poll(client: HttpClient, count: int) -> None:
        for number in range(count):
            path = "/metrics" if number % 2 else "/report"
            answer = await client.request(path, 10, headers={"Sparkd-Nonce": KEY.hex()})
            assert answer.status == 200

    with network() as loop, served("127.0.0.1", handle) as server:
        client = HttpClient(f"http://127.0.0.1:{server.port}")
        loop.submit(poll(client, 300)).result()  # warm
        with peak_bytes() as peak:
            loop.submit(poll(client, LOOKS + REPORTS)).result()
            assert peak() < GROWTH_BYTES
        loop.submit(client.close()).result()
