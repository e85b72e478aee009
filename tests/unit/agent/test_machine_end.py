"""How the last boot ended, by what is left of it."""

import json
import os

import pytest
from msgspec import structs
from tests.tree import Tree
from tests.unit.agent.late_files import RECIPE, LateFiles

from sparkd.agent.daemon.machine_end import BootFacts, classify, read_facts
from sparkd.base.host.files import Files
from sparkd.base.host.last_boot import BootLine
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.redaction import Redaction
from sparkd.base.state.launch_history import KILLED, read_history

END = 1_790_000_000.0


BOOTED = END + 60


QUIET = BootLine(END, "systemd", "Started session-3.scope - Session 3 of User spark.")


PANIC = "Kernel panic - not syncing: Fatal exception in interrupt"


NO_MEMORY = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned"


OOM = "Out of memory: Killed process 4848 (VLLM::EngineCor) total-vm:172233344kB, anon-rss:5611288kB"


HOT = "thermal thermal_zone4: critical temperature reached (128 C), shutting down"


FAILED = "agent.run.failed code=10"


STOPPED = BootLine(END, "journald", "Journal stopped")


def boot(*lines: tuple[float, str, str], dumps: tuple[str, ...] = (), status: int = 0) -> BootFacts:
    """Lines: seconds before the end, source, text; the newest first."""
    return BootFacts((QUIET, *(BootLine(END - ago, source, text) for ago, source, text in lines)), dumps, status)


def as_json(cause: str, reason: str) -> str:
    """The line of a run's end with log.format = "json"."""
    lines = list[str]()
    log = ProcessLog(lambda _level, line, **_: lines.append(line))
    log.configure(as_json=True, level="info")
    log.bind(node="spark1", role="head")
    log.events(Redaction()).error("agent.run.failed", code=16, cause=cause, phase="serving", reason=reason)
    return lines[0]


@pytest.mark.parametrize(
    ("facts", "kind", "evidence"),
    [
        (BootFacts((STOPPED, QUIET)), "ordered", "Journal stopped"),
        (boot((1, "systemd", "Reached target shutdown.target - System Shutdown.")), "ordered", "System Shutdown"),
        (boot((1, "systemd", "Reached target reboot.target - System Reboot.")), "ordered", "System Reboot"),
        (boot((3, "systemd", "Reached target Power-Off.")), "ordered", "Power-Off"),
        (boot(), "power-lost", "the journal ends at 2026-09-21T"),
        (boot((50, "journald", "Journal stopped"), (50, "journald", "Journal started")), "ordered", "Journal stopped"),
        (boot((50, "journald", "Journal started"), (51, "journald", "Journal stopped")), "power-lost", "power cut"),
        (boot(dumps=(PANIC,)), "kernel", "Fatal exception in interrupt"),
        (boot(dumps=("Internal error: Oops: 96000004 [#1] SMP",)), "kernel", "Internal error"),
        (BootFacts((STOPPED,), ("Internal error: Oops: 96000004 [#1] SMP",)), "ordered", "Journal stopped"),
        (BootFacts((STOPPED,), (PANIC,)), "kernel", "Fatal exception"),
        (boot(dumps=("Kernel panic - not syncing: System is deadlocked on memory",)), "memory", "deadlocked"),
        (boot(status=0x20), "watchdog", "the hardware watchdog"),
        (BootFacts((STOPPED,), bootstatus=0x20), "ordered", "Journal stopped"),
        (boot(dumps=(PANIC,), status=0x20), "kernel", "Fatal exception"),
        (boot((5, "kernel", "Internal error: Oops: 0000000096000004 [#1] SMP")), "kernel", "Internal error"),
        (boot((5, "kernel", OOM)), "memory", "EngineCor"),
        (boot((5, "kernel", NO_MEMORY)), "power-lost", "power cut"),
        (boot((600, "kernel", OOM)), "power-lost", "power cut"),
        (boot((5, "sparkd", f"{FAILED} cause=memory-guard phase=serving reason=x")), "memory", "memory-guard"),
        (boot((5, "sparkd", f'{FAILED} cause=engine-exit reason="x cause=memory-guard"')), "power-lost", "power cut"),
        (boot((5, "sparkd", as_json("memory-guard", "x"))), "memory", "memory-guard"),
        (boot((5, "sparkd", as_json("engine-exit", 'x "cause": "memory-guard"'))), "power-lost", "power cut"),
        (boot((5, "kernel", HOT)), "heat", "128 C"),
        (
            boot((5, "kernel", HOT), (1, "systemd", "Reached target poweroff.target - System Power Off.")),
            "heat",
            "128",
        ),
        (boot(status=0x01), "heat", "too hot"),
        (boot((5, "kernel", "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [a:1]")), "unknown", "kernel code"),
        (boot((5, "kernel", "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.")), "unknown", "Xid 79"),
        (BootFacts(), "unknown", "from now on: sudo mkdir -p /var/log/journal && sudo journalctl --flush"),
    ],
)
def test_an_end_is_named_by_its_evidence_in_one_line(facts: BootFacts, kind: str, evidence: str) -> None:
    classified, line = classify(facts)
    assert classified == kind
    assert evidence in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("source", "text"),
    [("systemd", OOM), ("sparkd", HOT), ("kernel", "Reached target reboot.target"), ("kernel", "Journal stopped"),
     ("sparkd", "Journal stopped"), ("systemd", "agent.run.failed code=10 cause=memory-guard"),
     ("kernel", "nf_conntrack: nf_conntrack: table full, dropping packet")],
)  # fmt: skip
def test_evidence_counts_only_from_a_source_that_can_know_it(source: str, text: str) -> None:
    assert classify(boot((1, source, text)))[0] == "power-lost"


