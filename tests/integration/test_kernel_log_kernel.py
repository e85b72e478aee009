"""The log of a real kernel, followed: its own message within two seconds, and none that somebody writes into it."""

import asyncio
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tests.integration.test_kernel_log import small_group
from tests.unit import page_reports

from sparkd.agent.daemon.kernel_log import KernelLogWatch
from sparkd.base.host import kernel
from sparkd.base.host.files import Files
from sparkd.base.lib.log import events
from sparkd.base.lib.redaction import Redaction
from sparkd.base.status.publisher import Published, Reporter

__all__ = ["small_group"]
HOG = (
    "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
    "open('/proc/self/comm', 'w').write(sys.argv[2]); held = bytearray(256 << 20)"
)


def test_the_kernels_own_message_is_reported_within_two_seconds_and_a_forged_one_never(small_group: Path) -> None:
    """What was there before is not read: an earlier test may have made such a message."""
    lines, published, name = list[str](), list[Published](), f"hog {uuid.uuid4().hex[:6]}"
    reporter = Reporter(page_reports.serving(), (published.append,))
    watch = KernelLogWatch(reporter, events(lambda _, line: lines.append(line), Redaction()))
    fd = kernel.open_log_end(Files("/"))

    async def follow() -> float:
        task = asyncio.ensure_future(watch.follow(fd))
        await asyncio.sleep(0.5)
        for priority in ("", "<0>", "<3>", "<11>"):
            message = f"Memory cgroup out of memory: Killed process 1 (forged {name}) total-vm:1kB"
            Path("/dev/kmsg").write_text(f"{priority}{message}\n")
            Path("/dev/kmsg").write_text(f"{priority}NVRM: Xid (PCI:000f:01:00): 79, {name}\n")
        await asyncio.sleep(1)
        hog = subprocess.Popen([sys.executable, "-c", HOG, str(small_group / "cgroup.procs"), name])
        while hog.poll() is None:
            await asyncio.sleep(0.02)
        killed_at = time.monotonic()
        while not [line for line in lines if name in line] and time.monotonic() < killed_at + 10:
            await asyncio.sleep(0.02)
        seconds = time.monotonic() - killed_at
        task.cancel()
        return seconds

    assert asyncio.run(follow()) < 2
    assert [line.split()[1:3] for line in lines if name in line] == [["kind=container-out-of-memory", "action=none"]]
    assert not [line for line in lines if "forged" in line or "Xid" in line]
    assert published[-1].report.kernel_counts["container-out-of-memory none"] >= 1
