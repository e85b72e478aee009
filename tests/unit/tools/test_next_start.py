"""Beside a serving agent a dry run judges what the next start would meet: the agent's own rank counts as released."""

import json
import os

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.commands import sparkd
from tests.unit.nodes import report
from tests.unit.preflight.nodes import healthy
from tests.unit.rank_records import rank_record

from sparkd.base.host import Host
from sparkd.base.host.gpu import GpuFacts, GpuProcess
from sparkd.base.host.meminfo import FreeMemory
from sparkd.base.lib.text import GIB
from sparkd.base.state.rank_record import RANK_FILE
from sparkd.base.status.model import Phase, dump
from sparkd.tools.node.next_start import NextStart

ID, OTHER = "a" * 64, "b" * 64
API, AGENTS = 5, 6
"""Inodes of listening sockets."""


def container(full_id: str, pid: int, invocation: str, name: str = "sparkd-rank0") -> dict[str, object]:
    labels = {"io.sparkd.role": "head", "io.sparkd.invocation": invocation}
    return {
        "Id": full_id,
        "Name": f"/{name}",
        "Image": f"sha256:{'1' * 64}",
        "Config": {"Labels": labels},
        "State": {"Running": True, "Pid": pid},
        "HostConfig": {"RestartPolicy": {"Name": "no"}},
    }


def write_containers(tree: Tree, *descriptions: dict[str, object]) -> None:
    """What docker answers about its containers."""
    tree.docker("/containers/json", [{"Id": each["Id"], "Names": [each["Name"]]} for each in descriptions])
    for each in descriptions:
        tree.docker(f"/containers/{each['Id']}/json", each)


def engine(tree: Tree, full_id: str, pid: int, opened: tuple[str, ...] = ()) -> None:
    """A `vllm serve` of three processes in a container; it holds 80 GiB."""
    group = f"0::/system.slice/docker-{full_id}.scope"
    tree.process(pid, "tini", cgroup=group, namespace_pid=1)
    serve = ("vllm", "serve", "/models/tiny")
    tree.process(pid + 1, "vllm", parent=pid, argv=serve, cgroup=group, opened=opened)
    tree.process(pid + 2, "VLLM::EngineCor", parent=pid + 1, cgroup=group, private_kib=80 << 20)


@pytest.fixture
def serving(tree: Tree) -> Tree:
    """A healthy node on which an agent serves: 20 of 120 GiB are left, and the API's port is taken."""
    healthy(tree)
    tree.process(50, "sparkd", opened=(f"socket:[{AGENTS}]",))
    tree.owner(50, "own")
    tree.segment("psm_0123abcd")
    engine(tree, ID, 60, opened=(f"socket:[{API}]", "/dev/shm/psm_0123abcd"))
    write_containers(tree, container(ID, 60, "own"))
    tree.listening((8000, API), (29511, AGENTS))
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20, AnonPages=80)
    served = report(0, phase=Phase.SERVING, incarnation="own", since="2026-01-02T03:04:05.678+00:00")
    tree.file("/run/sparkd/report.json", dump(served))
    tree.file("/etc/sparkd/conf.d/memory.toml", "[memory]\nheadroom_gib = 90\n")
    return tree


def test_the_own_rank_its_memory_ports_and_segments_count_as_released(serving: Tree) -> None:
    done = sparkd("preflight", "--dry-run", "--all", "--root", str(serving.root))
    assert done.returncode == 0, done.stdout
    first = "pid 50 (sparkd run --role head): serving since 2026-01-02 03:04 UTC; judged is the next start, without "
    assert done.stdout.splitlines()[0] == f"{first}its sparkd-rank0"
    assert "100.0 GiB available" in done.stdout
    assert "8000 free" in done.stdout
    assert "no orphaned segments\n" in done.stdout


def test_the_json_names_the_owner(serving: Tree) -> None:
    report = json.loads(sparkd("preflight", "--json", "--root", str(serving.root)).stdout)
    assert report["owner"] == {
        "pid": 50,
        "command": "sparkd run --role head",
        "phase": "serving",
        "since": "2026-01-02T03:04:05.678+00:00",
        "released": ["sparkd-rank0"],
    }


def test_a_node_that_nobody_owns_says_so(tree: Tree) -> None:
    healthy(tree)
    assert json.loads(sparkd("preflight", "--json", "--root", str(tree.root)).stdout)["owner"] is None


@pytest.mark.parametrize(
    ("description", "owner"),
    [
        pytest.param(container(ID, 60, "another"), "own", id="of another invocation"),
        pytest.param(container(ID, 60, "own", "sparkd-copy"), "own", id="not our name"),
        pytest.param(container(OTHER, 60, "own"), "own", id="its process is in another container"),
        pytest.param(container(ID, 4711, "own"), "own", id="its process is gone"),
        pytest.param(container(ID, 60, ""), "", id="the owner's invocation is unknown"),
    ],
)
def test_what_is_not_proven_to_be_the_own_rank_still_blocks(
    serving: Tree, description: dict[str, object], owner: str
) -> None:
    write_containers(serving, description)
    serving.owner(50, owner)
    assert NextStart(Host(serving.root)).ranks == ()
    done = sparkd("preflight", "--dry-run", "--root", str(serving.root))
    assert done.returncode == 10
    assert "stray-workers" in done.stdout


