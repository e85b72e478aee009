"""The kernel's log, followed while the agent runs: each kind and device once, also in a flood."""

import asyncio
import errno
import os
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from tests.unit import page_reports
from tests.unit.limits import peak_bytes

from sparkd.agent.daemon.kernel_log import ID, KEPT_SECONDS, MOST_DEVICES, MOST_FINDINGS, REPEAT_SECONDS, KernelLogWatch
from sparkd.agent.status.metrics import render_metrics
from sparkd.base.host import kernel
from sparkd.base.host.files import Files
from sparkd.base.lib.log import events
from sparkd.base.lib.redaction import Redaction
from sparkd.base.status.model import FindingReport, NodeReport, dump, parse
from sparkd.base.status.publisher import Published, Reporter
from sparkd.base.status.view import View, overview

XID = "NVRM: Xid (PCI:000f:01:00): {}, pid=4848, name=VLLM::Worker_TP"
LOST = XID.format(79)


class Node:
    """A watch of the kernel's log with a clock, and what it has logged and published."""

    def __init__(self) -> None:
        self.now, self.lines, self.published = 1000.0, list[str](), list[Published]()
        self.reporter = Reporter(page_reports.serving(), (self.published.append,))
        self.watch = KernelLogWatch(
            self.reporter, events(lambda _, line: self.lines.append(line), Redaction(["s3cr3t-word"])), lambda: self.now
        )

    def read(self, *records: str, end: str = "\n") -> None:
        """What the kernel prints, through a pipe."""
        reader, writer = os.pipe2(os.O_NONBLOCK)
        with os.fdopen(writer, "wb", 0) as pipe:
            for record in records:
                pipe.write(f"{record}{end}".encode())
                assert self.watch.read_batch(partial(os.read, reader))
        os.close(reader)

    def start_next_agent(self) -> None:
        """On the report of the agent before it, as after a reload."""
        self.watch = KernelLogWatch(self.reporter, self.watch.events, lambda: self.now)

    @property
    def report(self) -> NodeReport:
        return self.reporter.report

    def shown(self) -> list[FindingReport]:
        return [finding for finding in self.report.findings if finding.id == ID]


@pytest.fixture
def node() -> Node:
    return Node()


def record(text: str, number: int = 1, priority: int = 4) -> str:
    return f"{priority},{number},8000000,-;{text}"


def test_a_message_is_logged_reported_counted_and_shown_at_once(node: Node) -> None:
    node.read(record(LOST), " SUBSYSTEM=pci", " DEVICE=+pci:000f:01:00.0")
    (line,) = node.lines
    assert line.startswith("kernel.message.logged kind=xid action=power-cycle ")
    assert "unplug it for 60 s" in line
    report = node.published[0].report
    assert [(finding.level, finding.action) for finding in node.shown()] == [("warn", "power-cycle")]
    assert parse(dump(report)) == report
    now = datetime.now(UTC)
    assert 'sparkd_kernel_messages_total{action="power-cycle",kind="xid"} 1.0' in render_metrics(report, now)[0]
    texts = (note.text for note in overview(report, View(now, True)).notes)
    note, hint, *_ = (text for text in texts if "power-cycle" in text or "Xid" in text)
    assert note.startswith("kernel-message: Xid 79: the GPU has fallen off the bus (000f:01:00), ")
    assert hint.startswith(f"on {report.node}: power-cycle this node: sudo poweroff")


def test_a_message_that_requires_nothing_is_counted_and_logged_but_no_warning(node: Node) -> None:
    node.read(record("r8169 0000:03:00.0 enp3s0: Link is Up - 1Gbps/Full - flow control rx/tx"))
    assert node.report.kernel_counts == {"link-up none": 1}
    assert [line.split()[0] for line in node.lines] == ["kernel.message.logged"]
    assert "enp3s0" not in str(overview(node.report, View(datetime.now(UTC), True)).notes)


@pytest.mark.parametrize("priority", [8, 12, 28])
def test_what_a_program_writes_into_the_kernels_log_is_not_believed(node: Node, priority: int) -> None:
    node.read(record(LOST, priority=priority), record(LOST, priority=priority), "nonsense", f"4;{LOST}")
    assert node.lines == []
    assert node.published == []
    assert node.report.kernel_counts == {}
    assert node.shown() == []


def test_a_flood_of_equal_lines_is_one_event_and_a_count(node: Node) -> None:
    began = time.process_time()
    for _ in range(1000):
        node.read("\n".join([record(XID.format(43))] * 100))
    assert len(node.lines) == 1
    assert len(node.shown()) == 1
    assert node.report.kernel_counts == {"xid restart": 100_000}
    assert time.process_time() - began < 60


