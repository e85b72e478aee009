"""A blocked run waits in its process until it is repaired, stopped, or configured differently."""

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent_runs import World, configuration, end, phases, run_agent
from tests.unit.cluster_nodes import FullDisk, MemoryActions, agent_under_test, alone
from tests.unit.conftest import Notifications
from tests.unit.nodes import until

from sparkd.agent.daemon.blocked import LOOK_HANGS, retry_while_blocked
from sparkd.agent.daemon.context import Agent, Pace
from sparkd.agent.daemon.run import run, start
from sparkd.agent.preflight.fixes import Applied, Fix
from sparkd.agent.preflight.gate import HANG_HINT
from sparkd.agent.preflight.runner import IDS
from sparkd.base.config.settings import Engine, Preflight
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY, PID_FILE, DockerFacts
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import BlockedError, ExitCode
from sparkd.base.status.model import Phase

SCRIPT = "/srv/scripts/rank.sh"
PACE = Pace(retry_seconds=(300.0,), look_seconds=0.05, look_share=1)
"""What blocks is looked at again at once; without a change, the next try comes in minutes."""


@pytest.fixture
def scriptless(world: World) -> World:
    """A node whose engine.script does not exist."""
    world.pace = PACE
    world.tree.file("/etc/sparkd/sparkd.toml", configuration(world.port, SCRIPT, ("script-paths",)))
    return world


def test_a_blocked_node_serves_in_the_same_process_once_it_is_repaired(
    scriptless: World, notifications: Notifications
) -> None:
    code, journal = run_agent(
        scriptless, once={"blocked": lambda: scriptless.tree.file(SCRIPT, 'exec "$@"\n'), "serving": end}
    )
    assert code is ExitCode.GOOD, journal
    assert phases(journal) == ["blocked", "launching", "loading", "serving", "stopping", "stopped"]
    (blocked_line,) = [line for line in journal.splitlines() if line.startswith("<3>agent.run.blocked")]
    assert f"{SCRIPT} does not exist (engine.script)" in blocked_line
    assert " cause=blocked action=inspect " in blocked_line
    assert any(
        re.match(rf"STATUS=blocked: script-paths: {SCRIPT}.*; since \d{{4}}-\d\d-\d\d \d\d:\d\d UTC", message)
        for message in notifications()
    )


def test_a_full_run_blocks_until_there_is_room_and_counts_as_no_launch(world: World) -> None:
    world.pace = Pace(retry_seconds=(0.2,))
    run = world.tree.root / "run/sparkd"
    in_the_way = run / "private/room"
    in_the_way.mkdir(parents=True)

    def make_room() -> None:
        (run / "owner.json").unlink()  # as where /run had no room for it, either
        in_the_way.rmdir()

    code, journal = run_agent(world, once={"blocked": make_room, "serving": end})
    assert code is ExitCode.GOOD, journal
    (blocked_line,) = [line for line in journal.splitlines() if line.startswith("<3>agent.run.blocked")]
    assert "can't be written" in blocked_line
    assert "df -h /run" in blocked_line
    assert phases(journal)[:2] == ["blocked", "launching"]
    assert (run / "owner.json").exists() is False, "released at the end"


def test_a_launch_that_can_not_be_counted_is_blocked_before_other_nodes_start_their_ranks(world: World) -> None:
    def begin(agent: Agent) -> ExitCode:
        store = replace(agent.store, actions=FullDisk(agent.host, agent.loop, "a"))
        with pytest.raises(BlockedError, match="bounds crash loops: No space left"):
            start(replace(agent, store=store))
        assert agent.reporter.report.epoch == "", "it has called no worker"
        return ExitCode.GOOD

    run_agent(world, run=begin)


class DockerStops(MemoryActions):
    """Docker's administrator stops it once this node's image is known."""

    has_stopped = False

    def write_state(self, name: str, text: str, mode: int) -> None:
        if not self.has_stopped:
            self.has_stopped = True
            Path(self._host.files.real(PID_FILE)).unlink()


