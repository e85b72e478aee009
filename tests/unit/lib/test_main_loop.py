"""The main loop's waits, with a real socket in place of systemd's."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.unit.clock import unstalled
from tests.unit.conftest import Notifications
from tests.unit.docker_server import listening

from sparkd.base.lib.dockerd.reader import connect
from sparkd.base.lib.endings import Ending, Stage, StopRequested
from sparkd.base.lib.main_loop import STILL_SECONDS, MainLoop, never
from sparkd.base.lib.systemd import Notifier


@pytest.fixture
def main() -> Iterator[MainLoop]:
    with MainLoop(Notifier(), {}) as made:
        yield made


@pytest.fixture
def signals() -> Iterator[None]:
    """Their handlers are as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


def test_a_wake_up_ends_a_wait_early(main: MainLoop) -> None:
    threading.Timer(0.05, main.wake).start()
    begun = unstalled()
    main.wait(5)
    assert unstalled() - begun < 1


@pytest.mark.parametrize("stage", [Stage.RUN, Stage.CLOSING])
def test_sigterm_ends_a_wait_but_no_shielded_one_and_none_at_the_end(
    main: MainLoop, signals: None, stage: Stage
) -> None:
    main.listen()
    main.endings.enter(stage)
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
    main.endings.enter(Stage.END)
    main.wait(0.2)
    assert main.wait_until(never, 0.2) is False
    assert main.beside(partial(time.sleep, 0.2), 5, "a nap") is None
    assert time.monotonic() - begun >= 1.0


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
        main.beside(list, 5, "a call", shielded=True)
    with pytest.raises(BlockingIOError):
        main.beside(list, 5, "a call")
    assert unstalled() - begun < 1


def test_a_blocking_call_runs_while_the_watchdog_is_fed(notifications: Notifications) -> None:
    def slow() -> str:
        time.sleep(0.5)
        return "done"

    assert MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"}).beside(slow, 5, "a nap") == "done"
    assert notifications().count("WATCHDOG=1") >= 3


def test_a_blocking_call_that_hangs_is_a_timeout(main: MainLoop) -> None:
    hanging = threading.Event()
    with pytest.raises(TimeoutError, match=r"sync did not end within 0\.2 s"):
        main.beside(hanging.wait, 0.2, "sync")
    hanging.set()


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
    main.endings.end_by(Ending(first.raise_if_lost), Ending(second.raise_if_lost))
    main.wait(0)
    threading.Timer(0.05, second.lose).start()
    begun = unstalled()
    with pytest.raises(LookupError, match="second"):
        wait(main)
    assert unstalled() - begun < 1
    first.lose()
    with pytest.raises(LookupError, match="first"):
        wait(main)
    assert main.wait_until(never, 0.05, shielded=True) is False
    assert main.beside(lambda: "done", 5, "a call", shielded=True) == "done"


def test_an_ending_counts_up_to_its_stage(main: MainLoop) -> None:
    early, late = Loss(main, "early"), Loss(main, "late")
    main.endings.end_by(Ending(early.raise_if_lost), Ending(late.raise_if_lost, until=Stage.CLOSING))
    early.lose()
    main.endings.enter(Stage.CLOSING)
    main.wait(0.01)
    late.lose()
    with pytest.raises(LookupError, match="late"):
        main.wait(5)
    main.endings.enter(Stage.END)
    main.wait(0.01)


def test_a_stop_request_precedes_every_ending(main: MainLoop, signals: None) -> None:
    loss = Loss(main, "rank 1")
    loss.lose()
    main.endings.end_by(Ending(loss.raise_if_lost))
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
    begun, unstalled_begun = time.monotonic(), unstalled()
    assert main.wait_until(done.is_set, 5)
    assert time.monotonic() - begun >= 0.05
    assert main.wait_until(done.is_set, 5)
    assert unstalled() - unstalled_begun < 1


