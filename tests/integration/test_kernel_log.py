"""The log of a real kernel: its own records, somebody else's, a process that it killed, a reader without rights."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.kernel import Kernel
from sparkd.agent.preflight.checks.kernel_log import KernelLog
from sparkd.base.host import Host, kernel
from sparkd.base.host.files import Files
from sparkd.base.host.kernel_events import parse_event
from sparkd.base.host.oom_kills import find_oom_kills, names_container

REPOSITORY = Path(__file__).parents[2]
LIVE = Files("/")


def test_every_record_of_the_kernel_is_read_in_order_and_the_reader_does_not_wait_for_more() -> None:
    records = list(kernel.read_log(LIVE))
    assert [record.sequence for record in records] == sorted({record.sequence for record in records})
    assert all(record.seconds <= Host().uptime_seconds() for record in records)
    dmesg = subprocess.run(
        ["dmesg", "--kernel", "--raw"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    lines = [line for line in dmesg.splitlines() if line.startswith("<")]
    assert abs(len(records) - len(lines)) <= 50, "records logged between the two readings"
    # The oldest may be overwritten between the two readings.
    assert KernelLog().probe(Host()).begins_seconds >= (records[0].seconds - 0.001 if records[0].sequence else 0)


def test_what_a_program_writes_into_the_log_is_not_believed() -> None:
    tag = uuid.uuid4().hex[:8]
    message = f"NVRM: Xid (PCI:{tag}): 79, GPU has fallen off the bus."
    for priority in ("", "<0>", "<4>"):
        Path("/dev/kmsg").write_text(f"{priority}{message}\n")
    dmesg = subprocess.run(["dmesg", "--raw"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert dmesg.count(message) == 3, "the kernel has the messages"
    assert not [record for record in kernel.read_log(LIVE) if tag in record.text]
    assert tag not in str(KernelLog().probe(Host()).events)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group in which a process soon runs out of memory, of whichever version this machine has."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    parent = Path("/sys/fs/cgroup") if unified else Path("/sys/fs/cgroup/memory")
    group = parent / f"docker-{uuid.uuid4().hex * 2}.scope"
    if unified and "memory" not in (parent / "cgroup.subtree_control").read_text():
        (parent / "cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(48 << 20))
    try:
        yield group
    finally:
        group.rmdir()


def test_a_process_that_a_container_limit_killed_differs_from_one_of_a_node_that_ran_out(small_group: Path) -> None:
    name = f"hog {uuid.uuid4().hex[:6]}) x"
    hog = (
        "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "open('/proc/self/comm', 'w').write(sys.argv[2]); held = bytearray(256 << 20)"
    )
    victim = subprocess.Popen([sys.executable, "-c", hog, str(small_group / "cgroup.procs"), name])
    assert victim.wait(60) == -signal.SIGKILL
    (killed,) = (record for record in kernel.read_log(LIVE) if f"Killed process {victim.pid} ({name})" in record.text)
    assert killed.text.startswith("Memory cgroup out of memory: ")
    limited = parse_event(killed)
    assert limited is not None
    assert (limited.kind, limited.effect.action, limited.effect.preflight) == ("container-out-of-memory", "none", "")
    # The node's own killer says the same words without the first two: mm/oom_kill.c, __oom_kill_process.
    event = parse_event(kernel.Record(1, 1.0, killed.text.replace("Memory cgroup out", "Out")))
    assert event is not None
    assert (event.kind, event.device) == ("out-of-memory", name)


def test_the_kernels_own_record_of_a_kill_names_the_container_its_limit_and_the_largest(small_group: Path) -> None:
    hog = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); held = bytearray(256 << 20)"
    victim = subprocess.Popen([sys.executable, "-c", hog, str(small_group / "cgroup.procs")])
    assert victim.wait(60) == -signal.SIGKILL
    container_id = small_group.name[7:71]
    (kill,) = (kill for kill in find_oom_kills(kernel.read_log(LIVE)) if container_id in kill.group)
    assert names_container(kill.group, container_id)
    assert abs(time.monotonic() - kill.seconds) < 60
    whose = rf"\(pid {victim.pid}, [3-7]\d MiB\), at the memory limit of /{small_group.name}; "
    assert re.search(rf"^\S+ {whose}the largest processes then: \S+ [3-7]\d MiB \(pid {victim.pid}\)$", kill.text)


def look_with(capabilities: str) -> str:
    code = (
        "from sparkd.base.host import Host; from sparkd.agent.preflight.checks.kernel_log import KernelLog;"
        "verdict = KernelLog(uses_gpu=False).run(Host())[1]; print(verdict.level.value, verdict.reason)"
    )
    done = subprocess.run(
        ["setpriv", f"--bounding-set={capabilities}", "--no-new-privs", sys.executable, "-B", "-c", code],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": "src"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_unit_leaves_what_it_takes_to_read_a_restricted_log_and_without_it_nothing_is_held_up() -> None:
    unit = (REPOSITORY / "units/sparkd.service.in").read_text()
    (bounds,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in bounds.split())
    assert "can't be read" not in look_with(f"-all,{kept}")
    assert "ProtectKernelLogs" not in unit
    # The kernel requires CAP_SYSLOG where kernel.dmesg_restrict is set, as on Ubuntu.
    restricted = Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "1"
    refused = look_with("-all").startswith("warn the kernel's log can't be read: Operation not permitted")
    assert refused == restricted


def test_a_device_in_a_tree_is_not_read_for_it_is_the_log_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("1.0 1.0\n")
    os.mknod(tmp_path / "dev/kmsg", stat.S_IFCHR | 0o600, kernel.LOG_DEVICE)
    assert KernelLog().probe(Host(tmp_path)).absent


def test_the_running_kernel_is_named() -> None:
    facts, verdict = Kernel().run(Host())
    assert facts.release == os.uname().release
    assert re.match(r"\d+\.\d+", kernel.read_release(LIVE))
    assert verdict.level in (Level.OK, Level.WARN)
