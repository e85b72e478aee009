"""Limits that an engine meets: the size of /dev/shm, how much memory it may lock, what bounds its memory."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.config import Settings
from sparkd.host import Host, docker_config
from sparkd.host.docker_config import DockerDefaults
from sparkd.lib.text import GIB, MIB
from sparkd.plan.build import make_plan
from sparkd.plan.model import LaunchPlan, Node
from sparkd.preflight.check import Level
from sparkd.preflight.checks.limits import Memlock, MemlockFacts, MemoryLimit, MemoryLimitFacts
from sparkd.preflight.checks.shared_memory import ShmSize, ShmSizeFacts
from sparkd.recipes.schema import Limit, Recipe

HEAD_OF_TWO = ShmSize(host_ipc=True, shm_bytes=None, is_head=True, cluster_size=2)
WORKER = replace(HEAD_OF_TWO, is_head=False)
ALONE = replace(HEAD_OF_TWO, cluster_size=1)


@pytest.mark.parametrize(
    ("check", "total", "free", "level", "hint"),
    [
        pytest.param(HEAD_OF_TWO, GIB, GIB, Level.OK, "", id="1 GiB"),
        pytest.param(HEAD_OF_TWO, GIB - 1, GIB - 1, Level.WARN, "remount", id="room for the queues alone"),
        pytest.param(HEAD_OF_TWO, 184 * MIB, 184 * MIB, Level.WARN, "remount", id="just the queues"),
        pytest.param(HEAD_OF_TWO, 184 * MIB - 1, 184 * MIB - 1, Level.BLOCK, "remount", id="not the queues"),
        pytest.param(HEAD_OF_TWO, 60 * GIB, 183 * MIB, Level.WARN, "ls -lS /dev/shm", id="filled"),
        pytest.param(WORKER, 64 * MIB, 64 * MIB, Level.WARN, "remount", id="a worker makes no queues"),
        pytest.param(WORKER, 512 * MIB, 512 * MIB, Level.WARN, "remount", id="a worker has NCCL too"),
        pytest.param(ALONE, 64 * MIB, 64 * MIB, Level.WARN, "remount", id="alone, it may need none"),
        pytest.param(ALONE, 184 * MIB, 184 * MIB, Level.OK, "", id="alone, the queues are enough"),
        pytest.param(replace(HEAD_OF_TWO, host_ipc=False), 64 * MIB, 64 * MIB, Level.BLOCK, "ipc: host", id="private"),
    ],
)
def test_a_head_of_several_needs_room_for_its_queues(
    check: ShmSize, total: int, free: int, level: Level, hint: str
) -> None:
    verdict = check.judge(ShmSizeFacts(total, free, "x"))
    assert verdict.level is level
    assert hint in verdict.hint


@pytest.mark.parametrize(
    ("mounts", "total"),
    [
        pytest.param("tmpfs /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n", 64 * MIB, id="as the kernel writes it"),
        pytest.param("tmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64 0 0\n", 60 * GIB, id="half of the memory"),
        pytest.param("tmpfs /dev/shm tmpfs rw,size=0k 0 0\n", 120 * GIB, id="without limit"),
        pytest.param(
            "tmpfs /dev/shm tmpfs rw,size=1g 0 0\ntmpfs /dev/shm tmpfs rw,size=64m 0 0\n", 64 * MIB, id="last"
        ),
        pytest.param("tmpfs /dev/shm/x tmpfs rw,size=1k 0 0\nodd\n\n", 60 * GIB, id="none there"),
        pytest.param("tmpfs /dev/shm tmpfs rw,size=50% 0 0\n", 60 * GIB, id="a size of no number"),
    ],
)
def test_the_machines_own_is_as_large_as_its_mount_says(tree: Tree, mounts: str, total: int) -> None:
    tree.file("/proc/self/mounts", mounts)
    tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=1)
    assert HEAD_OF_TWO.probe(Host(tree.root)).total_bytes == total


def test_a_tree_without_a_table_of_mounts_has_what_the_kernel_makes_by_itself(tree: Tree) -> None:
    tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=1)
    assert HEAD_OF_TWO.probe(Host(tree.root)).total_bytes == 60 * GIB


def test_what_lies_there_is_not_free(tree: Tree) -> None:
    tree.file("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,size=65536k 0 0\n")
    tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=1)
    used = tree.segment("psm_01234567", "x" * 100_000).st_blocks * 512
    assert used >= 100_000
    assert HEAD_OF_TWO.probe(Host(tree.root)).free_bytes == 64 * MIB - used


@pytest.mark.parametrize(
    ("daemon_json", "total"),
    [
        pytest.param(None, 64 * MIB, id="no file"),
        pytest.param("", 64 * MIB, id="an empty one"),
        pytest.param(" \n", 64 * MIB, id="blanks"),
        pytest.param("{}", 64 * MIB, id="says nothing"),
        pytest.param('\ufeff{"default-shm-size": "1G"}', GIB, id="a byte order mark"),
        pytest.param('{"default-shm-size": "1.5 GB"}', 3 * GIB // 2, id="1.5 GB"),
        pytest.param('{"default-shm-size": "2G"}', 2 * GIB, id="2G"),
        pytest.param('{"default-shm-size": "256MiB"}', 256 * MIB, id="256MiB"),
        pytest.param('{"default-shm-size": 1048576}', MIB, id="bytes"),
    ],
)
def test_a_containers_own_is_as_docker_makes_it(tree: Tree, daemon_json: str | None, total: int) -> None:
    if daemon_json is not None:
        tree.file("/etc/docker/daemon.json", daemon_json)
    private = replace(HEAD_OF_TWO, host_ipc=False)
    assert private.probe(Host(tree.root)) == ShmSizeFacts(total, total, "docker's default")
    assert replace(private, shm_bytes=GIB).probe(Host(tree.root)).total_bytes == GIB


@pytest.mark.parametrize(
    ("words", "total", "memlock"),
    [
        pytest.param(("--default-shm-size=1g", "--default-ulimit=memlock=-1:-1"), GIB, -1, id="joined"),
        pytest.param(("--default-shm-size", "1g", "--default-ulimit", "memlock=4096"), GIB, 4096, id="apart"),
        pytest.param(("--default-ulimit", "nofile=1:2", "--debug"), 64 * MIB, None, id="others"),
        pytest.param(("--config-file=/etc/own.json",), 2 * GIB, None, id="another file"),
    ],
)
def test_dockerds_arguments_count(tree: Tree, words: tuple[str, ...], total: int, memlock: int | None) -> None:
    tree.file("/etc/own.json", '{"default-shm-size": "2g"}')
    tree.dockerd()
    tree.process(700, "dockerd", argv=("/usr/bin/dockerd", "-H", "fd://", *words))
    assert docker_config.read_defaults(Host(tree.root)) == DockerDefaults(total, memlock)


@pytest.mark.parametrize("text", ["{", "[]", '{"default-shm-size": "much"}', "[" * 100_000])
def test_a_value_that_docker_refuses_is_unknown(tree: Tree, text: str) -> None:
    tree.file("/etc/docker/daemon.json", text)
    with pytest.raises(ValueError, match=r"daemon\.json"):
        replace(HEAD_OF_TWO, host_ipc=False).probe(Host(tree.root))


def plan(size: int = 2, env: dict[str, str] | None = None, **container: object) -> LaunchPlan:
    keys = {
        "schema": 1,
        "name": "x",
        "model": {"path": "m"},
        "image": {"ref": "i"},
        "args": {"tensor-parallel-size": size},
    }
    spec = {"devices": ["/dev/infiniband"], **container}
    recipe = Recipe.model_validate({**keys, "env": env or {}, "container": spec})
    return make_plan(recipe, Settings(), Node(0, "10.0.0.1", "10.0.0.1", size, "fab0"))


@pytest.mark.parametrize(
    ("launched", "why"),
    [
        (plan(1), "one node"),
        (plan(gpus="none"), "no GPU"),
        (plan(privileged=True), "privileged"),
        (plan(env={"NCCL_IB_DISABLE": "1"}), "NCCL_IB_DISABLE"),
        (plan(env={"NCCL_NET": "Socket"}), "NCCL_NET"),
        (plan(devices=[]), "no RDMA device"),
    ],
)
def test_a_plan_without_rdma_needs_no_locked_memory(tree: Tree, launched: LaunchPlan, why: str) -> None:
    facts = Memlock(launched).probe(Host(tree.root))
    assert why in facts.needless
    assert Memlock(launched).judge(facts).level is Level.OK


@pytest.mark.parametrize(
    ("limit", "level"),
    [(-1, Level.OK), (16 * GIB, Level.OK), (16 * GIB - 1, Level.WARN), (8 * MIB, Level.WARN), (None, Level.WARN)],
)
def test_rdma_needs_much_locked_memory(limit: int | None, level: Level) -> None:
    verdict = Memlock(plan()).judge(MemlockFacts("", limit, "x"))
    assert verdict.level is level
    assert ("memlock: -1" in verdict.hint) == (level is Level.WARN)


def limits(tree: Tree, soft: str) -> None:
    tree.process(9, "containerd")
    head = "Limit                     Soft Limit           Hard Limit           Units     \n"
    tree.file("/proc/9/limits", f"{head}Max locked memory         {soft:<20} unlimited            bytes     \n")


def test_the_recipes_limit_goes_before_dockers_and_that_before_containerds(tree: Tree) -> None:
    host = Host(tree.root)
    assert Memlock(plan()).probe(host) == MemlockFacts("", None, "docker's default")
    limits(tree, "8388608")
    assert Memlock(plan()).probe(host) == MemlockFacts("", 8 * MIB, "containerd's own limit")
    limits(tree, "unlimited")
    assert Memlock(plan()).probe(host).limit_bytes == -1
    ulimits = '{"default-ulimits": {"memlock": {"Name": "memlock", "Soft": 4096, "Hard": -1}}}'
    tree.file("/etc/docker/daemon.json", ulimits)
    assert Memlock(plan()).probe(host).limit_bytes == 4096
    own = plan(ulimits={"memlock": {"soft": 8192, "hard": -1}, "stack": 67108864})
    assert own.container.ulimits["memlock"] == Limit(soft=8192, hard=-1)
    assert Memlock(own).probe(host).limit_bytes == 8192


@pytest.mark.parametrize("row", ["", "Max locked memory", "Max locked memory   much  more bytes"])
def test_limits_of_another_format_are_unknown(tree: Tree, row: str) -> None:
    limits(tree, "1")
    tree.file("/proc/9/limits", f"{row}\n")
    with pytest.raises(ValueError, match="/proc/9/limits"):
        Memlock(plan()).probe(Host(tree.root))


def test_a_containerd_that_ends_meanwhile_is_passed_over(tree: Tree) -> None:
    tree.process(9, "containerd")
    assert Memlock(plan()).probe(Host(tree.root)).limit_bytes is None


@pytest.mark.parametrize(
    ("gpu", "limit", "floor", "headroom", "level", "says"),
    [
        (True, None, 512 * MIB, 2 * GIB, Level.OK, "below 512 MiB available"),
        (True, None, 2 * GIB, 2 * GIB, Level.OK, "below 2048 MiB available"),
        (True, None, 0, 0, Level.OK, "guard is off"),
        (True, 100 * GIB, 512 * MIB, 2 * GIB, Level.WARN, "is 100.0 GiB, and does not bound what the GPU takes"),
        (True, None, 2 * GIB + 1, 2 * GIB, Level.WARN, "with 2.0 GiB to spare"),
        (True, 100 * GIB, 4 * GIB, 2 * GIB, Level.WARN, "container.memory_limit_bytes is 100.0 GiB"),
        (True, 100 * GIB, 4 * GIB, 2 * GIB, Level.WARN, "the memory guard kills"),
        (False, 100 * GIB, 4 * GIB, 2 * GIB, Level.OK, "no GPU"),
    ],
)
def test_a_limit_that_does_not_hold_and_a_floor_above_the_headroom_warn(
    tree: Tree, gpu: bool, limit: int | None, floor: int, headroom: int, level: Level, says: str
) -> None:
    _, verdict = MemoryLimit(gpu, MemoryLimitFacts(limit, floor, headroom)).run(Host(tree.root))
    expect(verdict, level, says)
    assert bool(verdict.hint) is (level is not Level.OK)
