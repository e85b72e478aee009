"""SIGINT, SIGTERM and SIGHUP end a measurement early, a lost terminal does not; its results are still printed."""

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

ENDS = (signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 0.01
"""Pause before Ctrl-C is raised again: longer than the callback that it was raised in."""


def report_progress(line: str) -> None:
    """Print a line to stderr. A terminal that has gone ends no measurement."""
    with suppress(OSError):
        print(f"sparkd: {line}", file=sys.stderr, flush=True)


def catch_ends(*, once: bool = False) -> None:
    """Treat the end of a session, or by a service manager, as Ctrl-C, which keeps the results.

    `once`: a second Ctrl-C is ignored, too, which would end what cleans up after the first.
    """
    caught = (signal.SIGINT, *ENDS) if once else ENDS

    def interrupt(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)  # asyncio's, while a loop runs; none where a shell's `&` ignores it
        for number in caught:  # a session's end sends both
            signal.signal(number, signal.SIG_IGN)
        (handler if callable(handler) and not once else signal.default_int_handler)(signal.SIGINT, frame)

    for end in caught:
        if signal.getsignal(end) in (signal.SIG_DFL, signal.default_int_handler):  # not under nohup
            signal.signal(end, interrupt)
    sys.unraisablehook = _raise_again


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:  # the name is known to type checkers alone
    """Raise Ctrl-C again where Python drops it: in the callback of a weak reference, as while modules are imported."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)


@contextmanager
def hold_signals() -> Iterator[None]:
    """Hold SIGTERM, SIGHUP and Ctrl-C back from this thread meanwhile: between a step and the step that undoes it."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGALRM, *ENDS))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def run_interruptible(work: Coroutine[None, None, None]) -> bool:
    """Run a coroutine in a loop of its own; return whether SIGINT ended it.

    A second SIGINT, as `timeout` sends, is ignored: the interpreter's own handler would end the command before its
    results are printed.
    """

    async def cancel_once() -> None:
        handler = signal.getsignal(signal.SIGINT)  # asyncio's

        def interrupt(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if callable(handler):
                handler(number, frame)

        if callable(handler):  # a shell's `&` ignores it
            signal.signal(signal.SIGINT, interrupt)
        try:
            await work
        finally:
            if signal.getsignal(signal.SIGINT) is interrupt:
                signal.signal(signal.SIGINT, handler)

    try:
        asyncio.run(cancel_once())
    except KeyboardInterrupt:
        return True
    return False
