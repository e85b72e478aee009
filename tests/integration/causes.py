"""What may end a run of the head of two nodes, at a moment of the test's choice, and how the run has ended."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.integration.agent_world import API_PORT, World, world

from sparkd.base.config import load_settings
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders
from sparkd.base.state.switch import FILE, NOTICE, Chosen, Stage, Switch, fingerprint_engine
from sparkd.base.status.model import Phase

END_SECONDS = 60.0
SETTLE_SECONDS = 0.15
NOTICE_SECONDS = 0.1
_FIRING = threading.Lock()
"""Node by node, so that none takes the processor from another while distances are timed."""
ABOVE_FLOOR_KIB, BELOW_FLOOR_KIB = 560 << 10, 100 << 10
"""MemAvailable: so close to the floor of 512 MiB, the guard looks every 20 ms."""
_AVAILABLE = re.compile(rb"MemAvailable: *\d+ kB")
_FAILED = re.compile(r"agent\.run\.failed code=(\d+) cause=(\S+) action=\S+ phase=(\S+) ")


class End(NamedTuple):
    """Of a run, by its exit code, its last state file, its last report and its journal."""

    code: int
    cause: str
    """In the launch history."""
    phase: str
    logged: tuple[str, str, str] | None = None
    """Code, cause and phase in the event; None where the run did not fail."""


class Trigger:
    """Brings about what may end the run of one node."""

    def __init__(self, node: World) -> None:
        self._node = node
        self._agent_pid = node.agent_pid
        (node.root / "var/lib/sparkd").mkdir(exist_ok=True)
        self._chosen = node.tree.file("/var/lib/sparkd/.chosen", _choice(node.root), 0o600)
        self._notice = node.tree.file(f"{NOTICE}.new", "")
        self._by_name: dict[str, Callable[[], object]] = {
            "guard": lambda: set_available(node, BELOW_FLOOR_KIB),
            "rank": lambda: node.control(signal=signal.SIGUSR2),
            "peer": self._fail_peer,
            "stop": lambda: os.kill(self._agent_pid, signal.SIGTERM),
            "switch": self._choose,
        }

    def fire(self, name: str) -> None:
        self._by_name[name]()

    def await_switch(self) -> None:
        """Until the agent has seen the chosen plan: it looks after each wait, which news of the other node end."""
        assert self._node.peer is not None
        self._node.peer.publish(message="news")
        self._node.await_line("leaving for recipe new", "switch.drain.started")

    def _choose(self) -> None:
        self._chosen.rename(self._node.root / "var/lib/sparkd" / FILE.name)
        self._notice.rename(self._node.root / NOTICE[1:])

    def _fail_peer(self) -> None:
        assert self._node.peer is not None
        self._node.peer.publish(phase=Phase.FAILED, message="its engine ended")


def set_available(node: World, kib: int) -> None:
    """The available memory, as this node's programs read it."""
    path = node.root / "run/meminfo"
    content = path.read_bytes()
    with path.open("r+b") as file:  # in place: the guard has it open
        file.write(_AVAILABLE.sub(lambda line: b"MemAvailable:%*d kB" % (len(line[0]) - 16, kib), content))


def _choice(root: Path) -> str:
    """What `sparkd use` writes: the configured recipe under another name."""
    settings = load_settings({}, root)
    recipe = load_recipe(settings.engine.recipe, recipe_folders(root)).recipe
    chosen = Chosen(recipe.model_copy(update={"name": "new"}), settings.engine)
    return FILE.encode(Switch(fingerprint_engine(settings.engine, recipe), Stage.DRAINING, chosen, (), 0, 30, "1"))


def end_by_two(first: str, second: str, gap_seconds: float, phase: str) -> End:
    """`gap_seconds`: from the first to the second; after a chosen plan, from the moment that it is seen."""
    with world("engine.stop_grace_seconds = 5", pair=True) as node:
        set_available(node, ABOVE_FLOOR_KIB)
        node.control(engine=[str(API_PORT), phase, "slow"])  # the second cause comes before its end
        node.start_agent()
        node.lead_peer()
        node.await_phase(phase)
        node.await_line("memory_guard.watch.started")
        node.await_line("Starting to load model")
        node.control(signal=signal.SIGUSR1)
        node.await_line("RuntimeError: boom")
        trigger = Trigger(node)
        assert node.peer is not None
        with _FIRING, node.hurried():
            node.peer.publish(message="its rank runs")  # after it, the head's next request is held for seconds
            time.sleep(SETTLE_SECONDS)
            trigger.fire(first)
            if first == "switch":
                trigger.await_switch()
            time.sleep(gap_seconds)
            trigger.fire(second)
            time.sleep(NOTICE_SECONDS)
        return read_end(node)


def read_end(node: World) -> End:
    code = node.exit_code(END_SECONDS)
    lines = list(node.lines)
    failed = next((matched.groups() for line in lines if (matched := _FAILED.search(line))), None)
    assert node.containers() == []
    logged = (failed[0], failed[1], failed[2]) if failed else None
    return End(code, str(node.last_exit.get("cause")), str(node.report.get("phase")), logged)
