"""Real lines of the kernel's log, from public reports, and what sparkd makes of them."""

import re

import pytest
from tests.unit.verdicts import present

from sparkd.base.host.kernel import Record, parse_record
from sparkd.base.host.kernel_events import KINDS, Event, parse_event

LINES = [
    ("NVRM: Xid (PCI:0000:9b:00): 119, pid=4071838, name=python, Timeout after 45s of waiting",
     "xid", "0000:9b:00", "reboot"),
    ("NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=distprovers-gpu, Ch 0000000a", "xid", "0000:61:00", "restart"),
    ("NVRM: Xid (PCI:0000:01:00): 31, pid=2134, name=python3, Ch 00000010, intr 00000000. MMU Fault",
     "xid", "0000:01:00", "restart"),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus.", "xid", "0000:3b:00", "power-cycle"),
    ("NVRM: Xid (PCI:0000:07:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6",
     "xid", "0000:07:00", "inspect"),
    ("NVRM: Xid (PCI:0000:4e:00): 94, pid=7194, Contained: SM (0x1). RST: No", "xid", "0000:4e:00", "restart"),
    ("NVRM: Xid (PCI:0000:4e:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.",
     "xid", "0000:4e:00", "none"),
    ("NVRM: Xid (PCI:0000:01:00): 62, 32307e2b 00006984 00000000 2026ee10 202708e8", "xid", "0000:01:00", "inspect"),
    ("NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
     "gpu-recovery", "000f:01:00", "reboot"),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "gpu-lost", "0000:3b:00.0", "power-cycle"),
    ("NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482",
     "gpu-firmware", "", "reboot"),
    ("NVRM: GPU6 _kgspLogRpcTimeout: **************** GSP Timeout ****************",
     "gpu-firmware", "", "reboot"),
    ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)", "gpu-start", "0000:01:00.0", "reboot"),
    ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)",
     "driver-no-memory", "", "none"),
    ("NVRM: nvAssertOkFailedNoLog: Assertion failed: Invalid data passed [NV_ERR_INVALID_DATA] (0x00000025)",
     "driver-assertion", "", "none"),
    ("pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received from 0000:01:00.0",
     "pcie-fatal", "0000:00:00.0", "inspect"),
    ("pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0",
     "pcie-fatal", "0000:00:03.0", "inspect"),
    ("pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
     "pcie-fatal", "0000:00:03.0", "inspect"),
    ("pcieport 0000:00:1c.5: AER: Uncorrected (Non-Fatal) error received: 0000:00:1c.5",
     "pcie-uncorrected", "0000:00:1c.5", "inspect"),
    ("pcieport 0000:00:1d.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
     "pcie-corrected", "0000:00:1d.0", "none"),
    ("nvme 0000:03:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
     "pcie-corrected", "0000:03:00.0", "none"),
    ("mlx5_core 0000:01:00.0: mlx5_pci_slot_reset was called", "nic-reset", "0000:01:00.0", "reboot"),
    ("mlx5_core 0000:41:00.0: poll_health:852:(pid 0): device's health compromised - reached miss count",
     "nic-fault", "0000:41:00.0", "reboot"),
    ("mlx5_core 0000:41:00.0: print_health_info:458:(pid 0): synd 0x8: unrecoverable hardware error",
     "nic-fault", "0000:41:00.0", "reboot"),
    ("mlx5_core 0000:03:00.0: wait_func:964:(pid 112): ENABLE_HCA(0x104) timeout. Will cause a leak of a command",
     "nic-fault", "0000:03:00.0", "reboot"),
    ("NETDEV WATCHDOG: enp3s0 (r8169): transmit queue 0 timed out 9028 ms", "nic-stalled", "enp3s0", "inspect"),
    ("NETDEV WATCHDOG: enP64p1s0f3 (tg3): transmit queue 0 timed out", "nic-stalled", "enP64p1s0f3", "inspect"),
    ("mlx5_core 0000:01:00.0 enp1s0f0np0: Link down", "link-down", "enp1s0f0np0", "inspect"),
    ("r8169 0000:03:00.0 enp3s0: Link is Down", "link-down", "enp3s0", "inspect"),
    ("r8169 0000:03:00.0 enp3s0: Link is Up - 1Gbps/Full - flow control rx/tx", "link-up", "enp3s0", "none"),
    ("nf_conntrack: nf_conntrack: table full, dropping packet", "connections-dropped", "", "inspect"),
    ("BUG: kernel NULL pointer dereference, address: 0000000000000264", "oops", "", "reboot"),
    ("Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008", "oops", "", "reboot"),
    ("Internal error: synchronous external abort: 96000410 [#1] SMP", "oops", "", "reboot"),
    ("Internal error: Oops: 0000000096000004 [#1] SMP", "oops", "", "reboot"),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [irq/288-aerdrv:412]", "lockup", "3", "reboot"),
    ("rcu: INFO: rcu_preempt self-detected stall on CPU", "lockup", "", "reboot"),
    ("INFO: task cache_mgr_event:620917 blocked for more than 120 seconds.", "hung-task", "cache_mgr_event", "inspect"),
    ("nvme nvme0: I/O 14 QID 2 timeout, aborting", "disk-reset", "nvme0", "inspect"),
    ("nvme nvme0: I/O tag 641 (c281) opcode 0x1 (I/O Cmd) QID 8 timeout, reset controller",
     "disk-reset", "nvme0", "inspect"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "disk-reset", "nvme0", "inspect"),
    ("nvme nvme0: Removing after probe failure status: -19", "disk-lost", "nvme0", "power-cycle"),
    ("blk_update_request: I/O error, dev nvme0n1, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
     "disk-error", "nvme0n1", "inspect"),
    ("Buffer I/O error on dev nvme0n1, logical block 0, async page read", "disk-error", "nvme0n1", "inspect"),
    ("EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #6684673: comm NetworkManager: reading",
     "file-system", "nvme0n1p2", "inspect"),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "file-system", "nvme0n1p2", "inspect"),
    ("thermal thermal_zone4: critical temperature reached (128 C), shutting down",
     "overheated", "thermal_zone4", "inspect"),
    ("CPU1: Core temperature above threshold, cpu clock throttled (total events = 1)", "throttled", "1", "inspect"),
    ("Out of memory: Killed process 4848 (VLLM::EngineCor) total-vm:172233344kB, anon-rss:5611288kB",
     "out-of-memory", "VLLM::EngineCor", "restart"),
    ("Memory cgroup out of memory: Killed process 24213 (python3) total-vm:44218812kB, anon-rss:32768000kB",
     "container-out-of-memory", "python3", "none"),
    ("{1}[Hardware Error]: event severity: recoverable", "hardware-error", "", "inspect"),
    ("{2}[Hardware Error]: event severity: corrected", "hardware-corrected", "", "none"),
    ("mce: [Hardware Error]: Machine check events logged", "hardware-error", "", "inspect"),
    ("EDAC MC0: 1 UE Unknown on unknown label ( page:0x400a1 offset:0x0 grain:0)", "hardware-error", "", "inspect"),
    ("EDAC MC0: 1 CE memory read error on DIMM_A2 (channel:0 page:0x0)", "hardware-corrected", "", "none"),
]  # fmt: skip
HARMLESS = [
    "mlx5_core 0002:01:00.1: mlx5_pcie_event:326:(pid 3202): Detected insufficient power on the PCIe slot (27W).",
    "nvme nvme0: 8/0/0 default/read/poll queues",
    "EXT4-fs (nvme0n1p2): mounted filesystem fc7a1f9e-4967-4f41-a1f5-1b5927e6c5f9 ro with ordered data mode.",
    "NVRM: GPU at PCI:0000:3b:00: GPU-417ead46-fcb2-4593-f174-2f1cda4562be",
    "INFO: lockdep is turned off.",
    "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
    "thermal thermal_zone0: failed to read out thermal zone (-61)",
]


