"""The main loop's waits, with a real socket in place of systemd's."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest
from tests.unit.conftest import Said
from tests.unit.nodes import network, until

from sparkd.lib.event_loop import _Loop
from sparkd.lib.main_loop import Ending, MainLoop, Stage, StopRequested, never
from sparkd.lib.systemd import Notifier


@pytest.fixture
def main() -> MainLoop:
    return MainLoop(Notifier(), {})


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its reading end, and its writing one."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.fixture
def signals() -> Iterator[None]:
    """Their handlers are as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_wait_feeds_the_watchdog_and_extends_the_start_until_ready(said: Said) -> None:
    main = MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"})
    main.wait(0.5)
    starting = said()
    main.report_ready()
    main.wait(0.5)
    main.report_ready()
    serving = said()
    assert starting.count("WATCHDOG=1") >= 3
    assert "EXTEND_TIMEOUT_USEC=60000000" in starting
    assert set(serving) == {"READY=1", "WATCHDOG=1"}
    assert serving.count("READY=1") == 1
    main.extend_timeout(True)
    main.wait(0.2)
    assert "EXTEND_TIMEOUT_USEC=60000000" in said()


def test_a_status_is_sent_once_and_on_one_line_in_utf_8(said: Said) -> None:
    notifier = Notifier()
    for _ in range(3):
        notifier.status("Größe …\n木")
    assert said() == ["STATUS=Größe … 木"]


def test_a_wake_up_ends_a_wait_early(main: MainLoop) -> None:
    threading.Timer(0.05, main.wake).start()
    begun = time.monotonic()
    assert main.wait(5) is False
    assert time.monotonic() - begun < 1


def test_a_readable_fd_ends_a_wait_and_says_so(main: MainLoop, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x")
    assert main.wait(5, pipe[0]) is True


@pytest.mark.parametrize("stage", [Stage.RUN, Stage.INQUEST])
def test_sigterm_ends_a_wait_but_no_shielded_one_and_none_at_the_end(
    main: MainLoop, signals: None, stage: Stage
) -> None:
    main.listen()
    main.enter(stage)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(StopRequested):
        main.wait(5)
    with pytest.raises(StopRequested):
        main.wait_until(never, 5)
    with pytest.raises(StopRequested):
        main.beside(partial(time.sleep, 0.5), 5, "a nap")
    begun = time.monotonic()
    assert main.wait_until(never, 0.2, shielded=True) is False
    assert main.beside(partial(time.sleep, 0.2), 5, "a nap", shielded=True) is None
    main.enter(Stage.END)
    assert main.wait(0.2) is False
    assert main.wait_until(never, 0.2) is False
    assert main.beside(partial(time.sleep, 0.2), 5, "a nap") is None
    assert time.monotonic() - begun >= 1.0


def test_a_hangup_ends_nothing_and_programs_that_it_starts_do_not_ignore_it(main: MainLoop, signals: None) -> None:
    main.listen()
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGHUP)).start()
    assert main.wait(0.3) is False
    with subprocess.Popen(["sleep", "60"]) as program:
        program.send_signal(signal.SIGHUP)
    assert program.returncode == -signal.SIGHUP


def test_where_no_thread_can_be_started_a_call_fails_for_now(main: MainLoop, no_thread: None) -> None:
    begun = time.monotonic()
    with pytest.raises(BlockingIOError):
        main.beside(list, 5, "a call", shielded=True)
    with pytest.raises(BlockingIOError):
        main.beside(list, 5, "a call")
    assert time.monotonic() - begun < 1


def test_where_no_thread_can_be_started_a_name_is_not_resolved_for_now(no_thread: None) -> None:
    loop = _Loop()
    with closing(loop), pytest.raises(socket.gaierror):
        loop.run_until_complete(loop.create_connection(asyncio.Protocol, "a.name.invalid", 1))


def test_a_blocking_call_runs_while_the_watchdog_is_fed(said: Said) -> None:
    def slow() -> str:
        time.sleep(0.5)
        return "done"

    assert MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"}).beside(slow, 5, "a nap") == "done"
    assert said().count("WATCHDOG=1") >= 3


