"""The queue of messages to people on disk, and its sender."""

import errno
import json
import os
import threading
import time
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.event_log import EventLog
from tests.unit.http_receivers import Receiver, receiver
from tests.unit.limits import files_left
from tests.unit.nodes import until
from tests.unit.notify_ways import LOST, URL_FILE, outbox, program, stored, unopened, webhook
from tests.unit.wire import reserved_port

from sparkd.agent.daemon.notify import FILE, LOCK
from sparkd.base.status.notice_queue import QUEUE_LIMIT
from sparkd.base.status.notices import Notice, NotifyState, Queued


def test_a_message_is_sent_once_and_by_no_later_process(tree: Tree, hook: Receiver, log: EventLog) -> None:
    sender = outbox(tree, webhook(tree, hook.url), log)
    sender.record(replace(sender.state, serving=True), (LOST,))
    assert [queued.notice for queued in stored(tree).queue] == [LOST], "on disk before it is sent"
    sender.send()
    sender.send()
    assert [json.loads(body)["text"] for body in hook.bodies] == ["gone"]
    assert stored(tree).queue == ()
    assert stored(tree).serving
    assert log.names() == ["notify.message.sent"]


def test_a_message_that_could_not_be_sent_is_sent_by_the_next_process(tree: Tree, log: EventLog) -> None:
    with reserved_port() as port:
        settings = webhook(tree, f"http://127.0.0.1:{port}/")
        with closing(outbox(tree, settings, log)) as first:
            first.record(first.state, (LOST,))
            first.send()
            first.send()
    assert log.names() == ["notify.message.failed"], "logged once, and tried no more before its time"
    with receiver() as hook:
        webhook(tree, hook.url)
        second = outbox(tree, settings, log)
        second.send()
        assert len(hook.bodies) == 1


def test_one_process_sends_at_a_time(tree: Tree, hook: Receiver, log: EventLog) -> None:
    settings = webhook(tree, hook.url)
    first = outbox(tree, settings, log)
    second = unopened(tree, settings, log)
    assert not second.open(wait=False)
    threading.Timer(0.1, first.close).start()
    with closing(second):
        assert second.open(wait=True), "an agent sends once `sparkd notify flush` has ended"


def test_a_failing_receiver_is_tried_again_later_and_each_time_later(tree: Tree, hook: Receiver, log: EventLog) -> None:
    hook.status = 500
    sender = outbox(tree, webhook(tree, hook.url), log, retry_seconds=(0.05, 1.0))
    sender.record(sender.state, (LOST, replace(LOST, text="second")))
    for _ in range(3):
        sender.send()
        time.sleep(0.1)
    assert len(hook.bodies) == 2, "the second pause is longer"
    hook.status = 200
    time.sleep(1)
    sender.send()
    assert [json.loads(body)["text"] for body in hook.bodies] == ["gone"] * 3 + ["second"], "in order, one a try"
    assert stored(tree).queue == ()


def test_a_message_that_the_receiver_refuses_holds_up_no_other(tree: Tree, hook: Receiver, log: EventLog) -> None:
    hook.status = 400
    sender = outbox(tree, webhook(tree, hook.url), log)
    sender.record(sender.state, (LOST, LOST))
    sender.send()
    assert len(hook.bodies) == 2
    assert stored(tree).queue == ()
    assert log.names() == ["notify.message.failed"]


def test_a_way_that_fails_keeps_no_other_from_sending(tree: Tree, hook: Receiver, log: EventLog) -> None:
    settings = program(tree, "exit 1").model_copy(update={"webhook_file": URL_FILE})
    webhook(tree, hook.url)
    sender = outbox(tree, settings, log)
    sender.record(sender.state, (LOST,))
    sender.send()
    assert len(hook.bodies) == 1
    assert [queued.ways for queued in stored(tree).queue] == [("command",)]


