"""The heartbeat, with a real socket in systemd's place."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.pulse import Pulse, StopRequested
from sparkd.systemd import Notifier


@pytest.fixture
def messages(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        os.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        yield listener
        del os.environ["NOTIFY_SOCKET"]


def said(listener: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


def test_waiting_feeds_the_watchdog_and_asks_for_time_until_it_need_not(messages: socket.socket) -> None:
    pulse = Pulse(Notifier(), {"WATCHDOG_USEC": "300000"})
    pulse.wait(0.5)
    starting = said(messages)
    pulse.extending = False
    pulse.wait(0.5)
    serving = said(messages)
    assert starting.count("WATCHDOG=1") >= 3
    assert "EXTEND_TIMEOUT_USEC=60000000" in starting
    assert set(serving) == {"WATCHDOG=1"}


def test_a_status_is_sent_once_and_on_one_line(messages: socket.socket) -> None:
    notifier = Notifier()
    for _ in range(3):
        notifier.status("loading\nweights")
    assert said(messages) == ["STATUS=loading weights"]


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


def test_a_call_that_blocks_runs_beside_the_heartbeat(messages: socket.socket) -> None:
    def slow() -> str:
        time.sleep(0.5)
        return "done"

    assert Pulse(Notifier(), {"WATCHDOG_USEC": "300000"}).beside(slow, 5, "a nap") == "done"
    assert said(messages).count("WATCHDOG=1") >= 3


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


def test_a_status_is_utf_8_whatever_it_holds(messages: socket.socket) -> None:
    Notifier().status("Größe … 木")
    assert said(messages) == ["STATUS=Größe … 木"]
