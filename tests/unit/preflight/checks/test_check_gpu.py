"""A plan's GPUs: whether their driver answers, and what ails one that does not."""

import json

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.verdicts import expect, never_queried

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks import kernel as known_bad
from sparkd.agent.preflight.checks.gpu import Gpu, GpuCheckFacts
from sparkd.agent.preflight.checks.memory import UnifiedMemory
from sparkd.agent.preflight.runner import examine
from sparkd.base.config import Settings
from sparkd.base.host import Host, kernel
from sparkd.base.host.gpu import DRIVER_NAME, HUNG, GpuFacts, GpuProcess, Trouble, read_fixture
from sparkd.base.plan.inputs import MemoryNeed

GOOD = GpuCheckFacts(True, ("NVIDIA GB10",), "580.142", "580.142", module_open=True)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build  (dvs-builder@U22)\n"
PROPRIETARY = "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.173.02  Mon Jun 15 02:51:24 UTC 2026\n"


def sick(trouble: Trouble, error: str = "it is sick") -> GpuCheckFacts:
    return replace(GOOD, names=(), driver="", trouble=trouble, error=error)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(GOOD, Level.OK, "NVIDIA GB10, driver 580.142", id="good"),
        pytest.param(GpuCheckFacts(False), Level.OK, "the plan uses no GPU", id="no GPU wanted"),
        pytest.param(sick(Trouble.FORBIDDEN), Level.UNKNOWN, "sudo sparkd preflight --dry-run", id="forbidden"),
        pytest.param(sick(Trouble.NO_LIBRARY), Level.BLOCK, "libnvidia-compute-580;", id="no library"),
        pytest.param(sick(Trouble.OTHER), Level.BLOCK, "it is sick", id="something else"),
        pytest.param(replace(GOOD, names=()), Level.BLOCK, "power-cycle", id="no GPU"),
        pytest.param(replace(GOOD, driver="590.44.01"), Level.WARN, "graphs", id="driver that deadlocks"),
        pytest.param(replace(GOOD, driver="580.159.04"), Level.OK, "", id="the next driver"),
        pytest.param(replace(GOOD, driver="5900.1"), Level.OK, "", id="a driver that only looks like it"),
        pytest.param(replace(GOOD, names=("NVIDIA H200",), driver="590.1"), Level.OK, "H200", id="no GB10"),
    ],
)
def test_a_gpu_that_answers_is_needed(facts: GpuCheckFacts, level: Level, words: str) -> None:
    expect(Gpu().judge(facts), level, text=words, needs_person=False, awaits="")


@pytest.mark.parametrize(
    ("trouble", "required", "awaits"),
    [
        pytest.param(Trouble.HUNG, "power-cycle", DRIVER_NAME, id="hung: it may come round"),
        pytest.param(Trouble.LOST, "power-cycle", "", id="lost"),
        pytest.param(Trouble.RESET, "reboot", "", id="must be reset"),
    ],
)
def test_a_gpu_that_only_a_person_brings_back_needs_one(trouble: Trouble, required: str, awaits: str) -> None:
    expect(Gpu().judge(sick(trouble)), Level.BLOCK, needs_person=True, required=required, awaits=awaits)


def test_a_node_has_as_many_gpus_as_the_recipe_says() -> None:
    assert Gpu(gpus=2).judge(replace(GOOD, names=("A", "B"))).level is Level.OK
    missing = Gpu(gpus=2).judge(replace(GOOD, names=("A",)))
    expect(missing, Level.BLOCK, "1 GPU(s) are seen, and the recipe's nodes.gpus is 2")


def test_preflight_waits_for_a_driver_that_does_not_answer(tree: Tree) -> None:
    tree.meminfo(MemTotal=120, MemFree=100, MemAvailable=100)
    tree.file("/proc/uptime", "1000.00 2000.00\n")
    checks = (Gpu(), UnifiedMemory(MemoryNeed(1, None, 0), Settings()))
    findings = examine(checks, Host(tree.root, gpu=lambda: HUNG))
    assert {finding.verdict.awaits for finding in findings} == {DRIVER_NAME}, (
        "one that awaits nothing makes waiting vain"
    )


def recorded(tree: Tree, answer: object, module: str = OPEN) -> Host:
    tree.file("/.sparkd/nvml.json", json.dumps(answer))
    tree.file("/proc/driver/nvidia/version", module)
    return Host(tree.root)


