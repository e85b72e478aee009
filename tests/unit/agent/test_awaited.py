"""What the configuration names may come late, by a mount or by a person: the agent waits for it in its process."""

import errno
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.agent.late_files import RECIPE, LateFiles
from tests.unit.agent.opened_files import opened_by_main_thread
from tests.unit.agent.starts import release, start_agent
from tests.unit.agent_runs import record
from tests.unit.cluster_nodes import EventLines, MemoryActions, base_under_test
from tests.unit.plans import configured

from sparkd.agent.daemon.bootstrap import await_agent, build_agent
from sparkd.agent.daemon.configuration_stamp import Stamp, stamp_configuration
from sparkd.agent.daemon.context import Agent, Pace
from sparkd.base.cluster.auth import read_keys
from sparkd.base.host.files import Files
from sparkd.base.host.owner import HANDED
from sparkd.base.lib.errors import (
    BlockedError,
    ConfigError,
    ExitCode,
    NotReadyError,
    OutdatedPlanError,
    UnreadableError,
    unreadable,
)
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier

READ_SECONDS = 1.5


@pytest.fixture
def late(tree: Tree) -> LateFiles:
    return LateFiles(tree)


def test_a_share_whose_server_is_away_is_waited_for(late: LateFiles) -> None:
    share = late.mount / "share.yaml"
    late.mount.mkdir()
    late.recipe.symlink_to(share)
    late.secret.symlink_to("/proc/self/mem")  # EIO
    with late.meanwhile(
        ("own.yaml: is a link to a file that does not exist", lambda: late.appear(share, RECIPE)),
        ("Input/output error", lambda: late.appear(late.secret, "abc\n")),
    ):
        assert late.start().count("agent.start.awaited") == 2


def test_a_key_file_whose_disk_fails_may_be_readable_later() -> None:
    with pytest.raises(UnreadableError):
        read_keys(Files(owner_uid=os.getuid()), "/proc/self/mem")


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENOMEM, errno.ENFILE])
def test_what_a_machine_can_not_read_just_now_is_waited_for(number: int) -> None:
    """Such as one that ends an engine for want of memory: with exit code 78 its unit would stay down."""
    assert issubclass(unreadable(OSError(number, os.strerror(number))), UnreadableError)
    assert unreadable(OSError(errno.EACCES, os.strerror(errno.EACCES))) is ConfigError


def await_settings(late: LateFiles, config: Path, come: Callable[[], object], seconds: float = 0.5) -> str:
    """The only line of an agent whose settings `come` so long after its start. They are read, and wrong."""

    def start(loop: MainLoop, notifier: Notifier, journal: Journal) -> None:
        timer = threading.Timer(seconds, come)
        timer.start()
        env, pace = {"SPARKD_CONFIG": str(config)}, Pace(look_seconds=0.05, read_seconds=READ_SECONDS)
        with pytest.raises(ConfigError, match=r"engine.* must be"):
            build_agent("head", loop, notifier, journal, ProcessLog(journal.put), env, late.tree.root, pace=pace)
        timer.join()

    (line,) = record(start)[1].splitlines()
    assert "agent.start.awaited" in line
    return line


def test_settings_that_can_not_be_read_just_now_are_waited_for_with_one_line(late: LateFiles) -> None:
    """A restart for each try would log the same every six seconds, for as long as the disk fails."""
    share = late.tree.root / "share.toml"
    share.symlink_to("/proc/self/mem")  # EIO
    line = await_settings(late, share, partial(late.appear, share, "engine = 1\n"))
    assert "share.toml: cannot be read: input/output error" in line
    assert "sudo dmesg" in line


@pytest.mark.parametrize(("link", "file"), [("own.toml", ""), ("conf.d", "a.toml"), ("conf.d/20-a.toml", "")])
def test_settings_by_a_link_to_a_late_mount_are_waited_for(late: LateFiles, link: str, file: str) -> None:
    """As after a power cut that the file server takes longer for: with exit code 78 the unit would stay down."""
    folder, target = late.tree.root / "etc/sparkd", late.mount / link
    own = late.tree.file("/etc/sparkd/own.toml", "")
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).unlink(missing_ok=True)
    (folder / link).symlink_to(target)

    def come() -> None:
        (target / file).parent.mkdir(parents=True)
        late.appear(target / file, "engine = 1\n")

    line = await_settings(late, own, come)
    assert f"{link}: is a link to a file that does not exist" in line
    assert "mount what it leads to" in line


def test_a_share_with_settings_that_hangs_does_not_hang_the_main_thread(late: LateFiles) -> None:
    """A start would end by systemd's timeout, again and again, without a line of sparkd's own."""
    late.appear(late.secret, "abc\n")
    come = ("own.yaml: does not exist", lambda: late.appear(late.recipe, RECIPE))
    with opened_by_main_thread() as opened, late.meanwhile(come):
        late.start()
    assert [path for path in opened if "/etc/sparkd" in path] == []
    assert [path for path in opened if "/run/sparkd/" in path], "these are seen"


def test_settings_whose_share_hangs_are_waited_for(late: LateFiles) -> None:
    own, is_back = late.tree.file("/etc/sparkd/own.toml", "engine = 1\n"), threading.Event()
    folder = late.tree.folder("/etc/sparkd/conf.d")

    def hang(event: str, args: tuple[object, ...]) -> None:
        if event == "os.listdir" and str(args[0]) == str(folder):
            is_back.wait(10)

    sys.addaudithook(hang)
    line = await_settings(late, own, is_back.set, READ_SECONDS + 0.5)
    assert f"reading the settings did not end within {READ_SECONDS} s" in line
    assert "sparkd waits for it; look at: sudo dmesg" in line