def test_an_error_of_a_blocking_call_is_raised_to_the_caller(main: MainLoop) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        main.beside(fail, 5, "failing")


def test_a_blocking_call_that_hangs_is_a_timeout(main: MainLoop) -> None:
    hanging = threading.Event()
    with pytest.raises(TimeoutError, match=r"sync did not end within 0\.2 s"):
        main.beside(hanging.wait, 0.2, "sync")
    hanging.set()


def test_news_do_not_end_a_wait_for_something_else(main: MainLoop) -> None:
    threading.Timer(0.05, main.wake).start()
    begun = time.monotonic()
    assert main.wait_until(never, 0.3) is False
    assert time.monotonic() - begun >= 0.3


def test_the_end_of_a_process_is_news_once_and_any_wait_sees_it(main: MainLoop) -> None:
    ended = threading.Event()
    with subprocess.Popen(["sleep", "0.1"]) as process:
        pidfd = os.pidfd_open(process.pid)
        main.watch_exit(pidfd, ended.set)
        begun = time.monotonic()
        assert main.wait(10) is False
        assert ended.is_set()
        assert time.monotonic() - begun < 5
        begun = time.monotonic()
        main.wait(0.2)
        assert time.monotonic() - begun >= 0.2, "it is no news any more"
        ended.clear()
        main.watch_exit(pidfd, ended.set)
        assert main.wait_until(ended.is_set, 10, shielded=True)
        ended.clear()
        main.watch_exit(pidfd, ended.set)
        assert main.beside(partial(time.sleep, 0.2), 5, "a nap") is None
        assert ended.is_set()
        main.watch_exit(pidfd, ended.clear)
        main.unwatch_exit(pidfd)
        os.close(pidfd)
    main.wait(0.01)
    assert ended.is_set()


@pytest.mark.parametrize("in_network", [False, True])
def test_a_wake_up_during_a_call_ends_the_next_wait_and_the_calls_own_end_does_not(in_network: bool) -> None:
    with network() as loop:
        main = MainLoop(Notifier(), {}, loop)

        async def answer(work: Callable[[], object]) -> None:
            work()

        def call(work: Callable[[], object]) -> None:
            if in_network:
                main.beside(answer(work), 5, "a call")
            else:
                main.beside(work, 5, "a call")

        call(lambda: None)
        begun = time.monotonic()
        main.wait(0.2)
        assert time.monotonic() - begun >= 0.2
        call(main.wake)
        begun = time.monotonic()
        main.wait(10)
        assert time.monotonic() - begun < 5


class Loss:
    """Something that ends a run once it is lost."""

    def __init__(self, main: MainLoop, name: str) -> None:
        self._main, self._name, self._lost = main, name, False

    def lose(self) -> None:
        self._lost = True
        self._main.wake()

    def raise_if_lost(self) -> None:
        if self._lost:
            raise LookupError(self._name)


WAITS: tuple[Callable[[MainLoop], object], ...] = (
    lambda main: main.wait(5),
    lambda main: main.wait_until(never, 5),
    lambda main: main.beside(partial(time.sleep, 0.5), 5, "a nap"),
)


@pytest.mark.parametrize("wait", WAITS, ids=["wait", "wait_until", "beside"])
def test_an_ending_ends_a_wait_and_the_first_in_order_counts(
    main: MainLoop, wait: Callable[[MainLoop], object]
) -> None:
    first, second = Loss(main, "first"), Loss(main, "second")
    main.end_by(Ending(first.raise_if_lost), Ending(second.raise_if_lost))
    main.wait(0)
    threading.Timer(0.05, second.lose).start()
    begun = time.monotonic()
    with pytest.raises(LookupError, match="second"):
        wait(main)
    assert time.monotonic() - begun < 1
    first.lose()
    with pytest.raises(LookupError, match="first"):
        wait(main)
    assert main.wait_until(never, 0.05, shielded=True) is False
    assert main.beside(lambda: "done", 5, "a call", shielded=True) == "done"


