"""A run starts its rank, serves until it is stopped, and leaves alone a node that is not its own."""

import os
import re
import signal
from collections.abc import Iterable
from contextlib import ExitStack

import pytest
from tests.tree import Tree
from tests.unit.agent_runs import CONTAINER, World, end, open_world, phases, run_agent
from tests.unit.cluster_nodes import AgentUnderTest
from tests.unit.cluster_nodes import running as unwatched
from tests.unit.conftest import Notifications
from tests.unit.limits import no_more_threads
from tests.unit.nodes import until

from sparkd.agent.actions.compile_caches import KEPT
from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.agent.daemon.context import Agent, Pace
from sparkd.agent.daemon.startup import watch
from sparkd.agent.engine.rank import Running
from sparkd.base.host import Host, caches
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib.errors import BlockedError, ConfigError, ExitCode
from sparkd.base.lib.main_loop import never
from sparkd.base.state.launch_history import STOPPED, End
from sparkd.base.status.model import parse


def test_a_run_starts_its_rank_serves_and_stops_on_request(world: World, notifications: Notifications) -> None:
    world.tree.file("/proc/self/mounts")
    for letter in "abef":
        world.tree.folder(f"{caches.ROOT}/{letter * 64}")

    def end_once_pruned() -> None:
        until(lambda: len(os.listdir(f"{world.tree.root}{caches.ROOT}")) == KEPT)
        end()

    code, journal = run_agent(world, once={"serving": end_once_pruned})
    messages = notifications()
    assert code is ExitCode.GOOD, journal
    assert phases(journal) == ["launching", "loading", "serving", "stopping", "stopped"]
    assert [message for message in messages if message in ("READY=1", "STOPPING=1")] == ["READY=1", "STOPPING=1"]
    served = next(number for number, message in enumerate(messages) if "STATUS=serving: tiny on port" in message)
    assert served < messages.index("READY=1"), "who waits for the unit reads a report that serves"
    assert world.rank is not None
    assert world.rank.wait(1) == -signal.SIGTERM
    acts = [request.replace(CONTAINER, "ID") for request in world.requests if not request.startswith("GET ")]
    assert acts == ["POST /containers/create", "POST /containers/ID/start", "DELETE /containers/ID"]
    assert "engine| " in journal
    assert world.last_exit == End(STOPPED, ExitCode.GOOD, at=world.last_exit.at, cause="stop-requested")
    assert world.phase == "stopped"
    report = parse((world.tree.root / "run/sparkd/report.json").read_text())
    assert report is not None
    assert report.engine.model == "tiny"
    assert not report.engine.keyed
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", report.engine.url)
    script = world.tree.root / "run/sparkd/private/launch.sh"
    assert "vllm serve" in script.read_text()
    assert script.parent.stat().st_mode & 0o777 == 0o700
    assert script.stat().st_mode & 0o777 == 0o644


class ThreadlessWorld(World):
    """A world in which no thread can be started from the end of the first launch to that of the `shortage`."""

    def __init__(self, tree: Tree, port: int) -> None:
        super().__init__(tree, port)
        self.shortage = ExitStack()

    def docker(self, request: str) -> Iterable[bytes]:
        answer, state = super().docker(request), f"GET /containers/{CONTAINER}/json"
        if self.requests[-1] == state and self.requests.count(state) == 2:  # the last call of a launch
            self.shortage.enter_context(no_more_threads())
        return answer


def test_a_rank_that_no_thread_can_watch_is_ended_and_the_node_blocked_until_one_can() -> None:
    with open_world(ThreadlessWorld) as world, world.shortage:
        world.pace = Pace(retry_seconds=(0.2,), look_seconds=0.1)
        code, journal = run_agent(world, once={"blocked": world.shortage.close, "serving": end})
    assert code is ExitCode.GOOD, journal
    assert phases(journal)[:4] == ["launching", "blocked", "launching", "loading"]
    assert "no thread to watch the rank" in journal
    assert world.requests.count(f"POST /containers/{CONTAINER}/start") == 2


def test_the_end_of_a_rank_that_no_thread_can_watch_ends_no_later_try(
    lone: AgentUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_unwatched(agent: Agent, running: Running) -> None:
        process.kill()
        agent.loop.wait_until(running.rank.ended.is_set, 5, shielded=True)
        agent.loop.wait_until(never, 0.05, shielded=True)  # it is seen
        raise BlockingIOError("can't start new thread")

    monkeypatch.setattr("sparkd.agent.daemon.startup.start_threads", end_unwatched)
    with unwatched(lone.agent) as (rank, process):
        with no_more_threads(), pytest.raises(BlockedError, match="no thread to watch the rank"):
            watch(lone.agent, rank)
        lone.agent.loop.wait(0.01)


def test_a_dockerd_that_can_not_be_found_by_its_pid_file_is_awaited_with_what_helps(world: World) -> None:
    world.tree.process(700, "dockerd", argv=("dockerd", "--pidfile=/run/my.pid"))
    world.tree.file("/run/docker.pid").unlink()

    # As `systemctl restart docker` starts it, once the flag is gone.
    code, journal = run_agent(world, once={"awaiting-docker": lambda: world.tree.dockerd(701), "serving": end})
    assert code is ExitCode.GOOD, journal
    assert phases(journal)[0] == "awaiting-docker" and "serving" in phases(journal)
    assert "dockerd runs, and keeps its pid in /run/my.pid" in journal
    assert "then: sudo systemctl restart docker" in journal


def test_the_wrong_role_changes_nothing(world: World) -> None:
    with pytest.raises(ConfigError, match="not a worker"):
        run_agent(world, "worker")
    assert not (world.tree.root / "run/sparkd").exists()


def test_a_node_that_another_agent_owns_is_left_alone(world: World) -> None:
    owner = NodeOwner(1, "sparkd run --role head", "0" * 32)
    fd = acquire_lock(Host(world.tree.root), owner)
    with pytest.raises(
        BlockedError,
        match=r"this node is owned by the process that holds .*, which /run/sparkd/owner\.json does not name",
    ):
        run_agent(world)
    os.close(fd)
    assert not (world.tree.root / "var/lib/sparkd").exists()
    assert world.requests == []
