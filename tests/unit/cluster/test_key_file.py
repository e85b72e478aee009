"""The cluster key is used only from a file that only root can read."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import addresses, agent_under_test, settings
from tests.unit.limits import files_left
from tests.unit.nodes import until

from sparkd.base.cluster.auth import FRESH_SECONDS, KeyRing, read_keys
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError

PATH = "/etc/sparkd/cluster.key"
NEW, OLD = "0a" * 32, "0b" * 32
OWNER = os.geteuid()  # the tests' own files stand for root's


def write(tree: Tree, text: str, mode: int = 0o600) -> Path:
    return tree.file(PATH, text, mode)


def keys(tree: Tree, owner_uid: int = OWNER) -> tuple[bytes, ...]:
    return read_keys(Files(str(tree.root), owner_uid), PATH)


def fault(tree: Tree, owner_uid: int = OWNER) -> str:
    with pytest.raises(ConfigError) as caught:
        keys(tree, owner_uid)
    return str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_keys_are_one_a_line_between_comments_and_blank_lines(tree: Tree, mode: int) -> None:
    write(tree, f"# of the cluster\n\n{NEW.upper()}\n  {OLD}\r\n", mode)
    assert keys(tree) == (bytes.fromhex(NEW), bytes.fromhex(OLD))


def test_a_missing_file_says_how_to_make_one(tree: Tree) -> None:
    assert "sparkd init --new-cluster-key" in fault(tree)
    with pytest.raises(ConfigError):
        ring(tree)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o660, 0o644])
def test_a_file_that_others_may_read_or_write_is_refused_with_the_command_that_fixes_it(tree: Tree, mode: int) -> None:
    write(tree, NEW, mode)
    assert fault(tree) == f"{PATH}: has mode {mode:04o}, needed is 0600 (sudo chmod 600 {PATH})"


def test_a_file_of_another_user_is_refused_with_the_command_that_fixes_it(tree: Tree) -> None:
    write(tree, NEW)
    assert fault(tree, OWNER + 1) == f"{PATH}: belongs to uid {OWNER}, needed is root (sudo chown root:root {PATH})"


def test_a_symlink_is_refused_wherever_it_leads(tree: Tree) -> None:
    tree.file("/root/key", NEW, 0o600)
    tree.link(PATH, "/root/key")
    assert "is a symlink" in fault(tree)


def test_other_kinds_of_file_are_refused_without_a_wait(tree: Tree) -> None:
    tree.folder("/etc/sparkd")
    os.mkfifo(tree.root / PATH[1:], 0o600)
    assert "is no regular file" in fault(tree)
    (tree.root / PATH[1:]).unlink()
    tree.folder(PATH)
    assert "directory" in fault(tree)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no key in it"),
        ("# only this\n", "has no key in it"),
        (f"{NEW}\n{NEW[:-1]}\n", "line 2 is no key"),
        (f"{NEW}0\n", "line 1 is no key"),
        (f"{NEW} # mine\n", "line 1 is no key"),
        ("é" * 64, "line 1 is no key"),
        ("\0" * 64, "line 1 is no key"),
        (f"{NEW}\n" * 5, "has 5 keys, at most 4"),
        ("#" * 5000, "larger than 4096 bytes"),
    ],
)
def test_a_file_with_any_bad_line_is_refused(tree: Tree, text: str, reason: str) -> None:
    """No reason quotes a line: it may be most of a key."""
    write(tree, text)
    assert reason in fault(tree)
    assert NEW[:8] not in fault(tree)


def ring(tree: Tree) -> tuple[KeyRing, list[str]]:
    """A ring, and the troubles that it reports."""
    troubles: list[str] = []
    return KeyRing(Files(str(tree.root), OWNER), PATH, troubles.append), troubles


def test_a_ring_follows_its_file(tree: Tree) -> None:
    file = write(tree, OLD)
    key_ring, troubles = ring(tree)
    assert key_ring.keys() == (bytes.fromhex(OLD),)
    other = tree.file("/etc/sparkd/new", f"{NEW}\n{OLD}\n", 0o600)
    other.replace(file)
    assert key_ring.keys() == (bytes.fromhex(NEW), bytes.fromhex(OLD))
    assert troubles == []


def test_a_changed_file_that_can_not_be_read_for_a_moment_is_read_again(tree: Tree) -> None:
    file = write(tree, OLD)
    key_ring, troubles = ring(tree)
    tree.file("/etc/sparkd/new", NEW, 0o600).replace(file)
    with files_left(0):
        assert key_ring.keys() == (bytes.fromhex(OLD),)
    assert key_ring.keys() == (bytes.fromhex(NEW),)
    assert len(troubles) == 1


def make_readable(tree: Tree) -> None:
    write(tree, OLD, 0o644)


def cut(tree: Tree) -> None:
    write(tree, OLD[:10])


def remove(tree: Tree) -> None:
    tree.path(PATH).unlink()


def exchange_for_link(tree: Tree) -> None:
    remove(tree)
    tree.link(PATH, "/etc/sparkd/other")
    tree.file("/etc/sparkd/other", NEW, 0o600)


@pytest.mark.parametrize("damage", [make_readable, cut, remove, exchange_for_link])
def test_a_file_that_goes_bad_leaves_the_ring_its_last_good_keys_and_is_reported(
    tree: Tree, damage: Callable[[Tree], None]
) -> None:
    file = write(tree, OLD)
    key_ring, troubles = ring(tree)
    damage(tree)
    for _ in range(2):
        assert key_ring.keys() == (bytes.fromhex(OLD),)
    (trouble,) = troubles
    assert PATH in trouble
    file.unlink(missing_ok=True)
    write(tree, NEW)
    assert key_ring.keys() == (bytes.fromhex(NEW),)
    assert troubles == [trouble]


def test_older_keys_are_reminded_of_at_the_start_and_at_each_change_and_one_key_never(tree: Tree) -> None:
    file = write(tree, f"{NEW}\n{OLD}\n")
    counts: list[int] = []
    key_ring = KeyRing(Files(str(tree.root), OWNER), PATH, on_older=counts.append)
    for _ in range(3):
        key_ring.keys()
    assert counts == [1]
    for text in (NEW, f"{NEW}\n{OLD}\n{'0c' * 32}"):
        tree.file("/etc/sparkd/next", text, 0o600).replace(file)
        key_ring.keys()
    assert counts == [1, 2]
    file.unlink()
    for _ in range(3):
        key_ring.keys()
    assert counts == [1, 2], "as on a share that is away"


def test_a_ring_is_thread_safe(tree: Tree) -> None:
    file = write(tree, OLD)
    key_ring, _ = ring(tree)
    read: set[tuple[bytes, ...]] = set()

    def read_often() -> None:
        for _ in range(300):
            read.add(key_ring.keys())

    threads = [threading.Thread(target=read_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for text in (f"{NEW}\n{OLD}", NEW):
        tree.file("/etc/sparkd/next", text, 0o600).replace(file)
    for thread in threads:
        thread.join()
    assert key_ring.keys() == (bytes.fromhex(NEW),)
    assert read <= {(bytes.fromhex(OLD),), (bytes.fromhex(NEW), bytes.fromhex(OLD)), (bytes.fromhex(NEW),)}


def test_the_latest_keys_follow_the_file_without_a_wait(tree: Tree) -> None:
    file = write(tree, OLD)
    key_ring, troubles = ring(tree)
    assert key_ring.latest() == (bytes.fromhex(OLD),)
    tree.file("/etc/sparkd/new", f"{NEW}\n{OLD}\n", 0o600).replace(file)
    took = until(lambda: key_ring.latest() == (bytes.fromhex(NEW), bytes.fromhex(OLD)), 10)
    assert took < FRESH_SECONDS + 2
    file.unlink()
    until(lambda: key_ring.latest() and bool(troubles), 10)
    assert key_ring.latest() == (bytes.fromhex(NEW), bytes.fromhex(OLD))


def test_the_agent_s_main_thread_opens_no_key(tree: Tree, port: int) -> None:
    """Their files may lie on a share that hangs, by the time that the ring looks at them."""
    threads = dict[str, set[str]]()

    def watch(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and (path := str(args[0])).endswith(".key") and args[1] is None:  # by os.open, as no test
            threads.setdefault(path.rpartition("/")[2], set()).add(threading.current_thread().name)

    sys.addaudithook(watch)
    with agent_under_test(tree, 0, settings(addresses(2), port)):
        until(lambda: "head.key" in threads)
    assert threads.keys() == {"cluster.key", "head.key"}
    assert threading.main_thread().name not in set.union(*threads.values())
