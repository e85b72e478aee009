"""A document that takes long to read: one reader at a time, beside the event loop."""

import asyncio
import threading

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
