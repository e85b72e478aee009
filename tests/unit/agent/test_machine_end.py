"""How the last boot ended, by what is left of it."""

import json
import os
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.agent.test_awaited import RECIPE, Late

from sparkd.agent.daemon.machine_end import BootFacts, classify, read_facts
from sparkd.base.host.files import Files
from sparkd.base.host.journal import BootLine, parse_boot_line, read_last_boot
from sparkd.base.lib.errors import Cause
from sparkd.base.lib.redactor import Redactor
from sparkd.base.state.launch_history import KILLED, End, LaunchHistory, MachineEnd, read_history

END = 1_790_000_000.0
BOOTED = END + 60
QUIET = BootLine(END, "systemd", "Started session-3.scope - Session 3 of User spark.")
PANIC = "Kernel panic - not syncing: Fatal exception in interrupt"
NO_MEMORY = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned"
OOM = "Out of memory: Killed process 4848 (VLLM::EngineCor) total-vm:172233344kB, anon-rss:5611288kB"
HOT = "thermal thermal_zone4: critical temperature reached (128 C), shutting down"
FAILED = "agent.run.failed code=10"
STOPPED = BootLine(END, "journald", "Journal stopped")


def facts(*lines: tuple[float, str, str], dumps: tuple[str, ...] = (), status: int = 0) -> BootFacts:
    """Lines: seconds before the end, source, text; the newest first."""
    return BootFacts((QUIET, *(BootLine(END - ago, source, text) for ago, source, text in lines)), dumps, status)


@pytest.mark.parametrize(
    ("found", "kind", "says"),
    [
        (BootFacts((STOPPED, QUIET)), "ordered", "Journal stopped"),
        (facts((1, "systemd", "Reached target shutdown.target - System Shutdown.")), "ordered", "System Shutdown"),
        (facts((1, "systemd", "Reached target reboot.target - System Reboot.")), "ordered", "System Reboot"),
        (facts((3, "systemd", "Reached target Power-Off.")), "ordered", "Power-Off"),
        (facts(), "power-lost", "the journal ends at 2026-09-21T"),
        (facts((50, "journald", "Journal stopped"), (50, "journald", "Journal started")), "ordered", "Journal stopped"),
        (facts((50, "journald", "Journal started"), (51, "journald", "Journal stopped")), "power-lost", "power cut"),
        (facts(dumps=(PANIC,)), "kernel", "Fatal exception in interrupt"),
        (facts(dumps=("Internal error: Oops: 96000004 [#1] SMP",)), "kernel", "Internal error"),
        (BootFacts((STOPPED,), ("Internal error: Oops: 96000004 [#1] SMP",)), "ordered", "Journal stopped"),
        (BootFacts((STOPPED,), (PANIC,)), "kernel", "Fatal exception"),
        (facts(dumps=("Kernel panic - not syncing: System is deadlocked on memory",)), "memory", "deadlocked"),
        (facts(status=0x20), "watchdog", "the hardware watchdog"),
        (BootFacts((STOPPED,), bootstatus=0x20), "ordered", "Journal stopped"),
        (facts(dumps=(PANIC,), status=0x20), "kernel", "Fatal exception"),
        (facts((5, "kernel", "Internal error: Oops: 0000000096000004 [#1] SMP")), "kernel", "Internal error"),
        (facts((5, "kernel", OOM)), "memory", "EngineCor"),
        (facts((5, "kernel", NO_MEMORY)), "power-lost", "power cut"),
        (facts((600, "kernel", OOM)), "power-lost", "power cut"),
        (facts((5, "sparkd", f"{FAILED} cause=memory-guard phase=serving reason=x")), "memory", "memory-guard"),
        (facts((5, "sparkd", f'{FAILED} cause=engine-exit reason="x cause=memory-guard"')), "power-lost", "power cut"),
        (facts((5, "kernel", HOT)), "heat", "128 C"),
        (
            facts((5, "kernel", HOT), (1, "systemd", "Reached target poweroff.target - System Power Off.")),
            "heat",
            "128",
        ),
        (facts(status=0x01), "heat", "too hot"),
        (facts((5, "kernel", "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [a:1]")), "unknown", "kernel code"),
        (facts((5, "kernel", "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.")), "unknown", "Xid 79"),
        (BootFacts(), "unknown", "no journal of that boot is kept"),
    ],
)
def test_an_end_is_named_by_its_evidence_in_one_line(found: BootFacts, kind: str, says: str) -> None:
    named, evidence = classify(found)
    assert named == kind
    assert says in evidence
    assert "\n" not in evidence


