"""The network loop: an error that ends a task or the loop is reported."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from tests.unit.nodes import network, until

from sparkd.lib.event_loop import EventLoop, run_in_thread


def test_a_result_and_an_error_come_back_to_the_calling_thread() -> None:
    async def divide(by: int) -> float:
        await asyncio.sleep(0)
        return 1 / by

    with network() as loop:
        assert loop.submit(divide(2)).result() == 0.5
        with pytest.raises(ZeroDivisionError):
            loop.submit(divide(0)).result()


def test_a_tasks_error_is_reported_and_other_tasks_continue() -> None:
    died: list[BaseException] = []
    beats: list[int] = []
    bug = TypeError("a bug")

    async def die(error: BaseException | None) -> None:
        if error:
            raise error

    async def beat() -> None:
        while True:
            beats.append(1)
            await asyncio.sleep(0.01)

    with network(died.append) as loop:
        loop.spawn(beat())
        for number, error in enumerate((bug, asyncio.CancelledError()), start=1):
            loop.spawn(die(None))
            loop.spawn(die(error))
            until(lambda count=number: len(died) >= count)  # type: ignore[misc]  # bound now
        before = len(beats)
        until(lambda: len(beats) > before)
    assert [*map(repr, died)] == [repr(bug), repr(RuntimeError("a network task was cancelled"))]


def test_the_loops_error_is_reported_and_later_calls_do_nothing() -> None:
    died: list[BaseException] = []

    def die() -> None:
        raise SystemExit("out of memory")

    with network(died.append) as loop:
        loop.call(die)
        until(lambda: bool(died))
        until(lambda: loop.unanswered_seconds() == 0)
        time.sleep(0.05)  # the thread closes the loop
        loop.call(die)
        assert loop.unanswered_seconds() == 0
    assert [str(one) for one in died] == ["out of memory"]


def test_closing_cancels_every_task_waits_for_its_end_and_reports_nothing() -> None:
    died: list[BaseException] = []
    cleaned: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(number)

    threads = set(threading.enumerate())
    with network(died.append) as loop:
        for number in range(3):
            loop.spawn(work(number))
        time.sleep(0.05)
    assert sorted(cleaned) == [0, 1, 2]
    assert died == []
    assert set(threading.enumerate()) <= threads, "others may have ended meanwhile"


def test_what_a_task_begins_as_the_loop_ends_begins_too() -> None:
    """anyio's connections are tasks of tasks; the coroutine of one that never began would be warned of."""
    begun: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def work(more: int) -> None:
        begun.append(more)
        if more:
            tasks.append(asyncio.create_task(work(more - 1)))
        await asyncio.sleep(60)

    with network() as loop:
        loop.call(time.sleep, 0.2)  # the task and the end come in one turn
        loop.spawn(work(3))
    assert begun == [3, 2, 1, 0]
    assert all(task.cancelled() for task in tasks)


def test_a_loop_that_hangs_leaves_a_ping_unanswered_until_it_turns_again() -> None:
    with network() as loop:
        for _ in range(5):
            until(lambda: loop.unanswered_seconds() == 0)
            time.sleep(0.02)
        turns = threading.Event()
        until(lambda: loop.unanswered_seconds() == 0)
        loop.submit(asyncio.sleep(0)).result()  # it has answered that ping
        loop.call(turns.wait)
        began = time.monotonic()
        loop.unanswered_seconds()
        time.sleep(0.3)
        assert 0.25 < loop.unanswered_seconds() <= time.monotonic() - began
        turns.set()
        until(lambda: loop.unanswered_seconds() == 0)


@pytest.mark.parametrize("error", [OSError("no"), RuntimeError("a bug"), StopIteration("of an iterator")])
def test_the_error_of_a_call_beside_the_loop_reaches_who_waits_for_it(error: Exception) -> None:
    async def call(work: Callable[[], str]) -> str:
        return await run_in_thread("a-call", work)

    def fail() -> str:
        raise error

    with network() as loop:
        assert loop.submit(call(lambda: "done")).result(5) == "done"
        with pytest.raises((OSError, RuntimeError), match=str(error)):
            loop.submit(call(fail)).result(5)


def test_a_call_that_hangs_beside_the_loop_holds_no_end_of_its_process() -> None:
    program = """
import asyncio, time
from sparkd.lib.event_loop import EventLoop, run_in_thread

async def wait() -> None:
    await asyncio.wait_for(run_in_thread("hangs", lambda: time.sleep(30)), 0.2)

loop = EventLoop()
loop.start()
try:
    loop.submit(wait()).result(5)
except TimeoutError:
    pass
loop.close()
"""
    began = time.monotonic()
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20, env=environment)
    assert time.monotonic() - began < 10


def test_an_address_needs_no_thread_and_a_name_has_one() -> None:
    threads: list[set[threading.Thread]] = []

    async def look_up(host: str) -> str:
        found = await asyncio.get_running_loop().getaddrinfo(host, 80)
        threads.append({*threading.enumerate()})
        return str(found[0][4][0])

    with network() as loop:
        before = {*threading.enumerate()}  # of those that an earlier test has left, some may end meanwhile
        assert [loop.submit(look_up(one)).result() for one in ("192.0.2.1", "::1")] == ["192.0.2.1", "::1"]
        assert [one - before for one in threads] == [set(), set()]
        assert loop.submit(look_up("localhost")).result() in ("127.0.0.1", "::1")
        assert len(threads[-1] - before) == 1


@pytest.mark.filterwarnings("error")
def test_a_task_for_a_closed_loop_is_not_begun_and_reports_nothing() -> None:
    died: list[BaseException] = []
    begun: list[int] = []

    async def work() -> None:
        begun.append(1)

    with network(died.append) as loop:
        pass
    loop.spawn(work())
    assert (died, begun) == ([], [])


def test_work_for_a_loop_that_is_not_started_yet_is_done_once_it_is() -> None:
    begun = threading.Event()
    loop = EventLoop()
    loop.call(begun.set)
    assert not begun.wait(0.05)
    loop.start()
    assert begun.wait(5)
    loop.close()
