"""A clock for upper bounds: it stands while the machine stalls, which makes no rule untrue."""

import threading
import time

TICK_SECONDS, LATE_SECONDS = 0.01, 0.05


class Clock:
    """A thread that sleeps for a tick, woke late, and meanwhile this process used no CPU: that was a stall.

    Code that holds the interpreter uses CPU; a main loop that waits doesn't keep the thread from waking. Only a C call
    that sleeps and holds the interpreter, as ctypes.PyDLL's would, is taken for a stall.
    """

    def __init__(self) -> None:
        self._stalled = 0.0
        threading.Thread(target=self._watch, name="clock", daemon=True).start()

    def __call__(self) -> float:
        """Seconds, monotonic. For a lower bound, as of a wait that has to last, take time.monotonic()."""
        return time.monotonic() - self._stalled

    def _watch(self) -> None:
        before, used = time.monotonic(), time.process_time()
        while True:
            time.sleep(TICK_SECONDS)
            now, now_used = time.monotonic(), time.process_time()
            late = now - before - TICK_SECONDS - (now_used - used)
            if late > LATE_SECONDS:
                self._stalled += late
            before, used = now, now_used


unstalled = Clock()