@pytest.mark.parametrize("hours", [0, 23, 24, 72])
def test_each_later_agent_keeps_a_finding_until_the_end_of_its_day(node: Node, hours: int) -> None:
    node.read(record(LOST))
    (finding,) = node.shown()
    finding = replace(finding, at=(datetime.now(UTC) - timedelta(hours=hours)).isoformat())
    node.reporter.update(findings=(finding,))
    node.start_next_agent()
    node.read(record("nothing"))
    assert node.shown() == ([finding] if hours < 24 else [])
    node.now += (24 - hours) * 3600
    node.read(record("nothing"))
    assert node.shown() == []


@pytest.mark.parametrize("at", [UNSET, "", "x"])
def test_a_finding_of_an_agent_that_gave_it_no_time_is_kept_for_a_day_from_now(node: Node, at: str | UnsetType) -> None:
    old = FindingReport(ID, "warn", "Xid 79, 29 Feb 10:00 UTC", "", "power-cycle", at)
    node.reporter.update(findings=(old,))
    node.start_next_agent()
    node.read(record("nothing"))
    assert node.shown() == [old]
    node.now += KEPT_SECONDS
    node.read(record("nothing"))
    assert node.shown() == []


def test_a_message_is_logged_again_after_an_hour_and_for_another_device_at_once(node: Node) -> None:
    node.read(record(LOST), record(LOST.replace("000f", "0001")))
    assert len(node.lines) == 2
    node.now += REPEAT_SECONDS - 1
    node.read(record(LOST))
    assert len(node.lines) == 2
    node.now += 1
    node.read(record(LOST))
    assert len(node.lines) == 3
    assert "count=4" in node.lines[-1]
    assert len(node.shown()) == 2, "the last of its kind and device"
    node.now += KEPT_SECONDS
    node.read(record("nothing that matters"))
    assert node.shown() == []


def test_processes_of_a_user_flood_neither_the_journal_nor_the_report(node: Node) -> None:
    killed = (f"Out of memory: Killed process {n} (p{n}) total-vm:1kB" for n in range(1000))
    node.read(*(record(text) for text in killed), record(LOST))
    assert len(node.lines) == MOST_DEVICES + 1, "another kind is not hidden"
    assert len(node.shown()) <= MOST_FINDINGS
    assert node.report.kernel_counts["out-of-memory restart"] == 1000


def test_no_number_of_other_messages_hides_one_that_needs_a_reboot(node: Node) -> None:
    node.read(*(record(XID.format(code)) for code in (8, 13, 31, 32, 43, 45, 63, 94, 109, 119, 79)))
    assert len(node.lines) == 11, "each code is another message"
    node.lines.clear()
    node.read(*(record(LOST.replace("000f", f"{device:04x}")) for device in range(16, 32)))
    assert len(node.lines) == 16, "of a GPU each"


def test_texts_from_outside_are_without_secrets_and_bounded(node: Node) -> None:
    node.read(record(f"Out of memory: Killed process 1 (s3cr3t-word {'x' * 400}) total-vm:1kB"))
    assert "s3cr3t-word" not in node.lines[0]
    assert len(node.shown()[0].reason) < 200


def test_a_line_without_an_end_takes_no_memory(node: Node) -> None:
    with peak_bytes() as peak:
        for _ in range(200):
            node.read(f"4,1,1,-;{'x' * 16_000}", end="")
        assert peak() < 20 * kernel.RECORD_BYTES
    node.read(f"\n{record(LOST)}")
    assert len(node.lines) == 1


def test_records_that_were_overwritten_are_reported_once_and_the_rest_is_read(node: Node) -> None:
    overwritten = OSError(errno.EPIPE, "x")
    answers: list[bytes | OSError] = [overwritten, overwritten, f"{record(LOST)}\n".encode(), BlockingIOError()]

    def read(_size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert node.watch.read_batch(read)
    assert [line.split()[0] for line in node.lines] == ["kernel.log.overrun", "kernel.message.logged"]


def test_a_new_record_is_reported_within_two_seconds_and_the_loop_rests_between(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    kernel_end = os.open(tmp_path / "dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
    fd = kernel.open_log_end(Files(str(tmp_path)))
    node = Node()

    async def follow() -> float:
        """The CPU time of half a second without records."""
        task = asyncio.ensure_future(node.watch.follow(fd))
        await asyncio.sleep(0.3)
        used = time.process_time()
        await asyncio.sleep(0.5)
        used = time.process_time() - used
        os.write(kernel_end, f"{record(LOST)}\n".encode())
        deadline = time.monotonic() + 2
        while not node.published and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        task.cancel()
        return used

    assert asyncio.run(follow()) < 0.1
    assert node.shown()
    os.close(kernel_end)


@pytest.mark.parametrize("is_file", [False, True])
def test_a_node_without_a_log_of_the_kernel_has_nothing_to_follow(tmp_path: Path, is_file: bool) -> None:
    if is_file:
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/kmsg").write_text("")
    with pytest.raises(FileNotFoundError):
        kernel.open_log_end(Files(str(tmp_path)))