def test_the_next_message_has_the_number_of_those_that_were_dropped(tree: Tree, hook: Receiver, log: EventLog) -> None:
    sender = outbox(tree, webhook(tree, hook.url), log)
    many = tuple(Notice("needs-person", "spark1", str(number), at=time.time()) for number in range(QUEUE_LIMIT + 3))
    sender.record(sender.state, many)
    assert ("notify.messages.dropped", {"count": 3}) in log.lines
    hook.most = 2
    sender.send()
    texts = [json.loads(body)["text"] for body in hook.bodies]
    assert texts[:2] == ["3 (dropped before it: 3)", "4"]


def test_a_full_disk_keeps_no_message_from_being_sent(tree: Tree, hook: Receiver, log: EventLog) -> None:
    sender = outbox(tree, webhook(tree, hook.url), log)
    (tree.root / "var/lib/sparkd" / FILE.name).mkdir()  # no file can take its place
    sender.record(sender.state, (LOST,))
    sender.record(replace(sender.state, serving=True), ())
    sender.send()
    assert len(hook.bodies) == 1
    assert log.names() == ["notify.message.failed", "notify.message.sent"], "logged once"


def test_events_that_are_not_wanted_are_not_queued(tree: Tree, hook: Receiver, log: EventLog) -> None:
    sender = outbox(tree, webhook(tree, hook.url, events=("lost",)), log)
    sender.record(sender.state, (replace(LOST, event="serving"), LOST))
    assert [queued.notice.event for queued in stored(tree).queue] == ["lost"]


def test_the_queue_of_a_way_that_is_no_longer_configured_is_dropped(tree: Tree, hook: Receiver, log: EventLog) -> None:
    settings = webhook(tree, hook.url)
    tree.file(FILE.path, FILE.encode(NotifyState(queue=(Queued(LOST, ("command",)),))))
    sender = outbox(tree, settings, log)
    sender.record(sender.state, ())
    assert stored(tree).queue == ()


def test_a_state_that_cannot_be_read_is_reported_and_begun_again(tree: Tree, hook: Receiver, log: EventLog) -> None:
    settings = webhook(tree, hook.url)
    tree.file(FILE.path, "{")
    assert outbox(tree, settings, log).state == NotifyState()
    assert log.names() == ["state.read.failed"]


def test_a_state_that_cannot_be_read_now_is_awaited_and_no_message_is_lost(
    tree: Tree, hook: Receiver, log: EventLog
) -> None:
    settings = webhook(tree, hook.url)
    with closing(outbox(tree, settings, log)) as first:
        first.record(first.state, (LOST,))
    second = unopened(tree, settings, log, retry_seconds=(0.01,))
    thread = threading.Thread(target=second.open, kwargs={"wait": True})
    with files_left(2):  # its lock, and the file's name, but not its content
        with pytest.raises(OSError, match=r"notify\.json can't be read: Too many open files"):
            second.open(wait=False)
        thread.start()
        until(lambda: log.names() == ["state.read.failed"])
    thread.join(10)
    with closing(second):
        second.send()
    assert len(hook.bodies) == 1


def test_a_lock_that_can_not_be_opened_yet_is_tried_again(tree: Tree, hook: Receiver, log: EventLog) -> None:
    """As on a disk that is full or read-only, of which people are to learn."""
    box = unopened(tree, webhook(tree, hook.url), log, retry_seconds=(0.01,))
    in_the_way = tree.folder(f"/var/lib/sparkd/{LOCK}")
    opened: list[bool] = []
    thread = threading.Thread(target=lambda: opened.append(box.open(wait=True)))
    thread.start()
    until(lambda: log.names() == ["state.read.failed"])
    in_the_way.rmdir()
    thread.join(10)
    assert opened == [True]
    box.close()


def test_a_read_only_disk_keeps_no_message_back(
    tree: Tree, hook: Receiver, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is blocked then, and its agent has begun after the engine's end."""
    settings, open_file = webhook(tree, hook.url), os.open
    outbox(tree, settings, log).close()

    def open_read_only(path: str, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_read_only)
    sender = outbox(tree, settings, log)
    sender.record(sender.state, (LOST,))
    sender.send()
    assert [json.loads(body)["text"] for body in hook.bodies] == ["gone"]
    assert log.names() == ["notify.message.failed", "notify.message.sent"], "its file, and the message"
