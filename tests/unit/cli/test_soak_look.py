"""What a soak sees of all nodes: its own files, and what the others last reported."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.node_reports import GIB, HEAD_REPORT, PEER, WORKER
from tests.unit.verdicts import present

from sparkd.base.host import Host
from sparkd.base.status.figures import GpuReport
from sparkd.base.status.model import Contact, NodeReport, dump
from sparkd.tools.measure.soak import read_sample

COOL, HOT = GpuReport("GB10", 2400, 40, 61), GpuReport("GB10", 611, 14, 78)


@pytest.fixture
def machine(tree: Tree) -> Tree:
    tree.meminfo(MemTotal=120, MemAvailable=9, MemFree=5, Cached=2)
    tree.file("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t16777216\t1024\t-2\n")
    return tree


def report(tree: Tree, node_report: NodeReport) -> Host:
    tree.process(50, "sparkd", start_time=7)
    tree.file("/run/sparkd/report.json", dump(replace(node_report, pid=50, start_time=7)))
    return Host(tree.root)


def test_it_has_each_nodes_memory_and_the_hottest_and_the_slowest_gpu(machine: Tree) -> None:
    peer = replace(PEER, report=replace(WORKER, gpu=HOT))
    seen = present(read_sample(report(machine, replace(HEAD_REPORT, gpu=COOL, peers=(peer,)))))
    assert seen.available_bytes == {"spark1": 9 * GIB, PEER.name: WORKER.memory and WORKER.memory.available_bytes}
    assert (seen.cached_bytes, seen.swap_used_bytes) == (2 * GIB, 1 << 20)
    assert (seen.gpu_celsius, seen.gpu_mhz) == (78, 611)


def test_nodes_of_one_name_are_two(machine: Tree) -> None:
    peer = replace(PEER, report=replace(WORKER, node=HEAD_REPORT.node))
    seen = present(read_sample(report(machine, replace(HEAD_REPORT, peers=(peer,)))))
    assert (len(seen.available_bytes), seen.available_bytes[HEAD_REPORT.node]) == (2, 9 * GIB)


def test_of_a_node_that_does_not_answer_nothing_is_known(machine: Tree) -> None:
    silent = replace(PEER, contact=Contact.SILENT, report=replace(WORKER, gpu=HOT))
    seen = present(read_sample(report(machine, replace(HEAD_REPORT, peers=(silent,)))))
    assert (seen.available_bytes[PEER.name], seen.gpu_celsius, seen.gpu_mhz) == (None, None, None)


def test_without_a_living_agent_there_is_this_node_alone(machine: Tree) -> None:
    host = report(machine, HEAD_REPORT)
    machine.file("/run/sparkd/report.json", dump(replace(HEAD_REPORT, pid=50, start_time=8)))
    seen = present(read_sample(host))
    assert seen.available_bytes == {host.name(): 9 * GIB}
