"""Messages to people: the queue on disk, its sender, and the operator's own program."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.commands import sparkd
from tests.unit.event_log import EventLog
from tests.unit.http_receivers import Receiver, receiver
from tests.unit.limits import files_left
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.nodes import until
from tests.unit.wire import reserved_port

from sparkd.agent.daemon.notify import FILE, LOCK, Outbox, deliver, start_notifications
from sparkd.base.config import Notify
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ExitCode, LaunchError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.status.model import Phase
from sparkd.base.status.notice_queue import QUEUE_LIMIT
from sparkd.base.status.notices import Notice, NotifyState, Queued
from sparkd.base.status.publisher import Published, Reporter, make_public
from sparkd.tools.cli.notify import flush

URL_FILE = "/etc/sparkd/webhook"
PROGRAM = "/etc/sparkd/send"
SERVING = replace(HEAD_REPORT, phase=Phase.SERVING, recipe="tiny", last_cause="", peers=())
FAILED = replace(SERVING, phase=Phase.FAILED, message="api_key=hunter2 ended", cause="engine-ended")
LOST = Notice("lost", "spark1", "gone", at=time.time())


@pytest.fixture
def log() -> EventLog:
    return EventLog()


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as hook:
        yield hook


def webhook(tree: Tree, url: str, mode: int = 0o600, **others: Any) -> Notify:
    tree.folder("/var/lib/sparkd")
    tree.file(URL_FILE, f"{url}\n", mode)
    return Notify(webhook_file=URL_FILE, **others)


def program(tree: Tree, *lines: str, mode: int = 0o755) -> Notify:
    tree.folder("/var/lib/sparkd")
    tree.file(PROGRAM, "\n".join(("#!/bin/sh", *lines)) + "\n", mode)
    return Notify(command=PROGRAM)


def outbox(tree: Tree, settings: Notify, log: EventLog, **pace: Any) -> Outbox:
    opened = Outbox(Host(tree.root, owner_uid=os.getuid()), settings, log, **pace)
    assert opened.open(wait=False)
    return opened


def stored(tree: Tree) -> NotifyState:
    state = FILE.read(Host(tree.root).files)
    assert state is not None
    return state


def test_a_message_is_sent_once_and_by_no_later_process(tree: Tree, hook: Receiver, log: EventLog) -> None:
    sender = outbox(tree, webhook(tree, hook.url), log)
    sender.record(replace(sender.state, serving=True), (LOST,))
    assert [queued.notice for queued in stored(tree).queue] == [LOST], "on disk before it is sent"
    sender.send()
    sender.send()
    assert [json.loads(body)["text"] for body in hook.bodies] == ["gone"]
    assert (stored(tree).queue, stored(tree).serving) == ((), True)
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
    second = Outbox(Host(tree.root, owner_uid=os.getuid()), settings, log)
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
    assert (len(hook.bodies), stored(tree).queue) == (2, ())
    assert log.names() == ["notify.message.failed"]


def test_a_way_that_fails_keeps_no_other_from_sending(tree: Tree, hook: Receiver, log: EventLog) -> None:
    settings = program(tree, "exit 1").model_copy(update={"webhook_file": URL_FILE})
    webhook(tree, hook.url)
    sender = outbox(tree, settings, log)
    sender.record(sender.state, (LOST,))
    sender.send()
    assert (len(hook.bodies), [queued.ways for queued in stored(tree).queue]) == (1, [("command",)])


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


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_url_that_others_may_read_is_not_used(tree: Tree, hook: Receiver, mode: int) -> None:
    with pytest.raises(LaunchError, match=f"has mode {mode:04o}, needed is 0600 .*sudo chmod 600 {URL_FILE}"):
        deliver(Files(str(tree.root), os.getuid()), webhook(tree, hook.url, mode), "webhook_file", LOST)


def test_a_url_behind_a_link_or_of_another_owner_is_not_used(tree: Tree, hook: Receiver) -> None:
    settings, files = webhook(tree, hook.url), Files(str(tree.root), os.getuid())
    with pytest.raises(LaunchError, match="belongs to uid"):
        deliver(Files(files.root, os.getuid() + 1), settings, "webhook_file", LOST)
    (tree.root / "etc/sparkd/webhook").rename(tree.root / "etc/sparkd/real")
    with pytest.raises(LaunchError, match="does not exist"):
        deliver(files, settings, "webhook_file", LOST)
    tree.link(URL_FILE, "real")
    with pytest.raises(LaunchError, match="is a symlink"):
        deliver(files, settings, "webhook_file", LOST)


def run_program(tree: Tree, settings: Notify, notice: Notice = LOST, seconds: float = 30.0) -> None:
    deliver(Files(str(tree.root), os.getuid()), settings, "command", notice, seconds)


def test_the_program_gets_the_message_on_stdin_and_in_its_variables(tree: Tree, tmp_path: Path) -> None:
    settings = program(tree, f"cat > {tmp_path}/in; env > {tmp_path}/env")
    run_program(tree, settings, replace(LOST, text="x" * 800))
    assert json.loads((tmp_path / "in").read_text())["text"] == "x" * 800
    variables = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert (variables["NOTICE_EVENT"], variables["NOTICE_TITLE"]) == ("lost", "spark1: lost")
    assert not any(name.startswith("SPARKD_") for name in variables)


def test_a_text_is_no_code_for_a_shell(tree: Tree, tmp_path: Path) -> None:
    settings = program(tree, f'echo "$NOTICE_TEXT" > {tmp_path}/out')
    run_program(tree, settings, replace(LOST, text="$(touch /tmp/x); `id` ' \""))
    assert (tmp_path / "out").read_text() == "$(touch /tmp/x); `id` ' \"\n"


def test_a_program_need_not_read_its_message_and_must_end_with_0(tree: Tree) -> None:
    run_program(tree, program(tree, "exit 0"))
    with pytest.raises(LaunchError, match="ended with exit code 3: no mail"):
        run_program(tree, program(tree, "echo no mail; exit 3"))


def test_a_program_that_hangs_is_killed_with_its_group(tree: Tree, tmp_path: Path) -> None:
    began = unstalled()
    with pytest.raises(LaunchError, match=r"did not end within 0\.5 s"):
        run_program(tree, program(tree, f"sleep 60 & echo $! > {tmp_path}/child; wait"), seconds=0.5)
    assert unstalled() - began < 10
    child = int((tmp_path / "child").read_text())
    until(lambda: not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes())


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_program_that_others_may_change_is_not_run(tree: Tree, mode: int) -> None:
    with pytest.raises(LaunchError, match="others than root may write to"):
        run_program(tree, program(tree, "exit 0", mode=mode))


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


ENDED = {"MONITOR_UNIT": "sparkd-no-such.service", "MONITOR_EXIT_STATUS": "17"}


def configure(tree: Tree, settings: Notify) -> dict[str, str]:
    """The variables of systemd where a unit has ended with exit code 17."""
    tree.file("/etc/sparkd/sparkd.toml", f'[notify]\nwebhook_file = "{settings.webhook_file}"\n')
    return dict(ENDED)


def test_a_unit_that_stays_down_is_reported_when_it_has_ended(tree: Tree, hook: Receiver) -> None:
    env = configure(tree, webhook(tree, hook.url))
    assert flush(Host(tree.root, owner_uid=os.getuid()), env) is ExitCode.GOOD
    assert json.loads(hook.bodies[0])["event"] == "needs-person"
    assert "sparkd-no-such.service ended with exit code 17 and stays down" in json.loads(hook.bodies[0])["text"]


@pytest.mark.parametrize("code", ["13", "0", ""])
def test_a_unit_that_systemd_starts_again_is_no_news(tree: Tree, hook: Receiver, code: str) -> None:
    env = configure(tree, webhook(tree, hook.url)) | {"MONITOR_EXIT_STATUS": code}
    assert flush(Host(tree.root, owner_uid=os.getuid()), env) is ExitCode.GOOD
    assert hook.bodies == []


def test_where_no_message_can_be_sent_the_exit_code_makes_systemd_try_again(tree: Tree, hook: Receiver) -> None:
    env = configure(tree, webhook(tree, hook.url))
    hook.status = 503
    assert flush(Host(tree.root, owner_uid=os.getuid()), env) is ExitCode.LAUNCH_FAILED


def test_with_a_configuration_that_cannot_be_read_the_last_one_counts(tree: Tree, hook: Receiver) -> None:
    settings = webhook(tree, hook.url)
    env = configure(tree, settings)
    tree.file("/etc/sparkd/sparkd.toml", "[notify\n")
    tree.file(FILE.path, FILE.encode(NotifyState(settings=settings.model_dump())))
    assert flush(Host(tree.root, owner_uid=os.getuid()), env) is ExitCode.GOOD
    assert len(hook.bodies) == 1


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
    second = Outbox(Host(tree.root, owner_uid=os.getuid()), settings, log, (0.01,))
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
    box = Outbox(Host(tree.root, owner_uid=os.getuid()), webhook(tree, hook.url), log, retry_seconds=(0.01,))
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


def test_the_command_sends_a_test_message_by_each_way(tmp_path: Path, hook: Receiver) -> None:
    program, url, config = tmp_path / "send", tmp_path / "url", tmp_path / "sparkd.toml"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    url.write_text(hook.url)
    url.chmod(0o600)
    config.write_text(f'[notify]\ncommand = "{program}"\nwebhook_file = "{url}"\n')
    hook.status = 404
    completed = sparkd("notify", "test", config=config)
    assert completed.returncode in (ExitCode.LAUNCH_FAILED, ExitCode.USAGE)
    if not os.geteuid():
        lines = completed.stdout.splitlines()
        assert lines[1] == "notify.webhook_file: HTTP 404 (does the receiver still know this URL?)"
        assert json.loads(hook.bodies[0])["event"] == "test"
        drop_in = "/etc/systemd/system/sparkd-notify.service.d/50-sparkd.conf"
        assert lines[2:] == [f"{drop_in} is missing: sudo sparkd units install"], (
            "or the program lacks its rights there"
        )


def test_without_a_way_the_command_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "sparkd.toml").write_text("")
    completed = sparkd("notify", "test", config=tmp_path / "sparkd.toml")
    assert completed.returncode == ExitCode.USAGE
    assert "man sparkd.toml: notify.command, notify.webhook_file" in completed.stderr


def test_an_agent_without_a_way_for_messages_imports_nothing_for_them() -> None:
    program = (
        "import sys, sparkd.agent.daemon.bootstrap, sparkd.agent.daemon.run;"
        "print(*(name for name in sys.modules if name.endswith(('.notify', '.webhook', '.notices'))))"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == ""
