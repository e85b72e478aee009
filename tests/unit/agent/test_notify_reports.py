"""An agent's reports become messages, in a thread that nothing waits for."""

import json
import os
import subprocess
import sys
from contextlib import closing
from typing import Any

from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.event_log import EventLog
from tests.unit.http_receivers import Receiver
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.nodes import until
from tests.unit.notify_ways import outbox, stored, webhook

from sparkd.agent.daemon.notify import start_notifications
from sparkd.base.config import Notify
from sparkd.base.host import Host
from sparkd.base.lib.redaction import Redaction
from sparkd.base.status.model import Phase
from sparkd.base.status.notices import NotifyState
from sparkd.base.status.publisher import Published, Reporter, make_public

SERVING = replace(HEAD_REPORT, phase=Phase.SERVING, recipe="tiny", last_cause="", peers=())


FAILED = replace(SERVING, phase=Phase.FAILED, message="api_key=hunter2 ended", cause="engine-ended")


def start_agent(tree: Tree, settings: Notify, log: EventLog) -> Any:
    """What takes an agent's reports from now on."""
    return start_notifications(Host(tree.root, owner_uid=os.getuid()), settings, log)


def test_the_agents_reports_become_messages_without_secrets(tree: Tree, hook: Receiver, log: EventLog) -> None:
    take = start_agent(tree, webhook(tree, hook.url), log)
    reporter = Reporter(SERVING, (take,), Redaction(("hunter2",)))
    began = unstalled()
    for report in (SERVING, SERVING, FAILED, FAILED):
        reporter.report = report
        reporter.publish()
    assert unstalled() - began < 0.1, "the main thread waits for nothing"
    until(lambda: len(hook.bodies) == 2)
    texts = [json.loads(body)["text"] for body in hook.bodies]
    assert texts == ["tiny serves: tiny on port 8000", "tiny no longer serves: api_key=*** ended"]
    until(lambda: stored(tree).queue == ())


def test_a_slow_receiver_never_holds_up_the_main_thread(tree: Tree, hook: Receiver, log: EventLog) -> None:
    hook.slow = True
    take = start_agent(tree, webhook(tree, hook.url), log)
    take(make_public(SERVING))
    until(lambda: hook.bodies)
    began = unstalled()
    for number in range(1000):
        take(Published(replace(SERVING, message=str(number)), ""))
    assert unstalled() - began < 0.5


def test_an_agent_that_was_killed_is_reported_by_the_next_one(tree: Tree, hook: Receiver, log: EventLog) -> None:
    settings = webhook(tree, hook.url)
    with closing(outbox(tree, settings, log)) as first:
        first.record(NotifyState(serving=True, recipe="tiny", incarnation="e"), ())
    take = start_agent(tree, settings, log)
    killed = replace(SERVING, phase=Phase.PREFLIGHT, incarnation="next", last_cause="killed", message="")
    take(make_public(killed))
    until(lambda: hook.bodies)
    assert json.loads(hook.bodies[0])["text"] == "tiny no longer serves: killed"


def test_an_agent_without_a_way_for_messages_imports_nothing_for_them() -> None:
    program = (
        "import sys, sparkd.agent.daemon.bootstrap, sparkd.agent.daemon.run;"
        "print(*(name for name in sys.modules if name.endswith(('.notify', '.webhook', '.notices'))))"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == ""
