"""A state file that the agent and people's commands write: a writer that has read an older one changes nothing."""

import fcntl
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
from msgspec import Struct
from tests.tree import Tree

from sparkd.agent.actions.files import compare_and_swap
from sparkd.base.host.files import Files
from sparkd.base.state.file import FOLDER, StateFile


class Count(Struct, frozen=True):
    name: str
    steps: int


FILE = StateFile(Count, "count.json")
PROCESSES, STEPS = 2, 50


def count(files: Files, _: int) -> int:
    """Add 1 to the count STEPS times. Returns how often another process was first."""
    steps = overtaken = 0
    while steps < STEPS:
        old = FILE.read(files)
        if compare_and_swap(files, FILE, old, Count("p", old.steps + 1 if old else 1)):
            steps += 1
        else:
            overtaken += 1
    return overtaken


def test_no_step_of_several_processes_is_lost(tree: Tree) -> None:
    files = Files(str(tree.root))
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        list(pool.map(partial(count, files), range(PROCESSES)))
    assert FILE.read(files) == Count("p", PROCESSES * STEPS)


def test_a_file_that_is_no_longer_there_is_neither_replaced_nor_removed(tree: Tree) -> None:
    files, old, new = Files(str(tree.root)), Count("old", 1), Count("new", 2)
    assert not compare_and_swap(files, FILE, old, new)
    assert compare_and_swap(files, FILE, None, old)
    assert not compare_and_swap(files, FILE, new, None)
    assert not compare_and_swap(files, FILE, None, new)
    assert FILE.read(files) == old
    assert compare_and_swap(files, FILE, old, None)
    assert not compare_and_swap(files, FILE, None, None), "nothing was removed"
    assert os.listdir(tree.root / FOLDER[1:]) == [".count.json.lock"]


def test_a_file_that_cannot_be_read_counts_as_none(tree: Tree) -> None:
    files = Files(str(tree.root))
    tree.file(FILE.path, "rubbish")
    assert compare_and_swap(files, FILE, None, Count("new", 2))


def test_a_process_that_writes_is_awaited_and_other_users_cannot_pass_for_one(tree: Tree) -> None:
    files, lock = Files(str(tree.root)), Path(f"{tree.root}{FOLDER}/.count.json.lock")
    assert compare_and_swap(files, FILE, None, Count("old", 1))
    assert lock.stat().st_mode & 0o777 == 0o600
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = threading.Timer(0.3, fcntl.flock, (held, fcntl.LOCK_UN))
        writer.start()
        assert compare_and_swap(files, FILE, Count("old", 1), Count("new", 2))
        writer.join()
    lock.unlink()
    lock.symlink_to(tree.root / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        compare_and_swap(files, FILE, Count("new", 2), None)


def test_a_full_run_folder_denies_no_change_on_the_disk(tree: Tree) -> None:
    tree.file("/run/sparkd", "no folder")
    files = Files(str(tree.root))
    announced = StateFile(Count, FILE.name, notice="/run/sparkd/count.changed")
    assert compare_and_swap(files, announced, None, Count("p", 1))
    assert FILE.read(files) == Count("p", 1)
