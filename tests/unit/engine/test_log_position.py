"""The position in an engine's log from which the next agent continues."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from sparkd.agent.engine.log_position import LogPosition
from sparkd.agent.engine.log_reader import LogReader
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import events
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.redactor import Redactor
from sparkd.base.vllm.log_lines import LogForwarder

BUSY_SECONDS = 4.0


class Engine:
    """Logs a line every millisecond, each with docker's stamp."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def follow(self, _since: str) -> Iterator[tuple[int, bytes]]:
        number = 0
        while not self.over.is_set():
            time.sleep(0.001)
            number += 1
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            yield 1, f"{stamp} INFO:     127.0.0.1:1 - answer {number}\n".encode()


def read_busy_log(file: BinaryIO, seconds: float) -> list[tuple[float, float]]:
    """When a position was kept, and which, both in seconds since the epoch."""
    engine, journal, kept = Engine(), Journal(file.fileno()), list[tuple[float, float]]()
    forwarder, own = LogForwarder(Redactor(), "-"), events(journal.put, Redaction())
    position = LogPosition(lambda since: kept.append((time.time(), float(since))), journal.checkpoint)
    reader = LogReader(engine.follow, forwarder, journal.put, own, lambda: None, position=position)
    reader.start()
    time.sleep(seconds)
    engine.over.set()
    journal.close(1)
    return kept


def test_the_kept_position_follows_a_busy_log_by_a_second_or_two(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("wb") as file:
        kept = read_busy_log(file, BUSY_SECONDS)
    assert len(kept) >= 2
    ages = [at - position for at, position in kept]
    assert min(ages) > 0.9, "a line that is held back for a second is behind it"
    assert min(ages) < 2.5, "the others may be older where others have the processor"