@pytest.mark.parametrize(
    ("source", "text"),
    [("systemd", OOM), ("sparkd", HOT), ("kernel", "Reached target reboot.target"), ("kernel", "Journal stopped"),
     ("sparkd", "Journal stopped"), ("systemd", "agent.run.failed code=10 cause=memory-guard")],
)  # fmt: skip
def test_evidence_counts_only_of_who_can_know_it(source: str, text: str) -> None:
    assert classify(facts((1, source, text)))[0] == "power-lost"


def line(message: str, **fields: str) -> bytes:
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": "1790000000000000", **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}, "kernel"),
        ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1"}, None),
        ({"_TRANSPORT": "kernel"}, None),
        ({"_TRANSPORT": "driver"}, "journald"),
        ({"_TRANSPORT": "journal", "_PID": "1"}, "systemd"),
        ({"_TRANSPORT": "syslog", "_PID": "1", "SYSLOG_FACILITY": "0"}, None),
        ({"_TRANSPORT": "journal", "_PID": "812", "SYSLOG_IDENTIFIER": "kernel"}, None),
        ({"_TRANSPORT": "stdout", "_UID": "0", "_SYSTEMD_UNIT": "sparkd-head.service"}, "sparkd"),
        ({"_TRANSPORT": "stdout", "_UID": "64000", "_SYSTEMD_UNIT": "sparkd-head.service"}, None),
        ({"_TRANSPORT": "stdout", "_UID": "0", "_SYSTEMD_UNIT": "evil.service"}, None),
    ],
)
def test_a_user_forges_no_line_of_the_last_boot(fields: dict[str, str], source: str | None) -> None:
    found = parse_boot_line(line("Journal stopped", **fields), str)
    assert (found and found.source) == source
    assert found is None or found.at_seconds == END


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"_TRANSPORT": "driver", "MESSAGE": {}}', b"\xff" * 100])
def test_nonsense_in_the_journal_is_no_evidence(data: bytes) -> None:
    found = parse_boot_line(data, str)
    assert found is None or found.text == ""


def test_what_a_line_says_is_public_without_its_secrets() -> None:
    printed = line("agent.run.failed reason=token=abcdefgh12345", _UID="0", _SYSTEMD_UNIT="sparkd-head.service")
    found = parse_boot_line(printed, Redactor())
    assert found is not None
    assert found.text == "agent.run.failed reason=token=***"


JOURNALCTL = """#!/bin/sh
case "$*" in
*_TRANSPORT*SYSTEMD_UNIT*) exit 1;;
*--lines=300*) cat {0}/machine;;
*--lines=100*) cat {0}/own;;
esac
"""


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, to be written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "journalctl"


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_loud_engine_crowds_out_no_line_of_the_kernel_or_systemd(journalctl: Path) -> None:
    write_program(journalctl, JOURNALCTL.format(journalctl.parent))
    own = line("engine| token=abcdefgh12345", _UID="0", _SYSTEMD_UNIT="sparkd-head.service") + b"\n"
    (journalctl.parent / "own").write_bytes(own.replace(b"1790000000000000", b"1790000001000000") + own)
    stopped = line("Journal stopped", _TRANSPORT="driver") + b"\n"
    (journalctl.parent / "machine").write_bytes(stopped.replace(b"1790000000000000", b"1790000000500000"))
    found = read_last_boot(Files())
    assert [(one.source, one.at_seconds - END) for one in found] == [("sparkd", 1), ("journald", 0.5), ("sparkd", 0)]
    assert "abcdefgh12345" not in str(found)


