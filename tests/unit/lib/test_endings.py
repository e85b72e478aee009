"""What may end a run, in the waits of the main loop: stops, bugs and endings, by stage and order."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from tests.unit.clock import unstalled

from sparkd.base.lib.endings import Ending, Stage, StopRequested
from sparkd.base.lib.main_loop import MainLoop, never
from sparkd.base.lib.systemd import Notifier


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
    began = unstalled()
    with pytest.raises(StopRequested, match="SIGTERM"):
        main.wait(10)
    assert unstalled() - began < 2


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
    (changed_at,) = changed
    assert changed_at <= stopped_at


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
        main.wait(0.01)


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
