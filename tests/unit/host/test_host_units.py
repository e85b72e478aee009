"""A unit as systemd merges it: masks, drop-ins, and lines that are joined."""

from collections.abc import Callable

import pytest
from tests.tree import Tree
from tests.unit.verdicts import present

from sparkd.base.host import Host
from sparkd.base.host.units import Assignment, parse_assignments

NAME = "sparkd-head.service"


def programs(tree: Tree) -> list[str]:
    return [command.command.words[0] for command in present(Host(tree.root).unit(NAME)).commands]


def unit(tree: Tree, folder: str, *lines: str) -> None:
    tree.file(f"{folder}/{NAME}", "\n".join(("[Service]", *lines)) + "\n")


def test_etc_hides_the_packages_unit(tree: Tree) -> None:
    assert Host(tree.root).unit(NAME) is None
    unit(tree, "/usr/lib/systemd/system", "ExecStart=/bin/package")
    unit(tree, "/etc/systemd/system", "ExecStart=/bin/admin")
    assert programs(tree) == ["/bin/admin"]


def test_a_link_to_dev_null_masks(tree: Tree) -> None:
    unit(tree, "/usr/lib/systemd/system", "ExecStart=/bin/package")
    tree.link(f"/etc/systemd/system/{NAME}", "/dev/null")
    masked = present(Host(tree.root).unit(NAME))
    assert masked.masked
    assert masked.commands == ()


def test_drop_ins_add_in_order_of_name_over_all_folders(tree: Tree) -> None:
    unit(tree, "/usr/lib/systemd/system", "ExecStartPre=/bin/a")
    tree.file(f"/usr/lib/systemd/system/{NAME}.d/20.conf", "[Service]\nExecStartPre=/bin/c\n")
    tree.file(f"/etc/systemd/system/{NAME}.d/10.conf", "[Service]\nExecStartPre=/bin/b\n")
    tree.file(f"/run/systemd/system/{NAME}.d/30.conf", "[Service]\nExecStartPre=/bin/d\n")
    tree.file(f"/etc/systemd/system/{NAME}.d/40.txt", "[Service]\nExecStartPre=/bin/no\n")
    assert programs(tree) == ["/bin/a", "/bin/b", "/bin/c", "/bin/d"]


def test_of_equal_names_etc_wins_even_where_it_is_less_specific(tree: Tree) -> None:
    unit(tree, "/usr/lib/systemd/system")
    tree.file(f"/usr/lib/systemd/system/{NAME}.d/50.conf", "[Service]\nExecStart=/bin/package\n")
    tree.file("/etc/systemd/system/sparkd-.service.d/50.conf", "[Service]\nExecStart=/bin/admin\n")
    tree.file("/etc/systemd/system/service.d/50.conf", "[Service]\nExecStart=/bin/all\n")
    assert programs(tree) == ["/bin/admin"]


@pytest.mark.parametrize("mask", [lambda tree, path: tree.link(path, "/dev/null"), Tree.file], ids=["link", "empty"])
def test_a_masked_drop_in_is_gone_wherever_it_lies(tree: Tree, mask: Callable[[Tree, str], object]) -> None:
    unit(tree, "/usr/lib/systemd/system", "ExecStart=/bin/package")
    tree.file(f"/usr/lib/systemd/system/{NAME}.d/50.conf", "[Service]\nExecStart=/bin/other\n")
    mask(tree, f"/etc/systemd/system/{NAME}.d/50.conf")
    assert programs(tree) == ["/bin/package"]


def test_an_empty_assignment_removes_earlier_commands_of_its_key(tree: Tree) -> None:
    unit(tree, "/usr/lib/systemd/system", "ExecStartPre=/bin/pre", "ExecStart=/bin/old")
    tree.file(f"/etc/systemd/system/{NAME}.d/50.conf", "[Service]\nExecStart=\nExecStart=/bin/new\n")
    assert programs(tree) == ["/bin/pre", "/bin/new"]


def test_only_exec_keys_of_the_service_section_count(tree: Tree) -> None:
    tree.file(f"/etc/systemd/system/{NAME}", "[Unit]\nExecStart=/bin/no\n[Service]\nType=exec\nExecStop=/bin/yes\n")
    assert programs(tree) == ["/bin/yes"]


def test_a_quote_left_open_is_an_error_that_names_the_file(tree: Tree) -> None:
    unit(tree, "/etc/systemd/system", "ExecStart=/bin/sh -c 'oops")
    with pytest.raises(ValueError, match=f"/etc/systemd/system/{NAME}: ExecStart: a ' is left open"):
        Host(tree.root).unit(NAME)


def test_lines_are_joined_and_comments_between_them_skipped() -> None:
    text = "# c\n[Service]\n; c\nExecStart=/bin/a \\\n  # between\n  b \\\n  c\n\nnonsense\nX = y\n"
    assert parse_assignments(text) == (
        Assignment("Service", "ExecStart", "/bin/a  b  c"),
        Assignment("Service", "X", "y"),
    )