def test_docker_is_awaited_again_where_it_is_stopped_while_the_node_stands_by(world: World) -> None:
    pid_file, without_docker = world.tree.root / PID_FILE.lstrip("/"), list[object]()
    pid_file.unlink()

    def start_docker() -> None:
        for _ in range(2):
            until(lambda: not pid_file.exists(), 10)
            time.sleep(0.5)
            without_docker.append((world.phase, world.read("run/sparkd/report.json")["hint"]))
            pid_file.write_text("700\n")

    def run_with_stop(agent: Agent) -> ExitCode:
        store = replace(agent.store, actions=DockerStops(agent.host, agent.loop, "a"))
        return run(replace(agent, store=store))

    starter, ending = threading.Thread(target=start_docker), world.once("serving", end)
    starter.start()
    code, journal = run_agent(world, run=run_with_stop)
    starter.join()
    ending.join()
    assert code is ExitCode.GOOD, journal
    assert without_docker == [("awaiting-docker", "sudo systemctl start docker")] * 2, journal


class Tries:
    """Steps that a run is to take, and when each try of them began. The run is stopped with the last one."""

    def __init__(self, count: int, steps: Callable[[Agent], object]) -> None:
        self.times: list[float] = []
        self._count, self._steps = count, steps

    def run(self, agent: Agent) -> ExitCode:
        with pytest.raises(StopRequested):
            retry_while_blocked(agent, self._begin)
        return ExitCode.GOOD

    def _begin(self, agent: Agent) -> object:
        self.times.append(time.monotonic())
        if len(self.times) == self._count:
            end()
        return self._steps(agent)


def test_an_hour_blocked_is_few_lines_and_no_container(scriptless: World) -> None:
    scriptless.pace = replace(PACE, retry_seconds=(0.01,))
    scriptless.tree.file("/etc/sparkd/sparkd.toml", configuration(scriptless.port, SCRIPT, tuple(IDS)))
    _, journal = run_agent(scriptless, run=Tries(20, start).run)  # an hour has some 14 tries
    assert journal.count("agent.run.blocked") == 1
    assert len(journal.splitlines()) <= 60, "three a try"
    assert all(request.startswith("GET ") for request in scriptless.requests)


def test_a_block_by_a_hook_is_tried_again_after_pauses_that_grow(world: World) -> None:
    world.pace = Pace(retry_seconds=(0.1, 0.6), look_seconds=0.1)

    def run_hook(_agent: Agent) -> None:
        raise BlockedError("hook:10-site: no", checks=("hook:10-site",))

    tries = Tries(3, run_hook)
    run_agent(world, run=tries.run)
    first, second, third = tries.times
    assert second - first >= 0.1
    assert third - second >= 0.6


def test_a_look_at_what_blocks_that_hangs_is_the_only_one_and_its_end_starts_a_try(world: World) -> None:
    world.pace = replace(PACE, retry_seconds=(0.05,), hang_seconds=0.05)
    released, looks_and_tries = threading.Event(), list[tuple[int, int]]()

    def docker() -> DockerFacts:
        released.wait(10)
        return AWAY

    def refuse(_agent: Agent) -> None:
        raise BlockedError("stale-container: it is there", checks=("stale-container",))

    tries = Tries(2, refuse)

    def release() -> None:
        time.sleep(1)
        looks = [thread for thread in threading.enumerate() if thread.name == "call"]
        looks_and_tries.append((len(looks), len(tries.times)))
        released.set()

    _, journal = run_agent(
        world,
        run=lambda agent: tries.run(replace(agent, host=Host(world.tree.root, docker))),
        once={"blocked": release},
    )
    assert looks_and_tries == [(1, 1)]
    assert len(tries.times) == 2
    (hung_line,) = [line for line in journal.splitlines() if "agent.run.blocked" in line and LOOK_HANGS in line]
    assert "; stale-container: " in hung_line.partition("before its end")[2], "what blocked before"
    assert HANG_HINT in hung_line


def test_the_end_of_a_second_look_that_hung_starts_a_try_too(world: World) -> None:
    world.pace = replace(PACE, retry_seconds=(3.0,), hang_seconds=0.05)
    looks = list[float]()

    def docker() -> DockerFacts:
        looks.append(time.monotonic())
        time.sleep(0.5 if len(looks) == 2 else 0)
        return AWAY

    def refuse(_agent: Agent) -> None:
        raise BlockedError("hook:10-site: no", checks=("stale-container", "hook:10-site"))

    tries = Tries(2, refuse)
    _, journal = run_agent(world, run=lambda agent: tries.run(replace(agent, host=Host(world.tree.root, docker))))
    assert tries.times[1] - tries.times[0] < 2.5, "the second one says what blocks now"
    assert LOOK_HANGS in journal


