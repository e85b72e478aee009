"""Who uses the GPU, and who only has the name of its driver's daemon."""

import pytest
from tests.tree import Tree

from sparkd.agent.preflight.gpu_users import GpuUser, find_gpu_users
from sparkd.base.host import Host
from sparkd.base.host.gpu import GpuFacts, GpuProcess
from sparkd.base.lib.text import GIB, MIB

DAEMON, UNIT = "nvidia-persiste", "nvidia-persistenced.service"
USER = "0::/user.slice/user-1000.slice"


def users(tree: Tree, *listed: GpuProcess) -> tuple[GpuUser, ...] | None:
    return find_gpu_users(Host(tree.root), GpuFacts(("NVIDIA GB10",), None, listed))


def test_the_drivers_daemon_is_no_user_whether_listed_or_not(tree: Tree) -> None:
    tree.process(8, DAEMON, opened=("/dev/nvidia0",), cgroup=f"0::/system.slice/{UNIT}", uid=110)
    assert users(tree) == ()
    assert users(tree, GpuProcess(8, MIB)) == ()


@pytest.mark.parametrize(
    "cgroup",
    [
        pytest.param(f"{USER}/session-3.scope", id="a user's session"),
        pytest.param(f"{USER}/user@1000.service/app.slice/{UNIT}", id="a unit of that name of a user's manager"),
        pytest.param(f"{USER}/user@1000.service/{UNIT}", id="a group of that name of a user's"),
        pytest.param(f"{USER}/session-3.scope/{UNIT}", id="a group of that name in a session"),
        pytest.param(f"0::/system.slice/docker-{'ab' * 32}.scope/{UNIT}", id="in a container"),
        pytest.param("0::/system.slice/some.service", id="another unit"),
    ],
)
def test_a_name_makes_no_daemon(tree: Tree, cgroup: str) -> None:
    """A process chooses its name by prctl(PR_SET_NAME)."""
    tree.process(8, DAEMON, opened=("/dev/nvidia0",), cgroup=cgroup, uid=1000)
    assert users(tree, GpuProcess(8, 90 * GIB)) == (GpuUser(8, DAEMON, 90 * GIB),)
    assert users(tree) == (GpuUser(8, DAEMON, 0),)


@pytest.mark.parametrize("size", [None, 65 * MIB])
def test_a_daemon_that_may_hold_memory_is_a_user(tree: Tree, size: int | None) -> None:
    tree.process(8, DAEMON, cgroup=f"0::/system.slice/{UNIT}")
    assert users(tree, GpuProcess(8, size)) == (GpuUser(8, DAEMON, size),)


def test_a_process_that_ends_during_the_look_is_no_daemon(tree: Tree) -> None:
    tree.process(8, DAEMON, opened=("/dev/nvidia0",), cgroup=f"0::/system.slice/{UNIT}")
    (tree.root / "proc/8/cgroup").unlink()
    assert users(tree) == (GpuUser(8, DAEMON, 0),)


def test_a_process_that_is_listed_without_a_size_differs_from_one_that_is_not_listed(tree: Tree) -> None:
    tree.process(7, "python")
    tree.process(9, "dcgm-exporter", opened=("/dev/nvidia0",))
    assert users(tree, GpuProcess(7, None), GpuProcess(10, 1)) == (
        GpuUser(7, "python", None), GpuUser(9, "dcgm-exporter", 0), GpuUser(10, "", 1, gone=True),
    )  # fmt: skip


MAPS = """\
7f2bb1000000-7f2bb1200000 r--p 00000000 08:01 12345                      /usr/lib/libc.so.6
7f2c00000000-7f2e00000000 rw-s 00000000 00:05 712                        /dev/nvidia-uvm
"""


def test_a_process_that_has_closed_the_devices_and_keeps_managed_memory_is_a_user(tree: Tree) -> None:
    """The driver no longer lists it, and no descriptor is left."""
    tree.process(7, "python", maps=MAPS, uid=1000)
    tree.process(8, DAEMON, opened=("/dev/nvidia0",), cgroup=f"0::/system.slice/{UNIT}")
    tree.process(9, "other", maps=MAPS.replace("/dev/nvidia", "/home/x y /dev/nvidia"))
    tree.process(10, "kworker", kernel=True)
    assert users(tree) == (GpuUser(7, "python", 0),)


def test_where_mappings_are_unreadable_the_users_are_unknown(tree: Tree) -> None:
    tree.process(7, "python")
    (tree.root / "proc/7/maps").unlink()
    tree.folder("/proc/7/maps")
    assert users(tree) is None