def test_the_age_of_the_last_keepalive_grows_while_the_main_loop_hangs() -> None:
    main = MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"})
    assert main.keepalive_age() == float("inf")
    main.wait(0.2)
    assert main.keepalive_age() < 0.2
    time.sleep(0.3)
    assert main.keepalive_age() >= 0.3


@pytest.mark.parametrize("as_task", [False, True])
def test_a_wake_up_during_a_call_ends_the_next_wait_and_the_calls_own_end_does_not(
    main: MainLoop, as_task: bool
) -> None:
    async def answer(work: Callable[[], object]) -> None:
        work()

    def call(work: Callable[[], object]) -> None:
        if as_task:
            main.beside(answer(work), 5, "a call")
        else:
            main.beside(work, 5, "a call")

    call(lambda: None)
    begun = time.monotonic()
    main.wait(0.2)
    assert time.monotonic() - begun >= 0.2
    call(main.wake)
    begun = unstalled()
    main.wait(10)
    assert unstalled() - begun < 5


def test_the_first_error_of_a_task_ends_every_wait_before_all_endings(main: MainLoop) -> None:
    checked: list[int] = []
    main.endings.end_by(Ending(lambda: checked.append(1)))
    first = TypeError("first")

    async def die(error: Exception) -> None:
        await asyncio.sleep(0.05)
        raise error

    main.spawn(die(first))
    main.spawn(die(ValueError("second")))
    began = unstalled()
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            main.wait_until(never, 10)
        assert caught.value is first
    assert unstalled() - began < 5
    main.endings.enter(Stage.END)
    assert main.wait_until(never, 0.01) is False  # a shutdown still waits


def test_a_task_that_must_not_end_and_does_is_a_bug(main: MainLoop) -> None:
    async def watch() -> None:
        await asyncio.sleep(0.01)

    main.spawn(watch())
    with pytest.raises(RuntimeError, match=r"a task has ended: .*watch"):
        main.wait_until(never, 10)


def test_a_task_wakes_the_loop_and_is_cancelled_alone_at_its_timeout(notifications: Notifications) -> None:
    cancelled: list[bool] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "done"

    with MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"}) as main:
        other = main.start(work(0.4))
        outcome = main.start(work(0.05))
        began = unstalled()
        main.wait(10)
        assert outcome.result() == "done"
        with pytest.raises(TimeoutError, match=r"a nap did not end within 0\.2 s"):
            main.beside(work(60), 0.2, "a nap")
        assert main.wait_until(lambda: cancelled == [True], 5)
        assert main.wait_until(other.done, 5) and other.result() == "done"
        assert main.beside(work(0.5), 5, "a nap") == "done"
        assert unstalled() - began < 5
        assert notifications().count("WATCHDOG=1") >= 3
        assert cancelled == [True]


