"""The owner of a node: the account of the process that holds the lock, and a holder without an account."""

import fcntl

import pytest
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner

UNKNOWN = NodeOwner(0, "", "")
ACCOUNT = '{"pid": 42, "command": "sparkd run --role head", "invocation": "abc", "start_time": 100}'


@pytest.mark.parametrize(("how", "owner"), [(fcntl.LOCK_EX, UNKNOWN), (fcntl.LOCK_SH, None), (fcntl.LOCK_UN, None)])
def test_who_holds_the_lock_without_an_account_is_an_unknown_owner(
    tree: Tree, how: int, owner: NodeOwner | None
) -> None:
    """Shared, it is another look's. The kernel's table of locks is of no use: any user can make it too large."""
    tree.file("/proc/locks", "1: POSIX  ADVISORY  WRITE 43 fe:00:1 0 EOF\n" * 30_000)
    with tree.lock_held(how):
        assert Host(tree.root).owner() == owner


def test_the_owner_is_the_living_process_that_the_account_names(tree: Tree) -> None:
    tree.process(42, "python3", start_time=100)
    tree.file("/run/sparkd/owner.json", ACCOUNT)
    owner = Host(tree.root).owner()
    assert owner == NodeOwner(42, "sparkd run --role head", "abc", 100)


def test_the_account_of_an_owner_that_has_ended_is_never_quoted(tree: Tree) -> None:
    tree.file("/run/sparkd/owner.json", ACCOUNT)
    with tree.lock_held():
        assert Host(tree.root).owner() == UNKNOWN
        tree.process(42, "python3", start_time=99)
        assert Host(tree.root).owner() == UNKNOWN, "another process has its pid"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "42"}', '{"pid": 42}'])
def test_an_invalid_account_is_none(tree: Tree, text: str) -> None:
    tree.process(42, "python3")
    tree.file("/run/sparkd/owner.json", text)
    assert Host(tree.root).owner() is None
    with tree.lock_held():
        assert Host(tree.root).owner() == UNKNOWN
