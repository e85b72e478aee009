"""The next agent takes over a rank that another one has left, or says why not."""

import signal
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.kept_ranks import kept_rank
from tests.unit.agent.left_ranks import left_rank
from tests.unit.agent.opened_files import opened_by_main_thread
from tests.unit.agent.starts import release, start_agent
from tests.unit.agent_runs import World, phases, run_agent
from tests.unit.agent_runs import record as in_main_loop

from sparkd.agent.daemon.bootstrap import build_agent
from sparkd.agent.daemon.configuration_stamp import FORM
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.smoke_test import start_smoke_test
from sparkd.agent.engine.rank import Running
from sparkd.base.config.settings import Smoke
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import BlockedError, Cause, ConfigError, ExitCode
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.state.rank_record import RANK_FILE


def test_a_start_without_what_may_come_back_is_no_crash(tree: Tree) -> None:
    """So the next one tries it again, for as long as the guard waits."""
    with (
        left_rank(tree, kept_rank("tiny-cpu-pair", nodes=("10.0.0.1", "10.0.0.2"))),
        pytest.raises(BlockedError, match="no cluster key"),
    ):
        start_agent(tree, release)
    assert RANK_FILE.decode((tree.root / RANK_FILE.path[1:]).read_bytes()).taken_over == ()


def test_a_unit_of_the_wrong_role_does_not_say_that_it_ends_the_rank(world: World) -> None:
    def refuse(loop: MainLoop, notifier: Notifier, journal: Journal) -> None:
        with pytest.raises(ConfigError, match="this node is rank 0, the head, not a worker"):
            build_agent("worker", loop, notifier, journal, ProcessLog(journal.put), {}, world.tree.root)

    with left_rank(world.tree, kept_rank()):
        _, journal = in_main_loop(refuse)
    assert "engine.rank.refused" not in journal


def test_a_rank_whose_process_is_in_another_container_is_refused_with_a_reason(world: World) -> None:
    with left_rank(world.tree, kept_rank()) as process:
        world.tree.file(f"/proc/{process.pid}/cgroup", "0::/system.slice/some.service\n")
        _, journal = start_agent(world.tree, release)
        assert process.poll() is None, "preflight decides"
    assert 'engine.rank.refused reason="its first process has just ended, or is in another container"' in journal


def take_over(world: World) -> tuple[bool, str]:
    """Whether the next agent has taken the rank over, and its journal."""

    def is_taken_over(agent: Agent) -> bool:
        running = agent.rank.running
        assert running is not None and running.guard is not None
        running.guard.close()
        agent.actions.release()
        return running.taken_over

    return start_agent(world.tree, is_taken_over)


def test_a_full_run_keeps_no_agent_from_the_rank_that_serves(left: World) -> None:
    (left.tree.root / RANK_FILE.folder[1:]).chmod(0o777)  # refused likewise
    taken_over, journal = take_over(left)
    assert taken_over
    assert "state.write.failed file=rank.json" in journal


@pytest.mark.parametrize(("stamp", "differs"), [("6" * 64, False), (f"{FORM}{'6' * 64}", True)])
def test_a_stamp_that_another_version_made_otherwise_is_no_change_of_the_configuration(
    world: World, stamp: str, differs: bool
) -> None:
    with left_rank(world.tree, replace(kept_rank(), stamp=stamp)):
        _, journal = take_over(world)
    assert ("engine.configuration.changed" in journal) is differs


def test_a_disk_that_hangs_keeps_no_agent_from_the_rank_since_the_main_thread_opens_nothing_there(left: World) -> None:
    with opened_by_main_thread() as opened:
        taken_over, _ = take_over(left)
    assert taken_over
    assert [path for path in opened if "/var/lib/" in path] == []
    assert [path for path in opened if "/etc/sparkd" in path] == [], "a link there may lead to a share"
    assert [path for path in opened if "/run/sparkd/" in path], "these are seen"


def test_an_agent_that_takes_a_rank_over_is_ready_once_its_report_says_that_it_serves(
    left: World, notifications: Callable[[], list[str]]
) -> None:
    left.tree.folder("/var/lib/sparkd/history.db")  # the look at earlier launches would publish it by the way
    taken_over, journal = take_over(left)
    assert taken_over and "history.read.failed" in journal
    messages = notifications()
    assert messages.index("STATUS=serving") < messages.index("READY=1")


def test_the_end_before_the_launch_of_a_rank_is_not_reported_by_an_agent_that_takes_it_over(left: World) -> None:
    ended = LaunchHistory(last_exit=End("no image", 11, "pull it", cause=Cause.IMAGE_MISSING))
    left.tree.file(launch_history.FILE.path, launch_history.FILE.encode(ended))
    taken_over, _ = take_over(left)
    assert taken_over
    assert left.read("run/sparkd/report.json")["last_cause"] == ""


def test_a_rank_that_is_taken_over_is_neither_made_ready_nor_smoke_tested_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(agent: Agent, running: Running) -> None:
        start_smoke_test(agent, running)()
        raise StopRequested(signal.SIGTERM)

    for step in ("run.make_ready", "run.try_out", "smoke_test._run_smoke_test"):
        monkeypatch.setattr(f"sparkd.agent.daemon.{step}", lambda *_, step=step: pytest.fail(f"{step} is called"))
    monkeypatch.setattr("sparkd.agent.daemon.run.serve", serve)
    kept = kept_rank()
    settings = kept.settings.model_copy(update={"smoke": Smoke(on_start=True)})
    with left_rank(world.tree, replace(kept, settings=settings)):
        code, journal = run_agent(world)
    assert code is ExitCode.GOOD, journal
    assert phases(journal) == ["stopping", "stopped"]
