"""Who owns the node, on a /run that can't be written."""

import fcntl
import os
import resource
import signal
import threading

import pytest
from tests.tree import Tree

from sparkd.agent.actions import Actions
from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.base.host import Host
from sparkd.base.host.owner import OWNER_FILE, NodeOwner
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier

ME = NodeOwner(os.getpid(), "sparkd run --role head", "a" * 32)


def test_an_account_that_cannot_be_written_ends_no_agent_and_keeps_the_lock(tree: Tree) -> None:
    tree.folder(OWNER_FILE)
    actions = Actions.acquire(Host(tree.root), MainLoop(Notifier(), {}), ME)
    with pytest.raises(BlockedError, match=r"which /run/sparkd/owner\.json does not name"):
        acquire_lock(Host(tree.root), ME)
    actions.release()
    os.close(acquire_lock(Host(tree.root), ME))


def test_a_look_at_the_lock_keeps_no_agent_from_starting(tree: Tree) -> None:
    with tree.lock_held(fcntl.LOCK_SH) as lock:
        looks = threading.Timer(0.2, fcntl.flock, (lock, fcntl.LOCK_UN))
        looks.start()
        os.close(acquire_lock(Host(tree.root), ME))
        looks.join()


def test_an_earlier_account_goes_where_the_disk_is_full(tree: Tree) -> None:
    tree.owner(1)
    signals, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        fd = acquire_lock(Host(tree.root), ME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, signals)
    os.close(fd)
    assert os.listdir(tree.root / "run/sparkd") == ["hands.lock"]
