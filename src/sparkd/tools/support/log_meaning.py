"""What lines of logs mean: known errors, and which lines of all nodes' journals are failures."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.journal import ENGINE, Line
from sparkd.base.host.kernel_events import parse_printed
from sparkd.base.lib.text import sanitize
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


def find_known(lines: Iterable[str]) -> dict[KnownError, tuple[str, int]]:
    """Each known error once, with its first line and a count of its lines."""
    known_errors: dict[KnownError, tuple[str, int]] = {}
    for line in lines:
        if (known := _explain_kernel(line) or explain(line)) is not None:
            first, count = known_errors.get(known, (line, 0))
            known_errors[known] = first, count + 1
    return known_errors


def render_explanations(lines: Iterable[str]) -> Iterator[str]:
    """The first line of each known error, with its meaning and what to do."""
    for known, (line, count) in find_known(lines).items():
        times = f" ({count} lines)" if count > 1 else ""
        yield f"{sanitize(line.strip(), 200)}{times}"
        yield f"  means: {known.meaning}\n  do:    {known.remedy}\n  known: {known.source}"


def _explain_kernel(line: str) -> KnownError | None:
    """The known error of a line that the kernel printed; None for any other line."""
    if (event := parse_printed(line)) is None:
        return None
    remedy = f"{event.effect.action}: {event.effect.hint}"
    return KnownError((event.kind,), event.reason, remedy, "sparkd's table of the kernel's messages")
