from __future__ import annotations

import os
import threading

from sparkd.lib.journal import Journal


def drain(fd: int, into: list[bytes]) -> threading.Thread:
    def run() -> None:
        while chunk := os.read(fd, 1 << 16):
            into.append(chunk)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_lines_come_out_in_order_with_their_priority() -> None:
    reading, writing = os.pipe()
    journal = Journal(writing)
    got: list[bytes] = []
    reader = drain(reading, got)
    for number in range(5000):
        journal.put(6, f"line {number}")
    journal.close(10)
    os.close(writing)
    reader.join()
    os.close(reading)
    assert b"".join(got).decode() == "".join(f"<6>line {number}\n" for number in range(5000))


def test_a_reader_that_hangs_never_blocks_and_what_was_dropped_is_said_where_it_is_missing() -> None:
    reading, writing = os.pipe()
    journal = Journal(writing, capacity_bytes=100_000)
    for number in range(20_000):
        journal.put(6, f"line {number}")
    journal.put(3, "life.failed code=13", keep=True)
    got: list[bytes] = []
    reader = drain(reading, got)
    journal.close(10)
    os.close(writing)
    reader.join()
    os.close(reading)
    lines = b"".join(got).decode().splitlines()
    assert lines.pop() == "<3>life.failed code=13"
    due = dropped = 0
    for line in lines:
        if line.startswith("<4>journal.lines.dropped count="):
            dropped += int(line.rpartition("=")[2])
            due += int(line.rpartition("=")[2])
        else:
            assert line == f"<6>line {due}", "in order, and every gap is told where it is"
            due += 1
    assert due == 20_000
    assert dropped > 1_000


def test_a_closed_pipe_ends_the_writing_and_not_the_agent() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    journal = Journal(writing)
    journal.put(6, "nobody reads")
    journal.close(10)
    os.close(writing)
