"""Ways of messages to people, as a node configures them, and the queue on its disk."""

import os
import time
from typing import Any

from tests.tree import Tree
from tests.unit.event_log import EventLog

from sparkd.agent.daemon.notify import FILE, Outbox
from sparkd.base.config import Notify
from sparkd.base.host import Host
from sparkd.base.status.notices import Notice, NotifyState

URL_FILE = "/etc/sparkd/webhook"


PROGRAM = "/etc/sparkd/send"


LOST = Notice("lost", "spark1", "gone", at=time.time())


def webhook(tree: Tree, url: str, mode: int = 0o600, **others: Any) -> Notify:
    tree.folder("/var/lib/sparkd")
    tree.file(URL_FILE, f"{url}\n", mode)
    return Notify(webhook_file=URL_FILE, **others)


def program(tree: Tree, *lines: str, mode: int = 0o755) -> Notify:
    tree.folder("/var/lib/sparkd")
    tree.file(PROGRAM, "\n".join(("#!/bin/sh", *lines)) + "\n", mode)
    return Notify(command=PROGRAM)


def unopened(tree: Tree, settings: Notify, log: EventLog, **pace: Any) -> Outbox:
    return Outbox(Host(tree.root, owner_uid=os.getuid()), settings, log, **pace)


def outbox(tree: Tree, settings: Notify, log: EventLog, **pace: Any) -> Outbox:
    """That of the process that sends."""
    opened = unopened(tree, settings, log, **pace)
    assert opened.open(wait=False)
    return opened


def stored(tree: Tree) -> NotifyState:
    state = FILE.read(Host(tree.root).files)
    assert state is not None
    return state
