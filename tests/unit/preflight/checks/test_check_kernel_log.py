"""Messages in the kernel's log that a launch would fail on, or that a person should know."""

import os

import pytest
from tests.machines.areas.kernel import GPU, LOADED, NO_MEMORY
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.kernel_log import (
    MOST_OF_A_KIND,
    RECENT_SECONDS,
    KernelLog,
    KernelLogFacts,
    find_events,
)
from sparkd.agent.preflight.runner import examine
from sparkd.base.host import Host
from sparkd.base.host.kernel import Record
from sparkd.base.host.kernel_events import Event

UPTIME = 100_000.0
RECOVERY = f"NVRM: Xid ({GPU}): 154, GPU recovery action changed from 0x{{}} to 0x{{}}"
RESET = RECOVERY.format("0 (None)", "1 (GPU Reset Required)")
REBOOT = RECOVERY.format("0 (None)", "2 (OS Reboot)")
PEER = RECOVERY.format("0 (None)", "3 (Drain P2P)")
RECOVERED = RECOVERY.format("1 (GPU Reset Required)", "0 (None)")
KILLED = "Killed process 4848 (VLLM::EngineCor) total-vm:172233344kB, anon-rss:5611288kB, file-rss:0kB, shmem-rss:0kB"
FATAL = "pcieport 0000:00:00.0: AER: {} (Fatal) error message received from 0000:01:00.0"


def xid(code: int, rest: str = "pid=4848, name=VLLM::Worker_TP") -> str:
    return f"NVRM: Xid ({GPU}): {code}, {rest}"


def judged(*messages: tuple[float, str], uses_gpu: bool = True) -> Verdict:
    """The verdict on messages, each so many seconds old."""
    records = [Record(number, UPTIME - ago, text) for number, (ago, text) in enumerate(messages)]
    return KernelLog(uses_gpu).judge(KernelLogFacts(UPTIME, 0.0, find_events(records)))


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        (xid(79, "GPU has fallen off the bus."), Level.BLOCK, "unplug it for 60 s"),
        (xid(119, "Timeout after 45s of waiting for RPC response from GPU0 GSP!"), Level.BLOCK, "reboot this node"),
        (xid(120, "GSP kernel exception: store access page fault"), Level.BLOCK, "reboot this node"),
        (xid(140), Level.BLOCK, "reboot this node"),
        (xid(169, "fd8cd000 94000000"), Level.BLOCK, "open kernel modules"),
        (RESET, Level.BLOCK, "requires a reset"),
        (REBOOT, Level.BLOCK, "requires a reboot"),
        (PEER, Level.OK, ""),
        (RECOVERED, Level.OK, ""),
        (xid(48, "An uncorrectable double bit error (DBE)"), Level.WARN, "an uncorrectable memory error"),
        (xid(94), Level.WARN, "a contained memory error"),
        (xid(95), Level.WARN, "an uncontained memory error"),
        (xid(31, "MMU Fault"), Level.OK, ""),
        (xid(43), Level.OK, ""),
        (f"Out of memory: {KILLED}", Level.WARN, "killed VLLM::EngineCor"),
        (f"Out of memory (oom_kill_allocating_task): {KILLED}", Level.WARN, "killed VLLM::EngineCor"),
        (f"Memory cgroup out of memory: {KILLED}", Level.OK, ""),
        (FATAL.format("Uncorrectable"), Level.WARN, "a fatal PCIe error at 0000:00:00.0"),
        (FATAL.format("Uncorrected"), Level.WARN, "a fatal PCIe error"),
        (FATAL.format("Multiple Uncorrectable"), Level.WARN, "a fatal PCIe error"),
        ("pcieport 0000:00:00.0: AER: Correctable error message received from 0000:01:00.0", Level.OK, ""),
        ("mlx5_core 0000:01:00.0: mlx5_pci_slot_reset was called", Level.WARN, "reset the ConnectX 0000:01:00.0"),
        ("mlx5_core 0002:01:00.1: mlx5_pcie_event:326:(pid 3202): Detected insufficient power on the PCIe slot (27W).",
         Level.OK, ""),
        (NO_MEMORY, Level.OK, "NV_ERR_NO_MEMORY once"),
        (f"python: Out of memory: {KILLED}", Level.OK, ""),
        ("NVRM: Xid ([812]: segfault at 0 ip 0 sp 0 error 4 in x): 79, y[1000+1000]", Level.OK, ""),
        ("NVRM: Xid ([812]: segfault at 0 ip 0 sp 0 error 4 in x): 154, to 0x2[1000+1000]", Level.OK, ""),
        ("NVRM: Xid (812): 79 of somebody's program", Level.OK, ""),
    ],
)  # fmt: skip
def test_a_message_is_judged_by_what_it_means_for_an_engine(text: str, level: Level, words: str) -> None:
    expect(judged((60, text)), level, text=words, needs_person=level is Level.BLOCK)


