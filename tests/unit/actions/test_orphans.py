"""What is ended and removed with an orphaned container, and what is left alone at the last look."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import MemoryActions
from tests.unit.rank_records import rank_record

from sparkd.agent.actions.dockerd import Containers
from sparkd.agent.actions.orphans import end_orphan
from sparkd.agent.preflight.fixes import Applied, RemoveContainer
from sparkd.base.host import Host
from sparkd.base.host.docker import ContainerFacts, DockerFacts
from sparkd.base.host.shm import MOST_SEGMENTS
from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier
from sparkd.base.state.rank_record import RANK_FILE, left_segments

ID, OTHER_ID = "a" * 64, "b" * 64
LABELS = {"io.sparkd.role": "head", "io.sparkd.invocation": "before", "io.sparkd.rank-id": "rank"}
ENDED = ContainerFacts(ID, "sparkd-rank0", tuple(LABELS.items()), False, 0, "sha256:i", "no")


class RecordingContainers(Containers):
    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self.removed: list[str] = []

    def stop(self, container_id: str, grace_seconds: int) -> None:
        raise LaunchError("tried to kill container, but did not receive an exit event")

    def remove(self, container_id: str) -> None:
        self.removed.append(container_id)


def write_record(tree: Tree, **changes: object) -> Path:
    tree.file("/proc/sys/kernel/random/boot_id", "boot\n")
    return tree.file(RANK_FILE.path, RANK_FILE.encode(replace(rank_record(invocation="before"), **changes)))


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({"container_id": ID}, False),
        ({}, False),
        ({"container_id": OTHER_ID}, True),
        ({"rank_id": "another", "container_id": ID}, True),
    ],
)
def test_an_orphans_record_goes_with_it(tree: Tree, changes: dict[str, object], stays: bool) -> None:
    """A copied label takes nothing of another container along."""
    containers = RecordingContainers()
    record = write_record(tree, **changes)
    end_orphan(Host(tree.root), containers, ENDED)
    assert containers.removed == [ID]
    assert record.exists() is stays


def test_a_record_stays_as_long_as_a_segment_that_it_names(tree: Tree) -> None:
    """One that a process still has when the container goes: the next preflight unlinks it."""
    segment, host = tree.segment("psm_0123abcd"), Host(tree.root)
    record = write_record(tree, container_id=ID, segments={"/dev/shm/psm_0123abcd": (segment.st_dev, segment.st_ino)})
    tree.process(9, "python3", opened=("/dev/shm/psm_0123abcd",))
    end_orphan(host, RecordingContainers(), ENDED)
    assert left_segments(host) == {"/dev/shm/psm_0123abcd": (segment.st_dev, segment.st_ino)}
    (tree.root / "dev/shm/psm_0123abcd").unlink()
    end_orphan(host, RecordingContainers(), ENDED)
    assert not record.exists()


@pytest.mark.parametrize("running", [True, False])
def test_an_orphan_goes_though_shared_memory_can_not_be_read(tree: Tree, running: bool) -> None:
    """Any user can make more such files than are read. Nor does it stay where docker gave up waiting for its end."""
    folder, containers = tree.folder("/dev/shm"), RecordingContainers()
    for number in range(MOST_SEGMENTS + 1):
        (folder / f"psm_{number:08x}").touch()
    record = write_record(tree, container_id=ID, segments={"/dev/shm/psm_00000000": (1, 2)})
    end_orphan(Host(tree.root), containers, replace(ENDED, running=running, pid=9))
    assert containers.removed == [ID]
    assert not record.exists()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"invocation": "now"}, id="the owner has it"),
        pytest.param({"invocation": "now", "container_id": OTHER_ID}, id="a copied label"),
    ],
)
def test_what_is_no_orphan_any_more_is_left_alone(tree: Tree, changes: dict[str, object]) -> None:
    write_record(tree, **changes)
    host = Host(tree.root, docker=lambda: DockerFacts(True, (ENDED,)))
    applied = MemoryActions(host, MainLoop(Notifier(), {}), "now").apply(RemoveContainer(ID, "sparkd-rank0"))
    assert applied == Applied("stale", "it is not an orphan of sparkd")
