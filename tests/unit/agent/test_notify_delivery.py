"""A message goes by the webhook's URL, or by the operator's own program."""

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.http_receivers import Receiver
from tests.unit.nodes import until
from tests.unit.notify_ways import LOST, URL_FILE, program, webhook

from sparkd.agent.daemon.notify_delivery import deliver
from sparkd.base.config import Notify
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import LaunchError
from sparkd.base.status.notices import Notice


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
    assert variables["NOTICE_EVENT"] == "lost"
    assert variables["NOTICE_TITLE"] == "spark1: lost"
    assert not any(name.startswith("SPARKD_") for name in variables)


def test_a_text_is_no_code_for_a_shell(tree: Tree, tmp_path: Path) -> None:
    settings = program(tree, f'echo "$NOTICE_TEXT" > {tmp_path}/out')
    run_program(tree, settings, replace(LOST, text="$(touch /tmp/x); `id` ' \""))
    assert (tmp_path / "out").read_text() == "$(touch /tmp/x); `id` ' \"\n"


def test_a_program_need_not_read_its_message_and_must_end_with_0(tree: Tree) -> None:
    run_program(tree, program(tree, "exit 0"))
    path = "/usr/local/bin/a mail"
    tree.file(path, "#!/bin/sh\necho no mail; exit 3\n", 0o755)
    with pytest.raises(LaunchError, match=rf"ended with exit code 3: no mail \(run it by hand: sudo '{path}'\)"):
        run_program(tree, Notify(command=path))


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