@pytest.mark.parametrize(
    ("messages", "level"),
    [
        pytest.param([(900, xid(119)), (600, RECOVERED)], Level.OK, id="the driver says that it recovered"),
        pytest.param([(900, RESET), (600, RECOVERED)], Level.OK, id="the reset was done"),
        pytest.param([(900, RECOVERED), (600, xid(119))], Level.BLOCK, id="it recovered before"),
        pytest.param([(900, xid(119)), (600, RECOVERED.replace("000f", "0001"))], Level.BLOCK, id="another GPU did"),
        pytest.param([(900, xid(79)), (600, LOADED)], Level.OK, id="the driver was loaded again"),
        pytest.param([(900, LOADED), (600, xid(79))], Level.BLOCK, id="the driver was loaded before"),
        pytest.param([(90_000, xid(79))], Level.BLOCK, id="lost long ago, and since"),
        pytest.param([(RECENT_SECONDS + 1, xid(94))], Level.OK, id="got over long ago"),
        pytest.param([(RECENT_SECONDS + 1, f"Out of memory: {KILLED}")], Level.OK, id="killed long ago"),
    ],
)
def test_an_event_that_is_over_holds_nothing_up(messages: list[tuple[float, str]], level: Level) -> None:
    assert judged(*messages).level is level


def test_a_plan_without_gpus_is_not_held_up_by_one() -> None:
    assert judged((60, xid(79)), (30, REBOOT), uses_gpu=False).level is Level.OK


def test_a_message_that_was_repeated_is_said_once_with_how_often_and_when_last() -> None:
    reason = judged((900, xid(119)), (600, xid(119)), (300, xid(119))).reason
    assert reason == "Xid 119: the GPU's firmware does not answer (000f:01:00), 3 times, 5 min ago"
    assert judged((-3, xid(79))).reason.endswith(", 0 s ago"), "never from the future"


def test_a_gpu_that_is_gone_is_said_before_what_may_be_lived_with() -> None:
    verdict = judged((900, f"Out of memory: {KILLED}"), (600, xid(79)))
    assert verdict.reason.startswith("Xid 79")
    assert "killed VLLM::EngineCor" in verdict.reason
    assert verdict.hint.startswith("power-cycle")
    assert verdict.action == "power-cycle"


def test_a_log_that_lost_its_beginning_says_how_far_it_goes_back() -> None:
    verdict = KernelLog().judge(KernelLogFacts(UPTIME, UPTIME - 7200, ()))
    assert verdict == Verdict(Level.OK, "nothing bad in the kernel's log, which goes back 2 h 0 min of 1 d 3 h")


def test_a_log_that_may_not_be_read_warns_and_none_at_all_is_good() -> None:
    forbidden = KernelLog().judge(KernelLogFacts(UPTIME, 0.0, (), error="Operation not permitted"))
    expect(forbidden, Level.WARN, "Operation not permitted")
    assert KernelLog().judge(KernelLogFacts(UPTIME, 0.0, (), absent=True)).level is Level.OK


def machine(tree: Tree, log: str | None) -> Host:
    tree.file("/proc/uptime", f"{UPTIME} 1.00\n")
    if log is not None:
        tree.file("/dev/kmsg", log)
    return Host(tree.root)


def test_probe_reads_a_recorded_log(tree: Tree) -> None:
    host = machine(
        tree,
        f"6,512,7000000,-;{LOADED}\n"
        " SUBSYSTEM=pci\n DEVICE=+pci:000f:01:00.0\n"
        f"12,513,8000000,-;{xid(79)}\n"
        f"4,514,9000001,-;{xid(94)}\n"
        f"4,515,9500000,c;{xid(94)}\n"
        "4,516,9600000,-;something else\n",
    )
    assert KernelLog().probe(host) == KernelLogFacts(
        UPTIME, 7.0, (Event("driver-loaded", "", 0, 1, 7.0, LOADED), Event("xid", "000f:01:00", 94, 2, 9.5, xid(94)))
    )


@pytest.mark.parametrize("log", [None, "", "\n\n", "nonsense\n", "4,0,0,-;Linux version"])
def test_a_machine_with_no_log_or_an_odd_one_is_good(tree: Tree, log: str | None) -> None:
    assert KernelLog().run(machine(tree, log))[1].level is Level.OK


def test_a_log_in_which_everything_is_different_is_bounded(tree: Tree) -> None:
    lines = [
        f"4,{n},{n},-;Out of memory: Killed process {n} (\u202e{n}\x1b[2J{'x' * 900}) total-vm\n" for n in range(500)
    ]
    events = KernelLog().probe(machine(tree, "".join(lines))).events
    assert len(events) == MOST_OF_A_KIND
    assert all(len(event.text) <= 200 for event in events)
    assert all(event.text.isprintable() and event.device.isprintable() for event in events)


def test_a_flood_hides_no_lost_gpu_and_of_it_the_latest_are_kept(tree: Tree) -> None:
    killed = [f"4,{n},{n},-;Out of memory: Killed process {n} (p{n}) total-vm\n" for n in range(500)]
    lost = "4,500,500,-;NVRM: Xid (PCI:000f:01:00): 79, pid=1, GPU has fallen off the bus.\n"
    for lines in ([*killed, lost], [lost, *killed]):
        facts, verdict = KernelLog().run(machine(tree, "".join(lines)))
        expect(verdict, Level.BLOCK, "Xid 79")
        assert "p499" in {event.device for event in facts.events}


def test_a_console_in_place_of_the_log_is_none(tree: Tree) -> None:
    host = machine(tree, None)
    os.mkfifo(tree.folder("/dev") / "kmsg")
    assert examine([KernelLog()], host)[0].verdict.level is Level.OK
