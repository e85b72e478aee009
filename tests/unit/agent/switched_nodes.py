"""A node with a choice in its file, as `sparkd use` or an earlier process has left it."""

import errno
import os
import time

import pytest
from msgspec.structs import replace
from tests.unit.cluster_nodes import AgentUnderTest, FullDisk

from sparkd.agent.actions.files import compare_and_swap
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.switch_start import stamp_switch
from sparkd.agent.daemon.switching import Switching
from sparkd.base.cluster import membership
from sparkd.base.lib.main_loop import never
from sparkd.base.state.switch import FILE, Chosen, Stage, Switch


def chosen(node: AgentUnderTest, name: str = "new", until: str = "") -> Chosen:
    context = node.agent.context
    return Chosen(context.recipe.model_copy(update={"name": name}), context.settings.engine, until=until)


def write_switch(node: AgentUnderTest, stage: Stage, tries: int = 0, until: str = "", **changes: object) -> Switch:
    """As `sparkd use` or an earlier process has left it."""
    replaces = membership.fingerprint_config(node.agent.context.configured, node.agent.host)
    switch = Switch(replaces, stage, chosen(node, until=until), (), tries, 60, "2026-01-01")
    switch = replace(switch, **changes)
    files = node.agent.host.files
    assert compare_and_swap(files, FILE, FILE.read(files), switch)
    return switch


def wait_for_end(switching: Switching, node: AgentUnderTest, seconds: float = 5.0) -> None:
    """Wait as the main loop does, so long at most. Raises what ends the run."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        switching.watch()
        node.agent.loop.wait_until(never, 0.02, shielded=True)


def read_switch(node: AgentUnderTest) -> Switch | None:
    """None where the file was removed."""
    return FILE.read(node.agent.host.files, pytest.fail)


def read_stage(node: AgentUnderTest) -> Stage | None:
    switch = read_switch(node)
    return switch.stage if switch else None


def run_try(node: AgentUnderTest) -> None:
    """A process that was started to try the chosen plan."""
    run_by(node, write_switch(node, Stage.TRYING, 1))


def run_by(node: AgentUnderTest, switch: Switch) -> Agent:
    """A process that was started with this choice."""
    return node.remake(context=replace(node.agent.context, switch=switch), switch_seen=stamp_switch(node.agent.host))


class Clocked:
    """The watch of a process that was started with this choice, and its clock."""

    def __init__(self, node: AgentUnderTest, switch: Switch) -> None:
        self.now = 1000.0
        self.switching = Switching(run_by(node, switch), lambda: self.now)


class ReadOnlyDisk(FullDisk):
    number = errno.EROFS

    def _require_room(self) -> None:
        raise OSError(self.number, os.strerror(self.number))


class DamagedDisk(ReadOnlyDisk):
    """A power cut has damaged its file system."""

    number = errno.EUCLEAN
