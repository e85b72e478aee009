"""A document that takes long to read: one reader at a time, beside the event loop."""

import asyncio
import threading
import time

import pytest

from sparkd.base.lib.slow_document import SlowDocument


def test_while_a_request_is_read_for_another_one_is_not_answered() -> None:
    go, read = threading.Event(), list[str]()

    def slow(query: str) -> bytes:
        read.append(query)
        go.wait(10)
        return b"lines"

    async def read_all() -> list[bytes | None]:
        server = SlowDocument("log", slow)
        first = asyncio.create_task(server.get("one"))
        await asyncio.sleep(0.05)
        second = await server.get("another")
        go.set()
        return [await first, second, await server.get("one")]

    assert asyncio.run(read_all()) == [b"lines", None, b"lines"]
    assert read == ["one", "one"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_read_is_the_error_of_its_request_and_the_next_request_reads_again() -> None:
    failures = [OSError("the disk has failed")]

    def read(_query: str) -> bytes:
        if failures:
            raise failures.pop()
        return b"later"

    async def get_twice() -> bytes | None:
        cache = SlowDocument("inventory", read, fresh_seconds=0.01)
        with pytest.raises(OSError, match="the disk has failed"):
            await cache.get("")
        await asyncio.sleep(0.02)
        return await cache.get("")

    assert asyncio.run(get_twice()) == b"later"


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_as_the_reading_ends_is_not_lost(turns: int) -> None:
    """A server's task would stay at the end of its loop. Python 3.11's asyncio.wait_for loses it."""

    async def cancel() -> bool:
        go = threading.Event()
        task = asyncio.create_task(SlowDocument("log", lambda _query: go.wait(10)).get(""))
        await asyncio.sleep(0.05)
        go.set()
        time.sleep(0.05)  # so that the end of the reading is news of the next turn
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = task.done()
        task.cancel()
        await asyncio.wait([task])
        return was_done or task.cancelled()

    assert asyncio.run(cancel())
