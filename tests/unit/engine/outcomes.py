"""The outcome of work that a test does at once, in place of a thread."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def at_once(work: Callable[[], T]) -> Future[T]:
    """Done, or failed by an OSError, when this returns."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except OSError as error:
        future.set_exception(error)
    return future
