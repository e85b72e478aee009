"""Which lines of all nodes' journals are known errors and failures."""

from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.journal import ENGINE, Line
from sparkd.base.vllm.known_errors import KnownError, explain

FAILURES = ("agent.run.failed ", "agent.run.refused ", "agent.run.blocked ")
"""Beginnings of the events that name a cause."""
READY = "engine.readiness.reached"
_AS_JSON = '{"event": "'
"""Beginning of an event with `log.format = "json"`."""


class Mark(NamedTuple):
    """A line's mark."""

    known_error: KnownError | None
    is_first_failure: bool
    """Whether it is the first failure since an engine served: those that follow are most often its symptoms."""


class FailureMarker(Struct):
    """Marks the lines of all nodes, which it has to get in the order of their time."""

    _has_failed: bool = False

    def mark(self, line: Line) -> Mark:
        is_engine, text = line.text.startswith(ENGINE), line.text.removeprefix(ENGINE)
        if not is_engine and text.startswith(_AS_JSON):
            text = text.removeprefix(_AS_JSON).replace('"', " ", 1)
        if not is_engine and text.startswith(READY):  # of the agent alone: an engine's line may be a client's text
            self._has_failed = False
        known_error = explain(text)
        is_failure = known_error is not None or (not is_engine and text.startswith(FAILURES))
        is_first_failure = is_failure and not self._has_failed
        self._has_failed = self._has_failed or is_failure
        return Mark(known_error, is_first_failure)
