"""The samples of a soak: this node by its own files, and the others by their last reports."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.node_reports import GIB, HEAD_REPORT, PEER, WORKER
from tests.unit.verdicts import present

from sparkd.base.host import Host
from sparkd.base.status.figures import GpuReport
from sparkd.base.status.model import Contact, NodeReport, PeerStatus, dump
from sparkd.tools.measure.soak import Sample, read_sample

COOL, HOT = GpuReport("GB10", 2400, 40, 61), GpuReport("GB10", 611, 14, 78)


@pytest.fixture
def machine(tree: Tree) -> Tree:
    tree.meminfo(MemTotal=120, MemAvailable=9, MemFree=5, Cached=2)
    tree.file("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t16777216\t1024\t-2\n")
    return tree


def report(tree: Tree, node_report: NodeReport) -> Host:
    """The machine with this report of an agent that runs."""
    tree.process(50, "sparkd", start_time=7)
    tree.file("/run/sparkd/report.json", dump(replace(node_report, pid=50, start_time=7)))
    return Host(tree.root)


def sample_with(machine: Tree, peer: PeerStatus) -> Sample:
    return present(read_sample(report(machine, replace(HEAD_REPORT, gpu=COOL, peers=(peer,)))))


def test_a_sample_has_each_nodes_memory_and_the_hottest_and_the_slowest_gpu(machine: Tree) -> None:
    sample = sample_with(machine, replace(PEER, report=replace(WORKER, gpu=HOT)))
    assert sample == Sample(
        seconds=0.0,
        available_bytes={"spark1": 9 * GIB, PEER.name: present(WORKER.memory).available_bytes},
        cached_bytes=2 * GIB,
        swap_used_bytes=1 << 20,
        gpu_celsius=78,
        gpu_mhz=611,
    )


def test_nodes_of_one_name_are_two(machine: Tree) -> None:
    sample = sample_with(machine, replace(PEER, report=replace(WORKER, node=HEAD_REPORT.node)))
    assert len(sample.available_bytes) == 2
    assert sample.available_bytes[HEAD_REPORT.node] == 9 * GIB


def test_a_node_that_does_not_answer_has_no_figures(machine: Tree) -> None:
    sample = sample_with(machine, replace(PEER, contact=Contact.SILENT, report=replace(WORKER, gpu=HOT)))
    assert sample.available_bytes[PEER.name] is None
    assert sample.gpu_celsius == COOL.temperature_celsius
    assert sample.gpu_mhz == COOL.clock_mhz


def test_without_a_living_agent_there_is_this_node_alone(machine: Tree) -> None:
    host = report(machine, HEAD_REPORT)
    machine.file("/run/sparkd/report.json", dump(replace(HEAD_REPORT, pid=50, start_time=8)))
    assert present(read_sample(host)).available_bytes == {host.name(): 9 * GIB}