def write_last_boot(tree: Tree, *lines: BootLine) -> None:
    """A machine that has just booted, and its journal of the boot before, the newest line first."""
    tree.file("/proc/uptime", "0.00 1.00\n")
    tree.file("/.sparkd/last-boot.json", json.dumps([structs.asdict(line) for line in lines]))


def write_dump(tree: Tree, path: str, text: str, at: float) -> None:
    tree.file(path, text)
    os.utime(tree.root / path[1:], (at, at))


def test_what_the_kernel_left_is_read_where_systemd_and_where_the_kernel_keep_it(tree: Tree) -> None:
    write_last_boot(tree, QUIET)
    panicked = f"Panic#1 Part1\n<4>[  812.1] CPU: 3 PID: 0\n<0>[  812.345678] {PANIC}\n"
    write_dump(tree, "/var/lib/systemd/pstore/1790000002/dmesg.txt", panicked, BOOTED + 8)
    write_dump(
        tree, "/sys/fs/pstore/dmesg-efi-1", "Oops#1 Part1\n<1>[    1.2][  T812] BUG: unable to handle page\n", END + 2
    )
    write_dump(tree, "/var/lib/systemd/pstore/1700000000/dmesg.txt", panicked.replace("Fatal", "Old"), BOOTED - 90)
    write_dump(tree, "/sys/fs/pstore/pmsg-ramoops-0", panicked, END + 2)
    tree.file("/sys/class/watchdog/watchdog0/bootstatus", "32\n")
    tree.file("/sys/class/watchdog/watchdog1/bootstatus", "0x1\n")
    tree.file("/sys/class/watchdog/watchdog2/bootstatus", "nonsense\n")
    assert read_facts(Files(str(tree.root)), BOOTED) == BootFacts((QUIET,), ("BUG: unable to handle page", PANIC), 0x21)


def test_no_program_forges_a_dump_by_its_name(tree: Tree) -> None:
    write_last_boot(tree, QUIET)
    write_dump(
        tree, "/sys/fs/pstore/dmesg-efi-1", f"<6>[ 1.2] Kernel panic - [812]: segfault at 0 in {PANIC}[1000]\n", END
    )
    assert read_facts(Files(str(tree.root)), BOOTED).dumps == ()


def test_no_name_of_a_file_forges_a_panic_by_a_line_end(tree: Tree) -> None:
    write_last_boot(tree, QUIET)
    oops = "Internal error: Oops: 96000004 [#1] SMP"
    write_dump(
        tree, "/sys/fs/pstore/dmesg-efi-1", f"<4>[ 1.2] {PANIC}\n<4>[ 1.2]  is a bad name\n<1>[ 3.4] {oops}\n", END
    )
    assert read_facts(Files(str(tree.root)), BOOTED).dumps == (oops,)


def test_a_machine_that_kept_nothing_has_no_facts(tree: Tree) -> None:
    assert read_facts(Files(str(tree.root)), BOOTED) == BootFacts()


def test_the_first_agent_of_a_boot_reports_the_last_ones_end_once_and_the_killed_agent_gets_it_as_its_cause(
    tree: Tree,
) -> None:
    late = LateFiles(tree)
    late.appear(late.recipe, RECIPE)
    late.appear(late.secret, "abc\n")
    boot_id = late.tree.root / "proc/sys/kernel/random/boot_id"
    late.tree.file("/proc/uptime", "100.00 1.00\n")
    assert "machine.end.classified end=unknown" in late.start()
    assert "machine.end.classified" not in late.start()
    boot_id.write_text("next\n")
    write_last_boot(late.tree, STOPPED, QUIET)
    assert "machine.end.classified end=ordered" in late.start()
    assert KILLED in str(read_history(Files(str(late.tree.root))).ends[-1])
    boot_id.write_text("third\n")
    write_last_boot(late.tree, QUIET)
    assert "machine.end.classified end=power-lost" in late.start()
    known = read_history(Files(str(late.tree.root)))
    assert known.ends[-1].reason.startswith("the machine ended while the agent ran: power-lost: the journal ends at ")
    assert known.machine_end is not None
    assert known.machine_end.boot_id == "third"
