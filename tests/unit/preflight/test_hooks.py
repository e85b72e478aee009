"""The operator's hooks: which ones there are, and which are unsafe to run."""

import os

import pytest
from tests.tree import Tree

from sparkd.agent.preflight.hooks import FOLDER, Hook, check_program, list_hooks
from sparkd.base.host.files import Files


def listed(tree: Tree) -> tuple[Hook, ...]:
    return list_hooks(Files(str(tree.root), os.getuid()))


def write_hook(tree: Tree, name: str, mode: int = 0o755) -> None:
    tree.file(f"{FOLDER}/{name}", "#!/bin/sh\n", mode)


def test_without_a_folder_there_are_no_hooks(tree: Tree) -> None:
    assert listed(tree) == ()


def test_a_folder_that_is_a_link_to_nothing_is_no_hook_that_can_be_run(tree: Tree) -> None:
    tree.link(FOLDER, "/srv/late/preflight.d")
    assert [hook.problem for hook in listed(tree)] == [f"{FOLDER} can't be read: No such file or directory"]


def test_hooks_are_listed_by_name_without_what_editors_and_dpkg_leave(tree: Tree) -> None:
    for name in ("20-b", "10-a", ".hidden", "10-a~", "10-a.dpkg-old", "10-a.bak", ".10-a.swp"):
        write_hook(tree, name)
    assert listed(tree) == (Hook("10-a", f"{FOLDER}/10-a"), Hook("20-b", f"{FOLDER}/20-b"))


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_hook_that_others_may_write_to_is_never_run(tree: Tree, mode: int) -> None:
    write_hook(tree, "10-a", mode=mode)
    (unsafe,) = listed(tree)
    assert "others than root may write" in unsafe.problem


def test_a_hook_that_another_user_owns_is_never_run(tree: Tree) -> None:
    write_hook(tree, "10-a")
    (unsafe,) = list_hooks(Files(str(tree.root), os.getuid() + 1))
    assert "others than root may write" in unsafe.problem


@pytest.mark.parametrize("folder", ["/etc/sparkd/preflight.d", "/etc/sparkd", "/etc"])
def test_no_hook_is_run_below_a_folder_that_others_may_write_to(tree: Tree, folder: str) -> None:
    write_hook(tree, "10-a")
    (tree.root / folder.lstrip("/")).chmod(0o777)
    assert [hook.problem for hook in listed(tree)] == [f"others than root may write to {folder}"]


def test_a_program_in_a_users_folder_is_to_be_moved(tree: Tree) -> None:
    """Its own owner and mode are good already."""
    tree.file("/home/milo/plug", "#!/bin/sh\n", 0o755)
    (tree.root / "home/milo").chmod(0o775)
    program = check_program(Files(str(tree.root), os.getuid()), "/home/milo/plug")
    assert program.problem == "others than root may write to /home/milo"
    assert program.hint == "move it to a folder that only root may write to, such as /etc/sparkd"


def test_a_file_among_the_hooks_that_can_not_be_executed_is_named(tree: Tree) -> None:
    write_hook(tree, "10-plain", mode=0o644)
    tree.folder(f"{FOLDER}/20-folder")
    write_hook(tree, "../real")
    tree.link(f"{FOLDER}/30-link", "../real")
    assert [hook.problem.rpartition(" is ")[2] for hook in listed(tree)] == [
        "not executable",
        "a folder, not a file",
        "a symlink",
    ]
