"""`sparkd notify`: what it sends for a unit that stays down, and as a test."""

import json
import os
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.commands import sparkd
from tests.unit.http_receivers import Receiver
from tests.unit.notify_ways import webhook

from sparkd.agent.daemon.notify import FILE
from sparkd.base.config import Notify
from sparkd.base.host import Host
from sparkd.base.lib.errors import ExitCode
from sparkd.base.status.notices import NotifyState
from sparkd.tools.cli.notify import flush


def configure(tree: Tree, settings: Notify) -> dict[str, str]:
    """The variables of systemd where a unit has ended with exit code 17."""
    tree.file("/etc/sparkd/sparkd.toml", f'[notify]\nwebhook_file = "{settings.webhook_file}"\n')
    return {"MONITOR_UNIT": "sparkd-no-such.service", "MONITOR_EXIT_STATUS": "17"}


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