@pytest.mark.parametrize("number", [errno.EUCLEAN, errno.EBADMSG])
def test_settings_on_a_damaged_file_system_end_the_start(late: LateFiles, number: int) -> None:
    """Nothing would be seen of an agent that waits for them but one line: without settings it reports no phase."""
    own, is_damaged = late.tree.file("/etc/sparkd/own.toml", "engine = 1\n"), threading.Event()

    def refuse(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and str(args[0]) == str(own) and not is_damaged.is_set():
            is_damaged.set()
            raise OSError(number, os.strerror(number))

    sys.addaudithook(refuse)
    with pytest.raises(ConfigError, match=f"cannot be read: {os.strerror(number).lower()}") as ended:
        start_agent(late.tree, release, {"SPARKD_CONFIG": str(own)}, Pace(look_seconds=0.05))
    assert ended.value.code is ExitCode.CONFIG


def test_settings_that_were_replaced_while_they_were_awaited_count_as_read(late: LateFiles) -> None:
    late.appear(late.recipe, RECIPE)
    late.appear(late.secret, "abc\n")
    own = late.tree.root / "etc/sparkd/own.toml"
    own.symlink_to("/proc/self/mem")  # EIO

    timer = threading.Timer(0.5, late.appear, (own, (own.parent / "sparkd.toml").read_text()))

    def read_stamp(agent: Agent) -> Stamp:
        agent.actions.release()
        return agent.configured_at

    timer.start()
    stamp, journal = start_agent(late.tree, read_stamp, {"SPARKD_CONFIG": str(own)}, Pace(look_seconds=0.05))
    timer.join()
    assert "own.toml: cannot be read" in journal
    assert stamp == stamp_configuration(late.tree.root)


def test_settings_that_can_not_be_read_keep_no_lock_that_was_handed_on(
    late: LateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = late.tree.root / "share.toml"
    share.symlink_to("/proc/self/mem")  # EIO
    with open(os.devnull) as lock, pytest.raises(BlockedError, match="cannot be read"):
        monkeypatch.setenv(HANDED, f"{lock.fileno()} abc")
        start_agent(late.tree, release, {"SPARKD_CONFIG": str(share)})


def test_a_recipe_and_a_secret_on_a_late_mount_are_waited_for_with_one_line_each(late: LateFiles) -> None:
    with late.meanwhile(
        ("own.yaml: does not exist", lambda: late.appear(late.recipe, RECIPE)),
        ("secret HF_TOKEN can't be read", lambda: late.appear(late.secret, "abc\n")),
    ):
        journal = late.start()
    awaited = [line for line in journal.splitlines() if "agent.start.awaited" in line]
    assert len(awaited) == 2
    assert "own.yaml: does not exist" in awaited[0]
    assert "HF_TOKEN" in awaited[1]


def test_lines_before_the_first_step_have_the_configured_format(late: LateFiles) -> None:
    late.tree.file("/etc/sparkd/conf.d/20-log.toml", 'log.format = "json"\n')
    late.appear(late.secret, "abc\n")
    with late.meanwhile(("own.yaml: does not exist", lambda: late.appear(late.recipe, RECIPE))):
        journal = late.start()
    (line,) = [line for line in journal.splitlines() if "agent.start.awaited" in line]
    assert json.loads(line[line.index("{") :])["event"] == "agent.start.awaited"


def test_a_configuration_that_is_changed_while_files_are_awaited_starts_the_agent_again(late: LateFiles) -> None:
    with late.meanwhile(("own.yaml", lambda: late.configure("tiny-cpu"))), pytest.raises(OutdatedPlanError) as ended:
        late.start()
    assert ended.value.code is ExitCode.BLOCKED


def test_a_file_that_is_there_and_wrong_ends_the_start(late: LateFiles) -> None:
    late.appear(late.recipe, "schema: 1\nname: own\n")
    with pytest.raises(ConfigError) as ended:
        late.start()
    assert ended.value.code is ExitCode.CONFIG


def test_a_new_plan_waits_for_its_files_no_longer_than_its_try_may_take(tree: Tree) -> None:
    alone = configured(engine={"recipe": str(tree.root / "late/own.yaml")}, observe={"listen": ""})
    with base_under_test(tree, 0, alone) as base, pytest.raises(NotReadyError, match=r"own\.yaml: does not exist"):
        await_agent(base, None, EventLines(), limit_seconds=0.5)


def test_an_address_that_comes_late_as_at_each_boot_is_not_to_be_repaired_at_once(tree: Tree) -> None:
    nodes = {"nodes": ["192.0.2.1", "192.0.2.2"]}
    pair = configured(engine={"recipe": "tiny-cpu-pair"}, cluster=nodes, observe={"listen": ""})
    with base_under_test(tree, 0, pair) as base:
        with pytest.raises(NotReadyError, match="none of the addresses"):
            await_agent(base, None, EventLines(), limit_seconds=0.5)
        assert isinstance(base.actions, MemoryActions)
        assert json.loads(base.actions.written["report.json"])["hint"].startswith("if it stays: is its cable in")
