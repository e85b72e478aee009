"""A thread of the agent that ends by an error is reported, and the agent continues."""

from __future__ import annotations

import threading
from functools import partial

from sparkd.tools.cli.run import report_thread


class Recorded:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    warning = error = info


def fail() -> None:
    raise KeyError("x")


def test_the_error_of_a_thread_is_an_event() -> None:
    events, before = Recorded(), threading.excepthook
    threading.excepthook = partial(report_thread, events)
    try:
        thread = threading.Thread(target=fail, name="page-cache")
        thread.start()
        thread.join()
    finally:
        threading.excepthook = before
    assert events.events == [("agent.thread.failed", {"thread": "page-cache", "reason": "KeyError: 'x'"})]
