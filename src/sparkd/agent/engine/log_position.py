"""The position in a rank's log from which the next agent continues."""

import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct, field

from sparkd.base.lib.dockerd.reader import since_of


class LogPosition(Struct):
    """Keeps the position of a second ago, once the journal has all up to it.

    So a line may come twice, and none is lost. It does not wait until nothing is left to write: where an engine logs
    without a pause, that may never be.
    """

    keep: Callable[[str], object] = lambda _: None
    """Called once a second at most, with a position for the next process: all lines up to it are read, and written to
    the journal."""
    checkpoint: Callable[[], Callable[[], bool]] = lambda: lambda: True
    """Marks a place in what waits for the journal; what it returns is true once all up to it is written."""
    _checkpoint_at: float = field(default_factory=time.monotonic)
    """When the last checkpoint was made, monotonic."""
    _last_at_checkpoint: bytes = b""
    """The piece of log that had been read last then."""
    _piece_to_keep: bytes = b""
    """The piece of the checkpoint before: its position is kept once `_is_written`; empty where none waits for that."""
    _is_written: Callable[[], bool] = lambda: True
    """Whether the journal has all up to the last checkpoint."""

    def advance(self, piece: bytes) -> None:
        """Take the piece of log that was read last, with its time stamp."""
        now = time.monotonic()
        if now - self._checkpoint_at >= 1.0 and not self._piece_to_keep:
            self._piece_to_keep, self._last_at_checkpoint = self._last_at_checkpoint, piece
            self._checkpoint_at, self._is_written = now, self.checkpoint()
        if self._piece_to_keep and self._is_written():
            with suppress(OSError, ValueError):
                self.keep(since_of(self._piece_to_keep))
            self._piece_to_keep = b""