def test_an_ending_cancels_the_step_alone_and_ends_the_next_step_too(main: MainLoop) -> None:
    """The watchers are the same for every step."""
    loss = Loss(main, "rank 1")
    main.endings.end_by(Ending(loss.raise_if_lost))
    steps: list[str] = []

    async def step(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            steps.append("done")
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    main.beside(step(0), 5, "a step")
    threading.Timer(0.05, loss.lose).start()
    for _ in range(2):
        with pytest.raises(LookupError, match="rank 1"):
            main.beside(step(10), 20, "a step")
    main.endings.enter(Stage.END)
    main.wait(0.05)
    assert steps == ["done", "cancelled", "cancelled"]


@pytest.mark.parametrize("error", [RuntimeError("boom"), StopIteration("boom"), SystemExit("boom")])
def test_whatever_a_call_raises_reaches_its_caller_at_once(main: MainLoop, error: BaseException) -> None:
    def fail() -> None:
        raise error

    began = unstalled()
    with pytest.raises((RuntimeError, SystemExit), match="boom"):
        main.beside(fail, 10, "failing")
    assert unstalled() - began < 2


def test_a_stop_between_two_steps_ends_the_second_before_it_begins_its_wait(main: MainLoop, signals: None) -> None:
    main.listen()
    main.beside(list, 5, "a step")
    os.kill(os.getpid(), signal.SIGTERM)
    began = unstalled()
    with pytest.raises(StopRequested, match="SIGTERM"):
        main.wait(10)
    assert unstalled() - began < 2


def test_what_changes_the_machine_ends_before_a_stop_is_acted_on(main: MainLoop, signals: None) -> None:
    main.listen()
    changed: list[float] = []

    def change() -> None:
        time.sleep(0.4)
        changed.append(time.monotonic())

    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    main.beside(change, 5, "docker", shielded=True)
    with pytest.raises(StopRequested):
        main.wait(5)
    stopped_at = time.monotonic()
    time.sleep(0.5)
    assert len(changed) == 1 and changed[0] <= stopped_at


def test_a_cause_that_comes_and_goes_while_nothing_may_be_interrupted_is_kept(main: MainLoop) -> None:
    refused = [False]

    def raise_if_refused() -> None:
        if refused[0]:
            raise LookupError("refused")

    def change() -> None:
        for value in (True, False):
            time.sleep(0.1)
            refused[0] = value
            main.wake()

    main.endings.end_by(Ending(raise_if_refused))
    main.beside(change, 5, "docker", shielded=True)
    with pytest.raises(LookupError, match="refused"):
        main.wait(5)
    main.wait(0.01)


def test_a_cause_that_was_kept_counts_no_more_in_a_stage_beyond_its_own(main: MainLoop) -> None:
    loss = Loss(main, "a plan")
    main.endings.end_by(Ending(loss.raise_if_lost))
    loss.lose()
    main.wait_until(never, 0.05, shielded=True)
    main.endings.enter(Stage.CLOSING)
    main.wait(0.01)


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
    assert main.wait_until(other.done, 5) and other.result() == "other"


def test_a_closed_loop_is_woken_without_effect(main: MainLoop) -> None:
    main.close()
    main.wake()
    main.close()


def test_a_cause_that_was_kept_can_be_forgotten_and_what_still_is_one_is_seen_again(main: MainLoop) -> None:
    once, still = [True], Loss(main, "still")

    def raise_once() -> None:
        if once.pop() if once else False:
            raise LookupError("once")

    main.endings.end_by(Ending(raise_once), Ending(still.raise_if_lost))
    main.wait_until(never, 0.05, shielded=True)
    main.endings.forget()
    main.wait(0.01)
    still.lose()
    main.wait_until(never, 0.05, shielded=True)
    main.endings.forget()
    with pytest.raises(LookupError, match="still"):
        main.wait(5)


def test_the_loop_knows_when_it_turned_again_after_a_standstill(main: MainLoop) -> None:
    main.wait(0.01)
    assert main.resumed_at == float("-inf")
    time.sleep(STILL_SECONDS + 0.1)
    main.wait(0.01)
    assert time.monotonic() - main.resumed_at < 1


def test_a_cause_that_a_wait_sees_ends_it_at_once() -> None:
    began, lost_at = unstalled(), time.monotonic() + 0.2

    def raise_if_late() -> None:
        if time.monotonic() >= lost_at:
            raise LookupError("late")

    watched = MainLoop(Notifier(), {"WATCHDOG_USEC": "300000"})
    watched.endings.end_by(Ending(raise_if_late))
    with watched, pytest.raises(LookupError, match="late"):
        watched.wait(5)
    assert unstalled() - began < 1.2


def test_two_calls_of_a_subject_one_after_the_other_leave_nothing_under_way(main: MainLoop) -> None:
    for _ in range(20):
        assert main.start(list, "docker").done() is False
        assert main.beside(lambda: "second", 5, "docker") == "second"
    main.wait(0.05)
    assert main.beside(lambda: "last", 5, "docker") == "last"
