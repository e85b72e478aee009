"""A soak: requests for minutes or hours, with samples of the nodes' memory and GPUs. soak_verdict.py judges them."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import cycle

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.host import Host
from sparkd.base.host.meminfo import read_swaps
from sparkd.base.lib.http_client import HttpError
from sparkd.base.status.model import read_living_report
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.streaming import StreamError
from sparkd.tools.measure.bench import REQUEST_SECONDS, Prompts, Wanted

SAMPLE_SECONDS = 5.0
"""Time between two samples."""
STEP_SECONDS = 20.0
"""Time for one number of requests at once, before the next number's turn."""


class Sample(Struct, frozen=True):
    """Memory and GPUs at a time, with totals of requests up to then. `read_sample` leaves time and totals at 0."""

    seconds: float
    """Since the beginning."""
    available_bytes: Mapping[str, int | None]
    """Bytes by node; None for a node that does not answer."""
    cached_bytes: int
    """Page cache of this node."""
    swap_used_bytes: int
    """On this node."""
    gpu_celsius: int | None
    """The hottest GPU of all nodes."""
    gpu_mhz: int | None
    """The slowest GPU of all nodes."""
    answered: int = 0
    failed: int = 0
    tokens: int = 0


def read_sample(host: Host) -> Sample | None:
    """This node now, and the others as they last reported; None where this node can't be read."""
    try:
        memory, swaps = host.meminfo(), read_swaps(host.files)
    except (OSError, ValueError):
        return None
    report = read_living_report(host.files)
    peers = [(peer.name, peer.living) for peer in report.peers if peer.report] if report else []
    gpus = [node.gpu for node in (report, *(living for _, living in peers)) if node and node.gpu]
    return Sample(
        seconds=0.0,
        available_bytes={
            report.node if report else host.name(): memory.available_bytes,
            **{name: node.memory.available_bytes if node and node.memory else None for name, node in peers},
        },
        cached_bytes=memory.cached_bytes,
        swap_used_bytes=sum(swap.used_bytes for swap in swaps),
        gpu_celsius=max((gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None), default=None),
        gpu_mhz=min((gpu.clock_mhz for gpu in gpus if gpu.clock_mhz is not None), default=None),
    )


class Soak:
    """A series of requests. It adds to `samples` while it runs, so that an interrupt loses none."""

    def __init__(
        self,
        endpoint: Endpoint,
        wanted: Wanted,
        read: Callable[[], Sample | None],
        show: Callable[[Sample], object],
        is_alive: Callable[[], bool],
    ) -> None:
        """`read` takes a sample, `show` gets each one that is kept.

        `is_alive`: whether the engine that it began with runs. Another one would be another measurement.
        """
        self.samples: list[Sample] = []
        self.first_failure = ""
        self._endpoint, self._wanted, self._read, self._show = endpoint, wanted, read, show
        self._is_alive = is_alive
        self._prompts = Prompts(wanted.seed)
        self._answered = self._failed = self._tokens = 0
        self._began = 0.0

    async def run(self, seconds: float) -> None:
        """Send requests for so long, or until the engine ends: for STEP_SECONDS each of the numbers at once in turn.

        Raises HttpError, StreamError where not even the first request is answered.
        """
        await self._prompts.calibrate(self._endpoint)
        self._began = time.monotonic()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                    group.create_task(self._take_samples())
                    for at_once in cycle(self._wanted.concurrency):
                        if not self._is_alive():
                            self._note_failure("the engine has ended")
                            break
                        step_end = time.monotonic() + STEP_SECONDS
                        async with asyncio.TaskGroup() as clients:
                            for _ in range(at_once):
                                clients.create_task(self._send_until(step_end))
        finally:
            self._add_sample()  # also after an interrupt: the last sample has the totals

    async def _take_samples(self) -> None:
        while self._is_alive():
            self._add_sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    def _add_sample(self) -> None:
        if sample := self._read():
            totals = {"answered": self._answered, "failed": self._failed, "tokens": self._tokens}
            sample = replace(sample, seconds=time.monotonic() - self._began, **totals)
            self.samples.append(sample)
            self._show(sample)

    async def _send_until(self, end: float) -> None:
        """Send one request after the other until then, by the monotonic clock."""
        while time.monotonic() < end and self._is_alive():
            prompt = self._prompts.make(self._wanted.prompt_tokens)
            try:
                answer = await self._endpoint.stream(prompt, self._wanted.answer_tokens, REQUEST_SECONDS)
            except (HttpError, StreamError) as error:
                self._failed += 1
                self._note_failure(str(error))
                await asyncio.sleep(1)
            else:
                self._answered += 1
                self._tokens += answer.tokens

    def _note_failure(self, reason: str) -> None:
        elapsed_seconds = time.monotonic() - self._began
        self.first_failure = self.first_failure or f"after {elapsed_seconds:.0f} s: {reason}"
