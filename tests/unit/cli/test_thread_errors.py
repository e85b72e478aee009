"""A thread of the agent that ends by an error is reported, and the agent continues; a bug of its own ends it."""

import subprocess
import sys
import threading
from functools import partial

from tests.unit.event_log import EventLog

from sparkd.tools.cli.run import report_thread


def fail() -> None:
    raise KeyError("x")


def test_the_error_of_a_thread_is_an_event() -> None:
    events, before = EventLog(), threading.excepthook
    threading.excepthook = partial(report_thread, events)
    try:
        thread = threading.Thread(target=fail, name="page-cache")
        thread.start()
        thread.join()
    finally:
        threading.excepthook = before
    assert events.lines == [("agent.thread.failed", {"thread": "page-cache", "reason": "KeyError: 'x'"})]


BUG = """
import types
from sparkd.agent.daemon import bootstrap, run
from sparkd.base.lib.redaction import Redaction
from tests.unit.event_log import EventLog

from sparkd.tools.cli.run import run_agent

def fail(_):
    raise RuntimeError("with correct-horse")

actions = types.SimpleNamespace(release=lambda: None)
agent = types.SimpleNamespace(events=None, redact=Redaction(("correct-horse",)), actions=actions)
bootstrap.build_agent = lambda *_: agent
run.run = fail
run_agent(types.SimpleNamespace(role="head"))
"""


def test_the_traceback_of_a_bug_is_without_the_agents_secrets() -> None:
    ended = subprocess.run([sys.executable, "-c", BUG], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "correct-horse" not in ended.stdout + ended.stderr
    assert ended.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert ended.stderr.splitlines()[-1] == "RuntimeError: with ***"
