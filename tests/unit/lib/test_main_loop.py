"""The main loop's waits, with a real socket in place of systemd's."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.unit.clock import unstalled
from tests.unit.conftest import Notifications
from tests.unit.docker_server import listening

from sparkd.base.lib.dockerd.reader import connect
from sparkd.base.lib.main_loop import STILL_SECONDS, MainLoop, Work, never
from sparkd.base.lib.systemd import Notifier


def test_a_wait_feeds_the_watchdog_and_extends_the_start_until_ready(notifications: Notifications) -> None:
    main = MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"})
    main.wait(0.5)
    starting = notifications()
    main.report_ready()
    main.wait(0.5)
    main.report_ready()
    serving = notifications()
    assert starting.count("WATCHDOG=1") >= 3
    assert "EXTEND_TIMEOUT_USEC=60000000" in starting
    assert set(serving) == {"READY=1", "WATCHDOG=1"}
    assert serving.count("READY=1") == 1
    main.extend_timeout(True)
    main.wait(0.2)
    assert "EXTEND_TIMEOUT_USEC=60000000" in notifications()


def test_a_status_is_sent_once_and_on_one_line_in_utf_8(notifications: Notifications) -> None:
    notifier = Notifier()
    for _ in range(3):
        notifier.status("Größe …\n木")
    assert notifications() == ["STATUS=Größe … 木"]


def test_a_hangup_ends_nothing_and_programs_that_it_starts_do_not_ignore_it(main: MainLoop, signals: None) -> None:
    main.listen()
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGHUP)).start()
    main.wait(0.3)
    with subprocess.Popen(["sleep", "60"]) as program:
        program.send_signal(signal.SIGHUP)
    assert program.returncode == -signal.SIGHUP


def test_where_no_thread_can_be_started_a_call_fails_for_now(main: MainLoop, no_thread: None) -> None:
    begun = unstalled()
    with pytest.raises(BlockingIOError):
        main.beside(list, 5, "a call")
    assert unstalled() - begun < 1


def test_a_blocking_call_runs_while_the_watchdog_is_fed(notifications: Notifications) -> None:
    with MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"}) as main:
        main.beside(partial(time.sleep, 0.5), 5, "a nap")
    assert notifications().count("WATCHDOG=1") >= 3


def test_a_read_that_hangs_is_named_with_its_path(main: MainLoop, tmp_path: Path) -> None:
    def read(path: str) -> bytes:
        return Path(path).read_bytes()  # of a FIFO without a writer

    fifo = tmp_path / "a\nfile"
    os.mkfifo(fifo)
    for _ in range(2):  # the second time, the first read is awaited
        with pytest.raises(TimeoutError, match=r"a read did not end within 0\.2 s: it is at /.*/a\\nfile$"):
            main.beside(partial(read, str(fifo)), 0.2, "a read")
    os.close(os.open(fifo, os.O_WRONLY))


def test_a_docker_that_hangs_is_at_no_file(main: MainLoop) -> None:
    import sparkd.base.lib.dockerd.client  # noqa: F401 - an import is at a file

    wanted = pytest.raises(TimeoutError, match=r"reading a container did not end within 0\.3 s$")
    with listening() as (path, _), closing(connect(path, 5.0)) as docker, wanted:
        main.beside(partial(docker.container, "abc"), 0.3, "reading a container")


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
        begun = unstalled()
        main.wait(10)
        assert ended.is_set()
        assert unstalled() - begun < 5
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


def test_a_wait_for_something_ends_when_it_is_there_and_news_let_it_look(main: MainLoop) -> None:
    done = threading.Event()

    def end() -> None:
        main.wake()  # for something else
        time.sleep(0.05)
        done.set()
        main.wake()

    threading.Timer(0.05, end).start()
    begun, unstalled_begun = time.monotonic(), unstalled()
    assert main.wait_until(done.is_set, 5)
    assert time.monotonic() - begun >= 0.05
    assert main.wait_until(done.is_set, 5)
    assert unstalled() - unstalled_begun < 1


def test_the_age_of_the_last_keepalive_grows_while_the_main_loop_hangs() -> None:
    main = MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"})
    assert main.keepalive_age() == float("inf")
    main.wait(0.2)
    time.sleep(0.5)
    hung_seconds = main.keepalive_age()
    assert hung_seconds >= 0.5
    main.wait(0.2)
    assert main.keepalive_age() < hung_seconds


async def as_task(work: Callable[[], object]) -> None:
    work()


@pytest.mark.parametrize("prepare", [lambda work: work, as_task], ids=["thread", "task"])
def test_a_wake_up_during_a_call_ends_the_next_wait_and_the_calls_own_end_does_not(
    main: MainLoop, prepare: Callable[[Callable[[], object]], Work[object]]
) -> None:
    main.beside(prepare(lambda: None), 5, "a call")
    begun = time.monotonic()
    main.wait(0.2)
    assert time.monotonic() - begun >= 0.2
    main.beside(prepare(main.wake), 5, "a call")
    begun = unstalled()
    main.wait(10)
    assert unstalled() - begun < 5


def test_a_task_that_must_not_end_and_does_is_a_bug(main: MainLoop) -> None:
    async def watch() -> None:
        await asyncio.sleep(0.01)

    main.spawn(watch())
    with pytest.raises(RuntimeError, match=r"a task has ended: .*watch"):
        main.wait_until(never, 10)


def test_a_task_wakes_the_loop_and_is_cancelled_alone_at_its_timeout(main: MainLoop) -> None:
    cancelled: list[bool] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "done"

    other = main.start(work(0.4))
    outcome = main.start(work(0.05))
    began = unstalled()
    main.wait(10)
    assert outcome.result() == "done"
    with pytest.raises(TimeoutError, match=r"a nap did not end within 0\.2 s"):
        main.beside(work(60), 0.2, "a nap")
    assert main.wait_until(lambda: cancelled == [True], 5)
    assert main.wait_until(other.done, 5)
    assert other.result() == "done"
    assert main.beside(work(0.5), 5, "a nap") == "done"
    assert unstalled() - began < 5
    assert cancelled == [True]


@pytest.mark.parametrize("error", [RuntimeError("boom"), StopIteration("boom"), SystemExit("boom")])
def test_whatever_a_call_raises_reaches_its_caller_at_once(main: MainLoop, error: BaseException) -> None:
    def fail() -> None:
        raise error

    began = unstalled()
    with pytest.raises((RuntimeError, SystemExit), match="boom"):
        main.beside(fail, 10, "failing")
    assert unstalled() - began < 2


def test_one_call_of_a_subject_is_under_way_at_a_time(main: MainLoop) -> None:
    hangs, begun = threading.Event(), list[str]()

    def call(name: str) -> str:
        begun.append(name)
        hangs.wait()
        return name

    with pytest.raises(TimeoutError):
        main.beside(partial(call, "first"), 0.1, "docker")
    look = main.start(partial(call, "look"), "docker")
    assert look.done()
    with pytest.raises(BlockingIOError, match="docker has not ended"):
        look.result()
    with pytest.raises(TimeoutError, match=r"docker did not end within 0\.1 s"):
        main.beside(partial(call, "second"), 0.1, "docker")
    other = main.start(partial(call, "other"), "nvml")
    assert begun == ["first", "other"]
    hangs.set()
    assert main.beside(partial(call, "third"), 5, "docker") == "third"
    assert main.wait_until(other.done, 5)
    assert other.result() == "other"


def test_a_closed_loop_is_woken_without_effect(main: MainLoop) -> None:
    main.close()
    main.wake()
    main.close()


def test_the_loop_knows_when_it_turned_again_after_a_standstill(main: MainLoop) -> None:
    main.wait(0.01)
    assert main.resumed_at == float("-inf")
    time.sleep(STILL_SECONDS + 0.1)
    main.wait(0.01)
    assert time.monotonic() - main.resumed_at < 1


def test_two_calls_of_a_subject_one_after_the_other_leave_nothing_under_way(main: MainLoop) -> None:
    for _ in range(20):
        assert main.start(list, "docker").done() is False
        assert main.beside(lambda: "second", 5, "docker") == "second"
    main.wait(0.05)
    assert main.beside(lambda: "last", 5, "docker") == "last"
