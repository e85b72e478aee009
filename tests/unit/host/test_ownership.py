"""What others may change on the way to a file: bits, owners, folders above, symlinks and where they lead."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.agent.actions.shared_folders import SharedFolderError, refuse_shared
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import find_writable, refuse_writable
from sparkd.base.lib.errors import AwaitedError

PATH = "/etc/sparkd/recipes/x.yaml"
UID = 65534


def writable(tree: Tree, path: str = PATH) -> str:
    return find_writable(Files(str(tree.root), os.getuid()), path)


def chmod(path: str, mode: int) -> Callable[[Tree], None]:
    return lambda tree: (tree.root / path.lstrip("/")).chmod(mode)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (chmod(PATH, 0o644), ""),
        (chmod(PATH, 0o600), ""),
        (chmod(PATH, 0o664), PATH),
        (chmod(PATH, 0o646), PATH),
        (chmod("/etc/sparkd/recipes", 0o775), "/etc/sparkd/recipes"),
        (chmod("/etc", 0o757), "/etc"),
        (chmod("/etc/sparkd", 0o1777), ""),
    ],
)
def test_bits_of_the_file_and_of_each_folder_above_count(
    tree: Tree, change: Callable[[Tree], None], where: str
) -> None:
    tree.file(PATH, "x")
    change(tree)
    assert writable(tree) == where


def test_a_sticky_folder_keeps_what_is_in_it_and_not_itself(tree: Tree) -> None:
    tree.folder("/tmp/hooks").chmod(0o1777)
    assert writable(tree, "/tmp/hooks") == "/tmp/hooks", "anybody adds files to it"


def test_another_owner_is_named(tree: Tree) -> None:
    tree.file(PATH, "x")
    assert find_writable(Files(str(tree.root), os.getuid() + 1), PATH) == "/", (
        "the first on the way: all of the tree is theirs"
    )


@pytest.mark.parametrize("link", ["/etc/sparkd/recipes", "/etc/sparkd"])
def test_a_symlink_counts_with_the_folders_that_it_leads_through(tree: Tree, link: str) -> None:
    below = PATH.removeprefix(link)
    tree.file(f"/home/me/kept{below}", "x")
    (tree.root / link.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    tree.link(link, "/home/me/kept")
    assert writable(tree) == ""
    (tree.root / "home/me").chmod(0o777)
    assert writable(tree) == "/home/me"


def test_links_that_lead_in_a_circle_and_missing_files_are_left_to_their_reader(tree: Tree) -> None:
    tree.folder("/etc")
    tree.link("/etc/a", "/etc/b")
    tree.link("/etc/b", "/etc/a")
    assert writable(tree, "/etc/a") == ""
    assert writable(tree, "/etc/none/x") == ""


def test_a_circle_of_links_hides_no_folder_that_others_may_write_to(tree: Tree) -> None:
    """They can put another file there, in place of the circle, once the folder has passed for safe."""
    tree.folder("/home/me")
    tree.link("/home/me/a", "a")
    (tree.root / "home/me").chmod(0o777)
    assert writable(tree, "/home/me/a/x") == "/home/me"


def test_what_is_missing_in_a_sticky_folder_may_be_made_by_anybody(tree: Tree) -> None:
    tree.folder("/tmp").chmod(0o1777)
    tree.link("/etc/link", "/tmp/later")
    assert writable(tree, "/tmp/x/y") == writable(tree, "/etc/link") == "/tmp"
    assert writable(tree, "/etc/x") == ""


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="root mounts a user's file system")
def test_a_users_own_file_system_which_shows_root_nothing_counts(tmp_path: Path) -> None:
    """A user may mount one over a folder of theirs while root looks, and no longer have it when root writes there."""
    own = tmp_path / "own"
    own.mkdir()
    libc, fuse = ctypes.CDLL(None, use_errno=True), os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id={UID},group_id={UID}".encode()
    try:
        if libc.mount(b"fuse", bytes(own), b"fuse", 0, options):
            pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
        with pytest.raises(PermissionError):
            own.lstat()
        assert find_writable(Files(), f"{own}/x", sticky=True) == str(own)
        with pytest.raises(SharedFolderError, match=f"which can't look at {own}: Permission denied"):
            refuse_shared(own / "x")
        with pytest.raises(AwaitedError, match=f"x is not used: root can't look at {own}: Permission denied"):
            refuse_writable(Files(), f"{own}/x", "recipe")
    finally:
        libc.umount2(bytes(own), 2)  # MNT_DETACH
        os.close(fuse)


def test_a_user_may_use_his_own_file_and_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    own = tmp_path / "x y.yaml"
    own.write_text("x")
    own.chmod(0o600)
    refuse_writable(Files(), str(own), "recipe")
    own.chmod(0o666)
    with pytest.raises(AwaitedError, match=f"recipe {own} is not used: others than root may write to {own}") as caught:
        refuse_writable(Files(), str(own), "recipe")
    assert caught.value.hint.endswith(f"sudo chown root: '{own}' && sudo chmod go-w '{own}'")
    own.chmod(0o600)
    tmp_path.chmod(0o777)
    with pytest.raises(AwaitedError) as caught:
        refuse_writable(Files(), str(own), "recipe")
    assert caught.value.hint == "move it to a folder that only root may write to, such as /etc/sparkd"


@pytest.mark.parametrize("folder", ["/etc/sparkd/recipes", "/etc/sparkd"])
def test_a_recipe_stays_where_it_is_looked_for(tree: Tree, folder: str) -> None:
    """Who edits recipes may have taken their folder; elsewhere below /etc/sparkd none is found."""
    tree.file("/etc/sparkd/recipes/x.yaml", "x")
    (tree.root / folder[1:]).chmod(0o777)
    with pytest.raises(AwaitedError, match=f"may write to {folder} ") as caught:
        refuse_writable(Files(str(tree.root)), "/etc/sparkd/recipes/x.yaml", "recipe")
    assert caught.value.hint.endswith(f"then: sudo chown root: {folder} && sudo chmod go-w {folder}")


def test_the_repair_of_a_link_touches_nothing_of_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "x")
    os.lchown(link, UID, UID)
    with pytest.raises(AwaitedError) as caught:
        refuse_writable(Files(), str(link), "recipe")
    assert caught.value.hint.endswith(f"then: sudo chown -h root: {link}")
