"""What may end a run, seen by the main loop in each of its waits; the first cause that is seen is kept."""

import signal
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple


class Stage(IntEnum):
    """How far a run is, by what may still end its waits."""

    RUN = 0
    """Every ending counts."""
    CLOSING = 1
    """An engine has ended, or drains. A stop and a bug count, and the endings whose `until` is not RUN."""
    END = 2
    """No ending counts: the rank is stopped, and the last report is read."""


class Ending(NamedTuple):
    """Something that may end a run: then `raise_if` raises its error. It counts in the stages up to `until`."""

    raise_if: Callable[[], object]
    until: Stage = Stage.RUN


class StopRequested(BaseException):
    """SIGTERM or SIGINT. It is not an Exception, so that no `except Exception` catches it."""


class Endings:
    """What ends a run: a stop and a task's bug first, then the listed endings in their order. For the main thread."""

    def __init__(self) -> None:
        self._stage = Stage.RUN
        self._stop_signal = 0
        self._failure: BaseException | None = None
        self._listed: tuple[Ending, ...] = ()
        self._cause: tuple[BaseException, Stage] | None = None
        """An error, and its `until`, seen while nothing could be interrupted. It is kept for the next wait that may be,
        since its reason may be over then."""
        self._is_looking = False

    def end_by(self, *endings: Ending) -> None:
        """Let these end each wait from here on, after a stop and a task's bug; of several, the first in order."""
        self._listed = endings

    def enter(self, stage: Stage) -> None:
        self._stage = stage

    def forget(self) -> None:
        """Drop the kept cause, as after a rank was ended on purpose. One whose reason persists is seen again."""
        self._cause = None

    def request_stop(self, number: int) -> None:
        """Note a stop, by its signal's number. Safe in a signal handler."""
        self._stop_signal = number

    @property
    def stop_requested(self) -> bool:
        return bool(self._stop_signal)

    def fail(self, error: BaseException) -> None:
        """Note a task's bug. The first one counts."""
        if self._failure is None:
            self._failure = error

    @property
    def urgent(self) -> bool:
        """Whether a cause that ends the present stage is known without a look."""
        ends_stage = self._cause is not None and self._cause[1] >= self._stage
        return self._stage is not Stage.END and bool(self._stop_signal or self._failure or ends_stage)

    def look(self) -> None:
        """Check for a cause that ends the present stage, and keep the first one. Raises nothing."""
        if self._cause is not None and self._cause[1] < self._stage:
            self._cause = None
        if self._cause is not None or self._is_looking or self._stage is Stage.END:
            return
        self._is_looking = True  # an ending may wait itself, as for a write
        try:
            for ending in self._listed:
                if ending.until >= self._stage:
                    ending.raise_if()
        except (Exception, StopRequested) as error:
            self._cause = (error, ending.until)
        finally:
            self._is_looking = False

    def raise_first(self) -> None:
        """Raise what ends the present stage: a cause once, a stop and a bug each time."""
        if self._stage is Stage.END:
            return
        if self._stop_signal:
            raise StopRequested(signal.Signals(self._stop_signal).name)
        if self._failure is not None:
            raise self._failure
        self.look()
        if self._cause is not None:
            (error, _), self._cause = self._cause, None
            raise error
