"""A main loop, and the handlers of signals that it replaces."""

import signal
from collections.abc import Iterator

import pytest

from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier


@pytest.fixture
def main() -> Iterator[MainLoop]:
    with MainLoop(Notifier(), {}) as made:
        yield made


@pytest.fixture
def signals() -> Iterator[None]:
    """Their handlers are as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
