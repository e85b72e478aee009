"""The stacks of ranks that hang: a bounded set of files, for root."""

import os
import stat
from functools import partial

import pytest
from tests.tree import Tree

from sparkd.agent.actions import Actions
from sparkd.agent.actions.files import KEPT_STACKS
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.systemd import Notifier
from sparkd.base.state.file import STACKS

NAMES = [f"20260101T0000{second:02}Z.txt" for second in range(KEPT_STACKS + 3)]
"""Oldest first."""


@pytest.fixture
def actions(tree: Tree) -> Actions:
    return Actions.acquire(Host(tree.root), MainLoop(Notifier(), {}), NodeOwner(os.getpid(), "a test", "x"))


def test_of_stacks_only_the_newest_are_kept(tree: Tree, actions: Actions) -> None:
    for name in NAMES:
        assert actions.write_stacks(name, lambda: "stacks") == f"{STACKS}/{name}"
    assert sorted(path.name for path in tree.path(STACKS).iterdir()) == NAMES[-KEPT_STACKS:]


def test_stacks_are_for_root_and_without_secrets(tree: Tree, actions: Actions) -> None:
    """The agent passes their text through its redaction."""
    path = tree.path(actions.write_stacks(NAMES[0], partial(Redaction(), "token=abcdefgh")))
    assert "abcdefgh" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