class Surviving(MemoryActions):
    """On a machine where no stray ends."""

    applied = 0

    def apply(self, fix: Fix) -> Applied:
        self.applied += 1
        return Applied("failed", f"{fix.target} survived")


def test_each_preflight_applies_its_fixes_again(tree: Tree) -> None:
    """What the one before has applied blocks no later try."""
    policy = Preflight(skip=tuple({*IDS} - {"stray-workers"}), downgrade=("stray-workers",))
    with agent_under_test(tree, 0, alone().model_copy(update={"preflight": policy})) as node:
        machine = Tree(Path(node.agent.host.files.root))
        machine.process(10, "VLLM::Worker_TP", group=9)
        machine.listening()
        machine.folder("/dev")
        actions = Surviving(node.agent.host, node.agent.loop, "a")
        admission = node.remake(actions=actions).admission
        for count in (1, 2):
            admission.check()
            assert (actions.applied, len(admission.tried)) == (count, 1)


def test_a_try_that_waits_leaves_the_hint_of_what_blocked_before(tree: Tree) -> None:
    policy = Preflight(skip=tuple({*IDS} - {"ports"})).model_copy(update={"wait_seconds": 1})
    changes = {"preflight": policy, "engine": Engine(recipe="tiny-cpu", args={"host": "192.0.2.1"})}
    with agent_under_test(tree, 0, alone().model_copy(update=changes)) as node:
        Tree(Path(node.agent.host.files.root)).listening()
        node.agent.phase.enter(Phase.BLOCKED, "plans differ", hint="make them the same")
        with pytest.raises(BlockedError, match="192"):
            node.agent.admission.check()
        assert node.report.message.startswith("waiting for the address 192.0.2.1")
        assert node.report.hint == ""


def test_a_port_of_a_stray_that_survived_is_no_reason_for_a_try_at_once(tree: Tree, port: int) -> None:
    """stray-workers only warns, and without that try's fixes a look would leave the port to it."""
    policy = Preflight(skip=tuple({*IDS} - {"ports", "stray-workers"}), downgrade=("stray-workers",))
    engine = Engine(recipe="tiny-cpu", args={"port": port})
    tries = list[float]()
    with agent_under_test(tree, 0, alone().model_copy(update={"preflight": policy, "engine": engine})) as node:
        machine = Tree(Path(node.agent.host.files.root))
        machine.process(10, "VLLM::Worker_TP", group=9, opened=("socket:[5]",))
        machine.listening((port, 5))
        machine.folder("/dev")
        actions = Surviving(node.agent.host, node.agent.loop, "a")

        def admit(agent: Agent) -> None:
            tries.append(time.monotonic())
            try:
                agent.admission.check()
            finally:
                threading.Timer(1.0, node.end).start()

        with pytest.raises(StopRequested):
            retry_while_blocked(node.remake(actions=actions, pace=PACE), admit)
        assert node.report.message.startswith(f"ports: port {port} of the API is held"), node.report
    assert len(tries) == 1


@pytest.mark.parametrize(
    "path", ["/etc/sparkd/conf.d/10-mine.toml", "/srv/secrets/api.key", "/srv/checkout/recipes/mine.yaml"]
)
def test_another_configuration_is_for_the_next_process(scriptless: World, path: str) -> None:
    scriptless.tree.file("/srv/secrets/api.key", "old")
    recipes = scriptless.tree.file("/srv/checkout/recipes/mine.yaml", "old").parent
    (scriptless.tree.root / "etc/sparkd/recipes").symlink_to(recipes)
    secret = str(scriptless.tree.root / "srv/secrets/api.key")
    scriptless.tree.file("/etc/sparkd/conf.d/05-key.toml", f"engine.secrets.VLLM_API_KEY = {json.dumps(secret)}\n")
    code, journal = run_agent(scriptless, once={"blocked": lambda: scriptless.tree.file(path, "engine.script = ''\n")})
    assert code is ExitCode.BLOCKED
    assert 'reason="the configuration, or sparkd itself, has changed"' in journal
