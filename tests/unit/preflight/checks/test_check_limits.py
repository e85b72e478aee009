"""Limits that an engine meets: the size of /dev/shm, how much memory it may lock, what bounds its memory."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit import plans
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.limits import (
    Memlock,
    MemlockFacts,
    MemoryLimit,
    MemoryLimitFacts,
    ShmSize,
    ShmSizeFacts,
)
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.text import GIB, MIB
from sparkd.base.plan.inputs import MemoryNeed
from sparkd.base.plan.model import LaunchPlan, Node

HEAD_OF_TWO = ShmSize(plans.plan(plans.HEAD), host_ipc=True)
WORKER = replace(HEAD_OF_TWO, plan=plans.plan(plans.WORKER))
ALONE = replace(HEAD_OF_TWO, plan=plans.plan())
QUEUES = (160 + 24) * MIB
"""The queue to the workers, and the one back from a worker."""


def with_own(shm_bytes: int) -> ShmSize:
    return ShmSize(plans.plan(plans.HEAD, container={"ipc": "private", "shm_bytes": shm_bytes}), host_ipc=False)


@pytest.mark.parametrize(
    ("check", "total", "free", "level", "hint"),
    [
        pytest.param(HEAD_OF_TWO, GIB, GIB, Level.OK, "", id="1 GiB"),
        pytest.param(HEAD_OF_TWO, GIB - 1, GIB - 1, Level.WARN, "remount", id="less than 1 GiB"),
        pytest.param(HEAD_OF_TWO, QUEUES, QUEUES, Level.WARN, "remount", id="just the queues"),
        pytest.param(HEAD_OF_TWO, QUEUES - 1, QUEUES - 1, Level.BLOCK, "remount", id="not the queues"),
        pytest.param(HEAD_OF_TWO, 60 * GIB, 183 * MIB, Level.WARN, "ls -lS /dev/shm", id="filled"),
        pytest.param(WORKER, 64 * MIB, 64 * MIB, Level.WARN, "remount", id="a worker makes no queues"),
        pytest.param(WORKER, 512 * MIB, 512 * MIB, Level.WARN, "remount", id="a worker has NCCL too"),
        pytest.param(ALONE, 64 * MIB, 64 * MIB, Level.WARN, "remount", id="alone, it may need none"),
        pytest.param(ALONE, QUEUES, QUEUES, Level.OK, "", id="alone, the queues are enough"),
        pytest.param(with_own(64 * MIB), 64 * MIB, 64 * MIB, Level.BLOCK, "out of", id="private"),
    ],
)
def test_dev_shm_has_room_for_the_queues_of_a_head(
    check: ShmSize, total: int, free: int, level: Level, hint: str
) -> None:
    expect(check.judge(ShmSizeFacts(total, free, "x")), level, text=hint)


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
def test_dev_shm_of_the_machine_is_as_large_as_its_mount_says(tree: Tree, mounts: str, total: int) -> None:
    tree.file("/proc/self/mounts", mounts)
    tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=1)
    assert HEAD_OF_TWO.probe(Host(tree.root)).total_bytes == total


def test_dev_shm_without_a_table_of_mounts_is_what_the_kernel_makes_by_itself(tree: Tree) -> None:
    tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=1)
    assert HEAD_OF_TWO.probe(Host(tree.root)).total_bytes == 60 * GIB


def test_what_lies_in_dev_shm_is_not_free(tree: Tree) -> None:
    tree.file("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,size=65536k 0 0\n")
    tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=1)
    used = tree.segment("psm_01234567", "x" * 100_000).st_blocks * 512
    assert used >= 100_000
    assert HEAD_OF_TWO.probe(Host(tree.root)).free_bytes == 64 * MIB - used


@pytest.mark.parametrize("own_bytes", [64 * MIB, 32 * GIB])
def test_dev_shm_of_a_container_is_as_the_plan_makes_it(tree: Tree, own_bytes: int) -> None:
    facts = with_own(own_bytes).probe(Host(tree.root))
    assert facts == ShmSizeFacts(own_bytes, own_bytes, "the container's own /dev/shm")


def rdma_plan(node: Node = plans.HEAD, env: dict[str, str] | None = None, **container: object) -> LaunchPlan:
    return plans.plan(node, env=env or {}, container={"devices": ["/dev/infiniband"], **container})


@pytest.mark.parametrize(
    ("launched", "why"),
    [
        (rdma_plan(plans.ALONE), "one node"),
        (rdma_plan(gpus="none"), "no GPU"),
        (rdma_plan(privileged=True), "privileged"),
        (rdma_plan(env={"NCCL_IB_DISABLE": "1"}), "NCCL_IB_DISABLE"),
        (rdma_plan(env={"NCCL_NET": "Socket"}), "NCCL_NET"),
        (rdma_plan(devices=[]), "no RDMA device"),
    ],
)
def test_a_plan_without_rdma_needs_no_locked_memory(tree: Tree, launched: LaunchPlan, why: str) -> None:
    facts = Memlock(launched).probe(Host(tree.root))
    assert why in facts.why_irrelevant
    assert Memlock(launched).judge(facts).level is Level.OK


@pytest.mark.parametrize(
    ("limit", "level"),
    [(-1, Level.OK), (16 * GIB, Level.OK), (16 * GIB - 1, Level.WARN), (8 * MIB, Level.WARN), (None, Level.WARN)],
)
def test_rdma_needs_much_locked_memory(limit: int | None, level: Level) -> None:
    hint = "take container.ulimits.memlock out of the recipe" if level is Level.WARN else ""
    expect(Memlock(rdma_plan()).judge(MemlockFacts("", limit, "x")), level, hint=hint)


@pytest.mark.parametrize(
    ("ulimits", "facts"),
    [
        ({}, MemlockFacts("", -1, "set by sparkd")),
        ({"stack": 67108864}, MemlockFacts("", -1, "set by sparkd")),
        ({"memlock": {"soft": 8192, "hard": -1}}, MemlockFacts("", 8192, "container.ulimits of the recipe")),
        ({"memlock": -1}, MemlockFacts("", -1, "container.ulimits of the recipe")),
        ({"memlock": None}, MemlockFacts("", None, "docker's default, by null in the recipe")),
    ],
)
def test_the_recipes_limit_goes_before_sparkds(tree: Tree, ulimits: dict[str, object], facts: MemlockFacts) -> None:
    assert Memlock(rdma_plan(ulimits=ulimits)).probe(Host(tree.root)) == facts


@pytest.mark.parametrize(
    ("facts", "gpus", "level", "words"),
    [
        (MemoryLimitFacts(None, 512 * MIB, 2 * GIB), "all", Level.OK, "below 512 MiB available"),
        (MemoryLimitFacts(None, 2 * GIB, 2 * GIB), "all", Level.OK, "below 2048 MiB available"),
        (MemoryLimitFacts(None, 0, 0), "all", Level.OK, "guard is off"),
        (MemoryLimitFacts(100 * GIB, 512 * MIB, 2 * GIB), "all", Level.WARN, "is 100.0 GiB, and does not bound what"),
        (MemoryLimitFacts(None, 2 * GIB + 1, 2 * GIB), "all", Level.WARN, "with 2.0 GiB to spare"),
        (MemoryLimitFacts(100 * GIB, 4 * GIB, 2 * GIB), "none", Level.OK, "no GPU"),
    ],
)
def test_a_limit_that_does_not_hold_and_a_floor_above_the_headroom_warn(
    facts: MemoryLimitFacts, gpus: str, level: Level, words: str
) -> None:
    check = MemoryLimit(rdma_plan(gpus=gpus), Settings(), MemoryNeed(0, None, 0))
    expect(check.judge(facts), level, words)


def test_limit_floor_and_headroom_are_those_of_recipe_and_settings(tree: Tree) -> None:
    limited = rdma_plan(memory_limit_bytes=100 * GIB)
    check = MemoryLimit(limited, plans.configured(memory={"floor_mib": 512}), MemoryNeed(0, None, 2 * GIB))
    assert check.probe(Host(tree.root)) == MemoryLimitFacts(100 * GIB, 512 * MIB, 2 * GIB)
