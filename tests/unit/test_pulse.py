"""The heartbeat, with a real socket in systemd's place."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.nodes import network, until

from sparkd.pulse import Pulse, StopRequested
from sparkd.systemd import Notifier

Said = Callable[[], list[str]]


@pytest.fixture
def said(tmp_path: Path) -> Iterator[Said]:
    """What was said since it was asked last. Read all the while: after ten messages unread, who speaks waits."""
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))

        def listen() -> None:
            while message := listener.recv(4096):
                heard.append(message.decode())

        thread = threading.Thread(target=listen)
        thread.start()

        def take() -> list[str]:
            time.sleep(0.05)  # for what is on its way
            taken = heard[:]
            del heard[: len(taken)]
            return taken

        os.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        yield take
        del os.environ["NOTIFY_SOCKET"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(tmp_path / "notify"))
        thread.join()


def test_waiting_feeds_the_watchdog_and_asks_for_time_until_it_need_not(said: Said) -> None:
    pulse = Pulse(Notifier(), {"WATCHDOG_USEC": "300000"})
    pulse.wait(0.5)
    starting = said()
    pulse.extending = False
    pulse.wait(0.5)
    serving = said()
    assert starting.count("WATCHDOG=1") >= 3
    assert "EXTEND_TIMEOUT_USEC=60000000" in starting
    assert set(serving) == {"WATCHDOG=1"}


def test_a_status_is_sent_once_and_on_one_line(said: Said) -> None:
    notifier = Notifier()
    for _ in range(3):
        notifier.status("loading\nweights")
    assert said() == ["STATUS=loading weights"]


def test_the_bell_ends_a_wait_early() -> None:
    pulse = Pulse(Notifier(), {})
    threading.Timer(0.05, pulse.ring).start()
    begun = time.monotonic()
    assert pulse.wait(5) is False
    assert time.monotonic() - begun < 1


def test_a_readable_fd_ends_a_wait_and_says_so() -> None:
    pulse = Pulse(Notifier(), {})
    reading, writing = os.pipe()
    os.write(writing, b"x")
    assert pulse.wait(5, reading) is True
    os.close(reading)
    os.close(writing)


def test_sigterm_ends_a_wait_as_a_request_to_stop_but_not_the_waits_of_stopping() -> None:
    pulse = Pulse(Notifier(), {})
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    pulse.listen()
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(StopRequested):
            pulse.wait(5)
        reading, writing = os.pipe()
        begun = time.monotonic()
        assert pulse.outwait(0.2, reading) is False
        assert time.monotonic() - begun >= 0.2
        os.close(reading)
        os.close(writing)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_call_that_blocks_runs_beside_the_heartbeat(said: Said) -> None:
    def slow() -> str:
        time.sleep(0.5)
        return "done"

    assert Pulse(Notifier(), {"WATCHDOG_USEC": "300000"}).beside(slow, 5, "a nap") == "done"
    assert said().count("WATCHDOG=1") >= 3


def test_an_error_of_a_call_beside_is_raised_where_it_was_asked_for() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Pulse(Notifier(), {}).beside(fail, 5, "failing")


def test_a_call_beside_that_hangs_is_given_up_in_words() -> None:
    hanging = threading.Event()
    with pytest.raises(TimeoutError, match=r"sync did not end within 0\.2 s"):
        Pulse(Notifier(), {}).beside(hanging.wait, 0.2, "sync")
    hanging.set()


def test_the_bell_does_not_end_the_waits_of_stopping() -> None:
    pulse = Pulse(Notifier(), {})
    reading, writing = os.pipe()
    threading.Timer(0.05, pulse.ring).start()
    begun = time.monotonic()
    assert pulse.outwait(0.3, reading) is False
    assert time.monotonic() - begun >= 0.3
    os.close(reading)
    os.close(writing)


def test_a_status_is_utf_8_whatever_it_holds(said: Said) -> None:
    Notifier().status("Größe … 木")
    assert said() == ["STATUS=Größe … 木"]


def test_what_the_guard_raises_ends_the_wait_that_was_rung_and_no_wait_of_stopping() -> None:
    pulse = Pulse(Notifier(), {})
    lost: list[str] = []

    def guard() -> None:
        if lost:
            raise LookupError(lost[0])

    def lose() -> None:
        lost.append("rank 1")
        pulse.ring()

    pulse.guard = guard
    pulse.wait(0)
    threading.Timer(0.05, lose).start()
    begun = time.monotonic()
    with pytest.raises(LookupError, match="rank 1"):
        pulse.wait(5)
    assert time.monotonic() - begun < 1
    reading, writing = os.pipe()
    assert pulse.outwait(0, reading) is False
    pulse.linger(0.05)
    assert pulse.beside(lambda: "done", 5, "a call") == "done"
    os.close(reading)
    os.close(writing)


def test_a_stop_that_was_asked_for_goes_before_what_the_guard_raises() -> None:
    pulse = Pulse(Notifier(), {})
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def guard() -> None:
        raise LookupError

    pulse.guard = guard
    pulse.listen()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested):
            pulse.wait(5)
        begun = time.monotonic()
        pulse.linger(0.2)
        assert time.monotonic() - begun >= 0.2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_lingering_ends_when_it_is_done_and_the_bell_makes_it_look() -> None:
    pulse = Pulse(Notifier(), {})
    done = threading.Event()

    def end() -> None:
        pulse.ring()  # rung for something else
        time.sleep(0.05)
        done.set()
        pulse.ring()

    threading.Timer(0.05, end).start()
    begun = time.monotonic()
    pulse.linger(5, done.is_set)
    assert 0.05 <= time.monotonic() - begun < 1
    pulse.linger(5, done.is_set)
    assert time.monotonic() - begun < 1


def test_the_age_of_the_last_beat_is_told_and_grows_while_the_main_loop_hangs() -> None:
    pulse = Pulse(Notifier(), {"WATCHDOG_USEC": "300000"})
    assert pulse.beat_age() == float("inf")
    pulse.wait(0.2)
    assert pulse.beat_age() < 0.2
    time.sleep(0.3)
    assert pulse.beat_age() >= 0.3


def test_what_a_thread_died_of_ends_the_wait_before_the_guard_and_the_first_one_counts() -> None:
    pulse = Pulse(Notifier(), {})
    asked: list[int] = []
    pulse.guard = lambda: asked.append(1)
    first = TypeError("first")

    def die() -> None:
        pulse.fail(first)
        pulse.fail(ValueError("second"))

    threading.Timer(0.05, die).start()
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            pulse.wait(10)
        assert caught.value is first
    assert time.monotonic() - began < 5
    assert asked == []
    pulse.linger(0.01)  # what ends the life goes on through it


def test_a_network_loop_that_hangs_gets_no_sign_of_life_until_it_turns_and_is_reported_once(said: Said) -> None:
    hung: list[float] = []
    with network() as loop:
        pulse = Pulse(Notifier(), {"WATCHDOG_USEC": "150000"}, loop, hung.append, hang_seconds=0.3)
        pulse.wait(0.3)
        assert said().count("WATCHDOG=1") >= 3
        assert hung == []
        loop.call(time.sleep, 1.5)  # nothing else runs in the loop meanwhile
        pulse.wait(0.6)
        said()
        pulse.wait(0.6)
        assert said() == []
        assert len(hung) == 1
        assert 0.3 < hung[0] < 0.6
        pulse.wait(0.8)
        assert {"WATCHDOG=1", "EXTEND_TIMEOUT_USEC=60000000"} <= set(said())
        assert len(hung) == 1


def test_a_task_of_the_network_that_dies_ends_the_wait_with_its_reason() -> None:
    async def die() -> None:
        await asyncio.sleep(0.05)
        raise TypeError("a bug")

    pulse = Pulse(Notifier(), {})
    with network(pulse.fail) as loop:
        loop.spawn(die())
        began = time.monotonic()
        with pytest.raises(TypeError, match="a bug"):
            pulse.wait(10)
        assert time.monotonic() - began < 5


def test_work_in_the_network_rings_when_it_is_done_and_is_given_up_in_words_and_cancelled(said: Said) -> None:
    cancelled: list[bool] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "done"

    with network() as loop:
        pulse = Pulse(Notifier(), {"WATCHDOG_USEC": "300000"}, loop)
        future = pulse.submit(work(0.05))
        began = time.monotonic()
        pulse.wait(10)
        assert future.result() == "done"
        assert pulse.result(work(0.5), 5, "a nap") == "done"
        assert time.monotonic() - began < 5
        assert said().count("WATCHDOG=1") >= 3
        with pytest.raises(TimeoutError, match=r"a nap did not end within 0\.2 s"):
            pulse.result(work(60), 0.2, "a nap")
        until(lambda: cancelled == [True])