def write_record(serving: Tree, **changes: object) -> None:
    serving.file("/proc/sys/kernel/random/boot_id", "boot\n")
    started = rank_record(pid=60, start_time=100, container_id=ID)
    serving.file(RANK_FILE.path, RANK_FILE.encode(replace(started, **changes)))


def label_container(serving: Tree, invocation: str) -> None:
    """The serving rank's container was made by this agent, and has the rank's id."""
    description = container(ID, 60, invocation)
    labels = {**description["Config"]["Labels"], "io.sparkd.rank-id": "rank"}  # type: ignore[index]
    write_containers(serving, {**description, "Config": {"Labels": labels}})


@pytest.mark.parametrize(
    ("made_by", "changes", "released"),
    [
        pytest.param("own", {"invocation": "own"}, True, id="of the agent that made it"),
        pytest.param("before", {"invocation": "own"}, True, id="taken over"),
        pytest.param("own", {"invocation": "own", "container_id": OTHER}, False, id="another container is recorded"),
        pytest.param("own", {"invocation": "own", "start_time": 99}, False, id="another process is recorded"),
        pytest.param("own", {"invocation": "own", "boot_id": "before"}, True, id="the record is of another boot"),
        pytest.param("before", {"invocation": "before"}, False, id="its agent is gone"),
    ],
)
def test_the_own_rank_is_what_the_record_names(
    serving: Tree, made_by: str, changes: dict[str, object], released: bool
) -> None:
    label_container(serving, made_by)
    write_record(serving, **changes)
    assert [rank.id for rank in NextStart(Host(serving.root)).ranks] == [ID] * released


def test_a_user_who_may_not_read_the_record_goes_by_the_labels(serving: Tree) -> None:
    label_container(serving, "own")
    serving.file(RANK_FILE.path, "")
    assert len(NextStart(Host(serving.root)).ranks) == 1


def test_a_rank_whose_agent_is_gone_still_blocks(serving: Tree) -> None:
    serving.owner(50, "own", start_time=99)
    assert NextStart(Host(serving.root)).ranks == ()
    assert sparkd("preflight", "--dry-run", "--root", str(serving.root)).returncode == 10


def test_an_engine_of_another_owner_beside_it_still_blocks(serving: Tree) -> None:
    engine(serving, OTHER, 90)
    done = sparkd("preflight", "--dry-run", "--root", str(serving.root))
    assert done.returncode == 10
    assert "pid 91 (vllm)" in done.stdout
    assert "pid 61 (vllm)" not in done.stdout


def test_gpu_memory_of_the_rank_comes_back_too(serving: Tree) -> None:
    serving.file("/dev/nvidia0")
    rank, other = GpuProcess(62, 10 * GIB), GpuProcess(99, GIB)
    host = NextStart(Host(serving.root, gpu=lambda: GpuFacts(("NVIDIA GB10",), None, (rank, other))))
    assert host.gpu().processes == (other,)
    memory = host.meminfo()
    assert memory.available_bytes == memory.free_bytes == 110 * GIB
    assert memory.anonymous_bytes == 0
    serving.buddyinfo(large_gib=1, small_gib=19)
    assert host.free_memory() == FreeMemory(110 * GIB, 11 * GIB), "the driver's comes back in large blocks"
    unknown = NextStart(Host(serving.root, gpu=lambda: replace(GpuFacts(("NVIDIA GB10",)), processes=None)))
    assert unknown.gpu().processes is None


def test_no_more_comes_back_from_the_driver_than_the_processes_that_live_give_back(serving: Tree) -> None:
    """It lists memory of a dead process, which may stay with it."""
    serving.file("/dev/nvidia0")
    group = f"0::/system.slice/docker-{ID}.scope"
    serving.process(62, "VLLM::EngineCor", parent=61, cgroup=group, private_kib=80 << 20, state="Z")
    host = NextStart(Host(serving.root, gpu=lambda: GpuFacts(("NVIDIA GB10",), None, (GpuProcess(62, 10 * GIB),))))
    serving.buddyinfo(large_gib=1, small_gib=19)
    assert host.free_memory() == FreeMemory(20 * GIB, GIB)
    assert host.meminfo().anonymous_bytes == 80 * GIB


def test_what_the_driver_leaks_does_not_come_back_with_a_rank_that_only_has_its_devices_open(serving: Tree) -> None:
    """The start would block, so the dry run must."""
    serving.file("/dev/nvidia0")
    serving.meminfo(MemTotal=120, MemFree=10, MemAvailable=10)
    serving.link("/proc/60/fd/9", "/dev/nvidia0")
    listed = (GpuProcess(62, 10 * GIB),)
    host = NextStart(Host(serving.root, gpu=lambda: GpuFacts(("NVIDIA GB10",), None, listed)))
    before = Host(serving.root).meminfo().available_bytes
    assert host.meminfo().available_bytes - before == 90 * GIB, "10 by the driver's list, 80 of the process's own"


def test_a_tree_that_can_not_be_read_releases_nothing(serving: Tree) -> None:
    os.truncate(serving.root / "proc/60/status", 0)
    assert NextStart(Host(serving.root)).ranks == ()