def test_an_ending_counts_up_to_its_stage(main: MainLoop) -> None:
    early, late = Loss(main, "early"), Loss(main, "late")
    main.end_by(Ending(early.raise_if_lost), Ending(late.raise_if_lost, until=Stage.INQUEST))
    early.lose()
    main.enter(Stage.INQUEST)
    assert main.wait(0.01) is False
    late.lose()
    with pytest.raises(LookupError, match="late"):
        main.wait(5)
    main.enter(Stage.END)
    assert main.wait(0.01) is False


def test_a_stop_request_precedes_every_ending(main: MainLoop, signals: None) -> None:
    loss = Loss(main, "rank 1")
    loss.lose()
    main.end_by(Ending(loss.raise_if_lost))
    main.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StopRequested):
        main.wait(5)


def test_a_wait_for_something_ends_when_it_is_there_and_news_let_it_look(main: MainLoop) -> None:
    done = threading.Event()

    def end() -> None:
        main.wake()  # for something else
        time.sleep(0.05)
        done.set()
        main.wake()

    threading.Timer(0.05, end).start()
    begun = time.monotonic()
    assert main.wait_until(done.is_set, 5)
    assert 0.05 <= time.monotonic() - begun < 1
    assert main.wait_until(done.is_set, 5)
    assert time.monotonic() - begun < 1


def test_the_age_of_the_last_keepalive_grows_while_the_main_loop_hangs() -> None:
    main = MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"})
    assert main.keepalive_age() == float("inf")
    main.wait(0.2)
    assert main.keepalive_age() < 0.2
    time.sleep(0.3)
    assert main.keepalive_age() >= 0.3


def test_the_first_error_of_a_thread_ends_the_wait_before_every_ending(main: MainLoop) -> None:
    checked: list[int] = []
    main.end_by(Ending(lambda: checked.append(1)))
    first = TypeError("first")

    def die() -> None:
        main.fail(first)
        main.fail(ValueError("second"))

    threading.Timer(0.05, die).start()
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            main.wait(10)
        assert caught.value is first
    assert time.monotonic() - began < 5
    assert checked == []
    main.enter(Stage.END)
    assert main.wait_until(never, 0.01) is False  # a shutdown still waits


def test_a_network_loop_that_hangs_stops_the_watchdog_and_is_reported_once(said: Said) -> None:
    hung: list[float] = []
    with network() as loop:
        main = MainLoop(Notifier(), {"WATCHDOG_USEC": "150000"}, loop, hung.append, hang_seconds=0.3)
        main.wait(0.3)
        assert said().count("WATCHDOG=1") >= 3
        assert hung == []
        loop.call(time.sleep, 1.5)  # nothing else runs in the loop meanwhile
        main.wait(0.6)
        said()
        main.wait(0.6)
        assert said() == []
        assert len(hung) == 1
        assert 0.3 < hung[0] < 0.6
        main.wait(0.8)
        assert {"WATCHDOG=1", "EXTEND_TIMEOUT_USEC=60000000"} <= set(said())
        assert len(hung) == 1


def test_the_error_of_a_network_task_ends_the_wait(main: MainLoop) -> None:
    async def die() -> None:
        await asyncio.sleep(0.05)
        raise TypeError("a bug")

    with network(main.fail) as loop:
        loop.spawn(die())
        began = time.monotonic()
        with pytest.raises(TypeError, match="a bug"):
            main.wait(10)
        assert time.monotonic() - began < 5


def test_network_work_wakes_the_loop_and_is_cancelled_at_its_timeout(said: Said) -> None:
    cancelled: list[bool] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "done"

    with network() as loop:
        main = MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"}, loop)
        future = main.start(work(0.05))
        began = time.monotonic()
        main.wait(10)
        assert future.result() == "done"
        assert main.beside(work(0.5), 5, "a nap") == "done"
        assert time.monotonic() - began < 5
        assert said().count("WATCHDOG=1") >= 3
        with pytest.raises(TimeoutError, match=r"a nap did not end within 0\.2 s"):
            main.beside(work(60), 0.2, "a nap")
        until(lambda: cancelled == [True])
