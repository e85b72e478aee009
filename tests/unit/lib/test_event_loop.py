"""The event loop: the error of every task reaches somebody, and a call that hangs holds no end."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from tests.unit.clock import unstalled
from tests.unit.nodes import network, until

from sparkd.base.lib.event_loop import EventLoop


def test_a_tasks_error_or_end_is_reported_and_other_tasks_continue() -> None:
    errors: list[BaseException] = []
    beats: list[int] = []
    bug = TypeError("a bug")

    async def end(error: BaseException | None) -> None:
        if error:
            raise error

    async def beat() -> None:
        while True:
            beats.append(1)
            await asyncio.sleep(0.01)

    with network(errors.append) as loop:
        loop.spawn(beat())
        for number, error in enumerate((bug, asyncio.CancelledError(), None), start=1):
            loop.spawn(end(error))
            until(lambda count=number: len(errors) >= count)  # type: ignore[misc]  # bound now
        before = len(beats)
        until(lambda: len(beats) > before)
    assert errors[0] is bug
    assert [str(error).startswith("a task has ended: <coroutine object ") for error in errors[1:]] == [True, True]


def test_finishing_cancels_every_task_waits_for_its_end_and_reports_nothing() -> None:
    errors: list[BaseException] = []
    cleaned: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(number)

    threads = set(threading.enumerate())
    with network(errors.append) as loop:
        for number in range(3):
            loop.spawn(work(number))
        time.sleep(0.05)
    assert sorted(cleaned) == [0, 1, 2]
    assert errors == []
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


def test_a_task_that_does_not_heed_its_cancelling_holds_the_end_for_a_moment_only() -> None:
    async def insist() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    loop = EventLoop()
    loop.spawn(insist())
    loop.turn(0)
    began = unstalled()
    loop.finish()
    loop.finish()
    assert loop.is_closed()
    assert unstalled() - began < 3


def test_a_call_that_hangs_beside_the_loop_holds_no_end_of_its_process() -> None:
    program = """
import time
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier

with MainLoop(Notifier(), {}) as loop:
    try:
        loop.beside(lambda: time.sleep(30), 0.2, "a nap")
    except TimeoutError:
        pass
"""
    began = unstalled()
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20, env=environment)
    assert unstalled() - began < 10


def test_an_address_needs_no_thread_and_a_name_has_one_that_is_a_daemon() -> None:
    async def look_up(host: str) -> tuple[str, set[threading.Thread]]:
        """The address, and the threads that run once it is known, without those of earlier tests."""
        addresses = await asyncio.get_running_loop().getaddrinfo(host, 80)
        return str(addresses[0][4][0]), {*threading.enumerate()} - before

    with network() as loop:
        before = {*threading.enumerate()}
        for address in ("192.0.2.1", "::1"):
            assert loop.submit(look_up(address)).result() == (address, set())
        resolved, threads = loop.submit(look_up("localhost")).result()
        assert resolved in ("127.0.0.1", "::1")
        assert all(thread.daemon for thread in threads)
        assert not [thread for thread in {*threading.enumerate()} - before if thread.is_alive() and not thread.daemon]


def test_where_no_thread_can_be_started_a_name_is_not_resolved_for_now(no_thread: None) -> None:
    loop = EventLoop()
    with closing(loop), pytest.raises(socket.gaierror):
        loop.run_until_complete(loop.create_connection(asyncio.Protocol, "a.name.invalid", 1))