def test_a_recorded_answer_carries_memory_and_processes(tree: Tree) -> None:
    processes = [{"pid": 7, "used_bytes": 5}, {"pid": 8, "used_bytes": None}]
    host = recorded(tree, {"names": ["NVIDIA H200"], "total_bytes": 9, "processes": processes})
    assert host.gpu() == GpuFacts(("NVIDIA H200",), 9, (GpuProcess(7, 5), GpuProcess(8, None)))


@pytest.mark.parametrize(
    "answer",
    [[], {}, {"names": "GB10"}, {"names": [1]}, {"names": [], "processes": [1]}, {"names": [], "trouble": "odd"}],
)
def test_a_recorded_answer_that_is_none_is_unknown(tree: Tree, answer: object) -> None:
    host = recorded(tree, answer)
    with pytest.raises(ValueError, match=r"nvml\.json"):
        read_fixture(host.files)
    assert examine([Gpu()], host)[0].verdict.level is Level.UNKNOWN


def test_a_machine_without_driver_or_answer_has_no_gpu(tree: Tree) -> None:
    verdict = Gpu().run(Host(tree.root))[1]
    assert verdict == Verdict(
        Level.BLOCK,
        "no GPU is seen, and no NVIDIA kernel module is loaded",
        "sudo modprobe nvidia; where it fails: dkms status; sudo dmesg",
    )


@pytest.mark.parametrize("answer", [{"names": []}, {"names": [], "error": "not loaded", "trouble": "not-loaded"}])
def test_a_kernel_for_which_no_module_is_installed_is_named_with_its_package(tree: Tree, answer: object) -> None:
    tree.file("/.sparkd/nvml.json", json.dumps(answer))
    tree.file("/proc/sys/kernel/osrelease", "6.17.0-1029-nvidia\n")
    tree.file("/lib/modules/6.17.0-1029-nvidia/modules.dep", "kernel/fs/ext4/ext4.ko.zst:\n")
    verdict = Gpu().run(Host(tree.root))[1]
    install = "sudo apt install linux-modules-nvidia-580-open-6.17.0-1029-nvidia && sudo reboot"
    hint = f"{install}; where DKMS builds it: sudo dkms autoinstall"
    expect(verdict, Level.BLOCK, hint=hint)


def test_a_plan_without_gpus_leaves_the_driver_alone(tree: Tree) -> None:
    assert Gpu(gpus=0).run(Host(tree.root, gpu=never_queried))[1].level is Level.OK


def test_each_examination_queries_the_driver_once(tree: Tree) -> None:
    queries = []

    def query() -> GpuFacts:
        queries.append(1)
        return GpuFacts(("NVIDIA GB10",), None, ())

    tree.meminfo(MemTotal=120, MemFree=100, MemAvailable=100)
    tree.file("/proc/uptime", "1000.00 2000.00\n")
    host = Host(tree.root, gpu=query)
    checks = (Gpu(), UnifiedMemory(MemoryNeed(1, None, 0), Settings()))
    for looks in (1, 2):
        assert [finding.verdict.level for finding in examine(checks, host)] == [Level.OK, Level.OK]
        assert len(queries) == looks


@pytest.mark.parametrize(("text", "version", "is_open"), [(OPEN, "580.142", True), (PROPRIETARY, "580.173.02", False)])
def test_the_module_says_whether_it_is_the_open_one(tree: Tree, text: str, version: str, is_open: bool) -> None:
    tree.file("/proc/driver/nvidia/version", text)
    assert kernel.read_nvidia_module(Host(tree.root).files) == (version, is_open)


@pytest.mark.parametrize("text", ["", "\0\n", "NVRM version: none\n"])
def test_a_module_that_names_no_version_is_no_reason_against_a_gpu_that_answers(tree: Tree, text: str) -> None:
    answers = recorded(tree, {"names": ["NVIDIA GB10"], "driver": "580.142"}, module=text)
    assert examine([Gpu()], answers)[0].verdict.level is Level.OK
    silent = examine([Gpu()], recorded(tree, {"names": []}, module=text))[0].verdict
    expect(silent, Level.BLOCK, "no GPU is seen by the kernel module", needs_person=False)


def test_every_known_bad_version_says_what_to_do_and_who_says_so() -> None:
    for known in (*known_bad.KERNELS, *known_bad.DRIVERS):
        assert all((known.version, known.trouble, known.remedy, known.source))
        assert known_bad.find_known_bad(known.version, (known,)) is known
