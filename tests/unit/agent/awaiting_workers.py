"""Workers that wait for their head's configuration."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.unit.cluster_nodes import EventLines, context

from sparkd.agent.daemon.bootstrap import await_head_config
from sparkd.agent.daemon.context import Base
from sparkd.base.lib.endings import Ending
from sparkd.base.lib.errors import HeadAwaitedError, SparkdError


@contextmanager
def awaiting(base: Base) -> Iterator[list[SparkdError]]:
    """A worker without its head's configuration waits for it, in a thread; what it raised."""
    raised: list[SparkdError] = []

    def end_wait() -> None:
        raise SparkdError("the test is over")

    def run() -> None:
        with pytest.raises(HeadAwaitedError) as awaited:
            context(base.settings, base.host)
        try:
            await_head_config(base, awaited.value, EventLines())
        except SparkdError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        base.loop.endings.end_by(Ending(end_wait))
        base.loop.wake()
        thread.join(10)
