"""The journal's writer: its bounds, and its end."""

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.unit.clock import unstalled

from sparkd.base.lib.journal_writer import CAPACITY_BYTES, Journal


@contextmanager
def journal(capacity_bytes: int = CAPACITY_BYTES) -> Iterator[tuple[Journal, list[str]]]:
    """A journal to a pipe that is read only once the block has ended; its lines are there afterwards."""
    reading, writing = os.pipe()
    made, lines = Journal(writing, capacity_bytes), list[str]()
    yield made, lines
    with os.fdopen(reading) as file:
        reader = threading.Thread(target=lambda: lines.extend(file.read().splitlines()))
        reader.start()
        made.close(10)
        os.close(writing)
        reader.join()


def test_lines_come_out_in_order_with_their_priority() -> None:
    with journal() as (made, lines):
        for number in range(5000):
            made.put(6, f"line {number}")
    assert lines == [f"<6>line {number}" for number in range(5000)]


def test_a_reader_that_hangs_never_blocks_and_what_was_dropped_is_said_where_it_is_missing() -> None:
    with journal(100_000) as (made, lines):
        for number in range(20_000):
            made.put(6, f"line {number}")
        made.put(3, "agent.run.failed code=13", keep=True)
    assert lines.pop() == "<3>agent.run.failed code=13"
    due = dropped = 0
    for line in lines:
        if line.startswith("<4>journal.lines.dropped count="):
            dropped += int(line.rpartition("=")[2])
            due += int(line.rpartition("=")[2])
        else:
            assert line == f"<6>line {due}", "in order, and every gap is named where it is"
            due += 1
    assert due == 20_000
    assert dropped > 1_000


def test_sparkds_own_events_are_bounded_too_and_what_was_dropped_is_counted() -> None:
    with journal(100_000) as (made, lines):
        for number in range(60_000):
            made.put(4, f"event {number}", keep=True)
    dropped = sum(int(line.rpartition("=")[2]) for line in lines if line.startswith("<4>journal.lines.dropped count="))
    assert dropped > 1_000
    assert sum(line.startswith("<4>event ") for line in lines) == 60_000 - dropped > 5_000


def test_a_closed_pipe_ends_the_writing_and_not_the_agent() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    journal = Journal(writing)
    journal.put(6, "nobody reads")
    began = unstalled()
    journal.close(10)
    assert unstalled() - began < 5
    assert journal.checkpoint()(), "given up"
    os.close(writing)


QUEUED_LINES, LINE_BYTES = 1000, len("<6>" + "x" * 1000 + "\n")


@pytest.fixture
def full() -> Iterator[tuple[Journal, int]]:
    """A journal with more lines than its pipe takes, and the pipe's other end, which nobody reads."""
    reading, writing = os.pipe()
    made = Journal(writing)
    for _ in range(QUEUED_LINES):
        made.put(6, "x" * 1000)
    yield made, reading
    os.close(reading)
    made.close(10)
    os.close(writing)


def test_a_checkpoint_passes_once_what_was_queued_before_it_is_written(full: tuple[Journal, int]) -> None:
    made, reading = full
    early = made.checkpoint()
    time.sleep(0.1)
    assert not early(), "nobody reads"
    deadline = time.monotonic() + 10
    while not early():
        if select.select([reading], [], [], 0.01)[0]:
            os.read(reading, 1 << 16)
        assert time.monotonic() < deadline
    made.put(6, "later")
    assert early()


@pytest.mark.parametrize(("patience_seconds", "limit"), [(0.2, 1.0), (2.0, 2.5)])
def test_the_end_does_not_wait_longer_than_its_patience_for_a_reader_that_hangs(
    full: tuple[Journal, int], patience_seconds: float, limit: float
) -> None:
    began, unstalled_began = time.monotonic(), unstalled()
    full[0].close(2.0, patience_seconds)
    assert patience_seconds <= time.monotonic() - began
    assert unstalled() - unstalled_began < limit


def test_the_end_waits_for_a_slow_reader(full: tuple[Journal, int]) -> None:
    made, reading = full

    def read_slowly() -> None:
        bytes_left = QUEUED_LINES * LINE_BYTES
        while bytes_left:
            bytes_left -= len(os.read(reading, 1 << 16))
            time.sleep(0.05)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    began = time.monotonic()
    made.close(10, 0.2)
    assert time.monotonic() - began > 0.5
    reader.join()
