"""Traffic between two nodes for some seconds: how much their ports carry, and how long a round trip takes.

One node listens on the report port, which is free while no agent runs, with the signed HTTP of the reports; the other
node connects and measures. It sends GET requests:

    /fabric/ports            returns the listening node's report of its ports
    /fabric/tcp              starts iperf3 there, for the one run that follows
    /fabric/rdma             starts ib_write_bw there; 404 without that program, or without a device at the address
    /fabric/result?BASE64    takes the figures

A round trip is the time in which TCP connects: SYN there and SYN-ACK back, between the two kernels. An exchange by HTTP
takes many times as long, most of it in the programs at both ends.
"""

import asyncio
import math
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from statistics import median, quantiles

from msgspec import Struct

from sparkd.agent.cluster.client import SignedClient, Source
from sparkd.agent.cluster.peer_api import PeerApi
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.http_connection import Limits, Request, Response
from sparkd.base.lib.http_server import HttpServer
from sparkd.tools.measure import traffic_programs as programs
from sparkd.tools.measure.traffic_programs import TrafficError, rdma_command, tcp_command

PORTS, TCP, RDMA, RESULT = "/fabric/ports", "/fabric/tcp", "/fabric/rdma", "/fabric/result"
LIMITS = Limits(header_bytes=60_000, requests_per_second=math.inf)
"""A result of 32 pairs of ports takes 30,000 bytes."""
LOOPBACK = "127.0.0.1"

WAIT_SECONDS = 120.0
"""How long a node waits for another one."""

Keys = Callable[[], tuple[bytes, ...]]
"""Returns the cluster's keys, the signing one first. The others are accepted, too, while keys are changed."""


class PairFigures(Struct, frozen=True):
    """Figures between two addresses, seen from the first node."""

    sent_gbps: float
    received_gbps: float
    round_trip_us: float
    """The median."""
    round_trip_99_us: float
    """The 99th percentile."""


class Listener:
    """An HTTP server on one address of this node. It starts the programs that measure, one at a time."""

    def __init__(
        self, address: str, port: int, keys: Keys, facts: bytes, hca: str, queries: asyncio.Queue[str]
    ) -> None:
        """`facts`: the answer to PORTS; `hca`: the RDMA device of the address, empty for none.

        `queries` gets the query of each signed request: the result, or nothing. Raises OSError.
        """
        self._commands = {TCP: tcp_command(address), **({RDMA: rdma_command(hca)} if hca else {})}
        documents = {PORTS: facts, RESULT: b"{}", **dict.fromkeys(self._commands, b"{}")}
        self._api = PeerApi(address, keys, hold_seconds=0, documents=documents)
        self._queries = queries
        self._process: subprocess.Popen[bytes] | None = None
        self.server = HttpServer(address, port, self._handle, LIMITS)

    def end_program(self) -> None:
        if self._process is not None:
            programs.end(self._process)
            self._process = None

    async def _handle(self, request: Request) -> Response:
        answer = await self._api.handle(request)
        if answer.status == 200:  # the request was signed
            path, _, query = request.path.partition("?")
            self._queries.put_nowait(query)
            if path in self._commands:
                self.end_program()
                self._process = programs.listen(self._commands[path])
        return answer


async def receive_result(
    addresses: Mapping[str, str],
    port: int,
    keys: Keys,
    facts: bytes,
    seconds: float,
    pause_seconds: float = WAIT_SECONDS,
) -> str | None:
    """Listen until the result comes, in base64. None where no signed request comes for `seconds`, or another one for
    `pause_seconds` after it.

    `addresses`: the RDMA device of each address, empty for none. Raises OSError.
    """
    queries = asyncio.Queue[str]()
    listeners = [Listener(address, port, keys, facts, hca, queries) for address, hca in addresses.items()]
    tasks = [asyncio.create_task(listener.server.serve()) for listener in listeners]
    try:
        while not (query := await asyncio.wait_for(queries.get(), seconds)):
            seconds = pause_seconds
    except TimeoutError:
        return None
    else:
        return query
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in listeners:
            listener.end_program()


class Measurer(Struct, frozen=True):
    """Measures from an address of this node to a Listener's on another node."""

    own_address: str
    other_address: str
    port: int
    keys: Keys

    def request(self, path: str, body: bytes = b"") -> bytes:
        """The answer's body, empty where the path is unknown there. Raises UnsignedError, TrafficError."""

        async def exchange() -> bytes:
            query = f"?{urlsafe_b64encode(body).decode()}" if body else ""
            client = SignedClient(Source(0, self.other_address, self.port, self.own_address, hold_seconds=0), self.keys)
            try:
                return (await client.request(f"{path}{query}")).body
            finally:
                await client.close()

        try:
            return asyncio.run(exchange())
        except HttpError as error:  # without "[Errno 111]", as other reasons are
            raise TrafficError(str(error).rpartition("] ")[2].lower()) from None

    def measure(self) -> PairFigures:
        """The figures by TCP; this takes some 8 s. Raises UnsignedError, OSError, TrafficError."""
        trip_seconds, rates = self._measure_trips(), list[float]()
        for reverse in (False, True):
            self.request(TCP)
            rates.append(programs.measure_tcp(self.own_address, self.other_address, reverse=reverse))
        return PairFigures(rates[0], rates[1], median(trip_seconds) * 1e6, quantiles(trip_seconds, n=100)[-1] * 1e6)

    def measure_rdma(self, hca: str) -> float | None:
        """Gb/s to the other node; None where that has no device or program for it. Raises as `measure` does."""
        return programs.measure_rdma(hca, self.other_address) if self.request(RDMA) else None

    def _measure_trips(self) -> list[float]:
        """Seconds of 2 to 500 round trips, within 2 s. Raises OSError."""
        family = socket.AF_INET6 if ":" in self.other_address else socket.AF_INET
        trip_seconds, end = list[float](), time.monotonic() + 2.0
        while len(trip_seconds) < 500 and (len(trip_seconds) < 2 or time.monotonic() < end):
            with socket.socket(family) as connection:
                connection.settimeout(3.0)
                connection.bind((self.own_address, 0))
                began = time.perf_counter()
                connection.connect((self.other_address, self.port))
                trip_seconds.append(time.perf_counter() - began)
        return trip_seconds


def measure_ceiling() -> float:
    """Gb/s that iperf3 reaches where no cable takes part. Raises TrafficError, OSError."""
    process = programs.listen(tcp_command(LOOPBACK))
    try:
        return programs.measure_tcp(LOOPBACK, LOOPBACK)
    finally:
        programs.end(process)