def parsed(line: str) -> Event | None:
    return parse_event(Record(1, 1.0, line))


@pytest.mark.parametrize(("line", "kind", "device", "action"), LINES)
def test_a_real_line_has_its_kind_device_and_action(line: str, kind: str, device: str, action: str) -> None:
    event = present(parsed(line))
    assert event.kind == kind
    assert event.device == device
    assert event.effect.action == action
    assert "{" not in event.reason
    assert event.effect.hint


def test_there_are_real_lines_of_all_kinds_but_of_a_driver_that_was_loaded() -> None:
    assert {kind for _, kind, _, _ in LINES} == KINDS.keys() - {"driver-loaded"}


def test_each_hint_can_be_pasted_as_it_is_on_each_node() -> None:
    for hint in [effect.hint for kind in KINDS.values() for effect in (kind, *kind.codes.values())]:
        assert not re.search(r"-g '[^']*' -A|\bDEVICE\b|sparkd-(?:head|worker)", hint), hint


@pytest.mark.parametrize("line", HARMLESS)
def test_lines_of_healthy_machines_are_nothing(line: str) -> None:
    assert parsed(line) is None


@pytest.mark.parametrize("line", [line for line, *_ in LINES])
def test_no_user_forges_a_line_by_the_name_of_a_program_that_crashes(line: str) -> None:
    """The kernel begins a line with a name of 15 characters, and may end it with the name of a file."""
    for length in range(1, 16):
        name = line[:length]
        for rest in (
            f"[812]: segfault at 0 ip 0 sp 0 error 4 in {line}[400000+1000]",
            f"[812]: unhandled exception: DABT (lower EL), ESR 0x92000006, level 2 translation fault in {line}",
            f" (812): Uses obsolete ioctl {line}",
            ": page allocation failure: order:0, mode:0xcc0(GFP_KERNEL)",
            " invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE)",
        ):
            assert parsed(name + rest) is None, name + rest


@pytest.mark.parametrize("priority", [8, 12, 14, 24, 30, 191])
def test_what_a_program_writes_into_the_log_is_none_of_the_kernels_lines(priority: int) -> None:
    line = f"{priority},513,8000000,-;{LINES[3][0]}".encode()
    assert parse_record(line) is None
    assert parse_record(b"4" + line[len(str(priority)) :]) is not None


def test_what_the_kernel_quotes_is_printable_and_bounded() -> None:
    event = present(parsed(f"Out of memory: Killed process 1 (\x1b[2J\u202e{'x' * 500}) total-vm:1kB"))
    assert event.reason.isprintable()
    assert len(event.reason) < 150


def test_a_message_that_others_write_into_the_log_is_not_the_kernels_word() -> None:
    text = "NVRM: Xid (PCI:000f:01:00): 79, pid=4848, name=VLLM::Worker_TP"
    assert parse_record(f"12,513,8000000,-;{text}".encode()) is None
    assert parse_record(f"4,513,8000000,-;{text}".encode()) == Record(513, 8.0, text)


@pytest.mark.parametrize(
    "line",
    [b"", b";", b"4", b"4,1,2,-", b"4,1;text", b"a,1,2,-;text", b"-4,1,2,-;text", b" KEY=1,2,3,4;5",
     b"4," + b"9" * 5000 + b",2,-;text", "4,1,²,-;text".encode()],
)  # fmt: skip
def test_nonsense_is_no_record(line: bytes) -> None:
    assert parse_record(line) is None