def test_a_journal_that_is_too_slow_is_not_one_that_is_not_kept(journalctl: Path) -> None:
    write_program(journalctl, "#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(OSError, match=r"found nothing in 0\.2 s"):
        read_last_boot(Files(), 0.2)
    write_program(journalctl, "#!/bin/sh\nexit 1\n")
    assert read_last_boot(Files()) == (), "no such boot"


def test_a_machine_without_journalctl_keeps_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_last_boot(Files()) == ()


def machine(tree: Tree, lines: tuple[BootLine, ...]) -> None:
    tree.file("/proc/uptime", "0.00 1.00\n")
    tree.file(
        "/.sparkd/last-boot.json", json.dumps([{n: getattr(one, n) for n in one.__struct_fields__} for one in lines])
    )


def dump(tree: Tree, path: str, text: str, at: float) -> None:
    tree.file(path, text)
    os.utime(tree.root / path[1:], (at, at))


def test_what_the_kernel_left_is_read_where_systemd_and_where_the_kernel_keep_it(tree: Tree) -> None:
    machine(tree, (QUIET,))
    panicked = f"Panic#1 Part1\n<4>[  812.1] CPU: 3 PID: 0\n<0>[  812.345678] {PANIC}\n"
    dump(tree, "/var/lib/systemd/pstore/1790000002/dmesg.txt", panicked, BOOTED + 8)
    dump(tree, "/sys/fs/pstore/dmesg-efi-1", "Oops#1 Part1\n<1>[    1.2][  T812] BUG: unable to handle page\n", END + 2)
    dump(tree, "/var/lib/systemd/pstore/1700000000/dmesg.txt", panicked.replace("Fatal", "Old"), BOOTED - 90)
    dump(tree, "/sys/fs/pstore/pmsg-ramoops-0", panicked, END + 2)
    tree.file("/sys/class/watchdog/watchdog0/bootstatus", "32\n")
    tree.file("/sys/class/watchdog/watchdog1/bootstatus", "0x1\n")
    tree.file("/sys/class/watchdog/watchdog2/bootstatus", "nonsense\n")
    found = read_facts(Files(str(tree.root)), BOOTED)
    assert found == BootFacts((QUIET,), ("BUG: unable to handle page", PANIC), 0x21)


def test_no_program_forges_a_dump_by_its_name(tree: Tree) -> None:
    machine(tree, (QUIET,))
    dump(tree, "/sys/fs/pstore/dmesg-efi-1", f"<6>[ 1.2] Kernel panic - [812]: segfault at 0 in {PANIC}[1000]\n", END)
    assert read_facts(Files(str(tree.root)), BOOTED).dumps == ()


def test_no_name_of_a_file_forges_a_panic_by_a_line_end(tree: Tree) -> None:
    machine(tree, (QUIET,))
    oops = "Internal error: Oops: 96000004 [#1] SMP"
    dump(tree, "/sys/fs/pstore/dmesg-efi-1", f"<4>[ 1.2] {PANIC}\n<4>[ 1.2]  is a bad name\n<1>[ 3.4] {oops}\n", END)
    assert read_facts(Files(str(tree.root)), BOOTED).dumps == (oops,)


def test_a_machine_without_any_of_it_is_read_calmly(tree: Tree) -> None:
    assert read_facts(Files(str(tree.root)), BOOTED) == BootFacts()


KILLED_END = End(KILLED, at="2026-09-21T14:00:00.000+00:00", cause=Cause.AGENT_KILLED)


def noted(kind: str, last: End | None = KILLED_END, booted_at: str = "2026-09-21T14:13:20.000+00:00") -> End | None:
    launches = LaunchHistory(last_exit=last)
    return launches.record_machine_end(MachineEnd("now", kind, "evidence", "at"), booted_at).last_exit


def test_an_agent_that_ended_with_its_machine_gets_the_machines_end_as_its_reason() -> None:
    end = noted("power-lost")
    assert end is not None
    assert str(end) == "the machine ended while the agent ran: power-lost: evidence"
    assert (end.cause, end.hint) == (Cause.AGENT_KILLED, "journalctl -b -1 -e")
    assert LaunchHistory(last_exit=end).last_cause == end, "a message to people has it"


def test_other_ends_keep_their_reason() -> None:
    stopped = End("stop requested", code=0)
    assert noted("ordered") == KILLED_END
    assert noted("power-lost", stopped) == stopped
    assert noted("power-lost", None) is None
    earlier = "2026-09-21T13:59:59.000+00:00"
    assert noted("power-lost", booted_at=earlier) == KILLED_END, "an agent of this boot, that launched nothing"


def test_the_first_agent_of_a_boot_reports_it_once_and_the_killed_agent_gets_it_as_its_cause(tree: Tree) -> None:
    late = Late(tree)
    late.appear(late.recipe, RECIPE)
    late.appear(late.secret, "abc\n")
    boot_id = late.tree.root / "proc/sys/kernel/random/boot_id"
    late.tree.file("/proc/uptime", "100.00 1.00\n")
    assert "machine.end.classified end=unknown" in late.start()
    assert "machine.end.classified" not in late.start()
    boot_id.write_text("next\n")
    machine(late.tree, (STOPPED, QUIET))
    assert "machine.end.classified end=ordered" in late.start()
    assert KILLED in str(read_history(Files(str(late.tree.root))).ends[-1])
    boot_id.write_text("third\n")
    machine(late.tree, (QUIET,))
    assert "machine.end.classified end=power-lost" in late.start()
    known = read_history(Files(str(late.tree.root)))
    assert known.ends[-1].reason.startswith("the machine ended while the agent ran: power-lost: the journal ends at ")
    assert known.machine_end is not None
    assert known.machine_end.boot_id == "third"
