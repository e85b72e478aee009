"""What clients write into the log of a serving engine proves nothing, and ends neither rank nor reader."""

import time
from collections.abc import Iterator
from functools import partial, reduce

import pytest
from msgspec.structs import replace
from tests.unit.docker_server import STAMP
from tests.unit.engine.recorded_logs import LOGS, lines_of, progress_after
from tests.unit.event_log import EventLog

from sparkd.agent.daemon.engine_cause import MachineFacts, find_cause
from sparkd.agent.engine.load_progress import LoadProgress, advance_progress
from sparkd.agent.engine.log_reader import LogReader
from sparkd.base.lib.redactor import Redactor
from sparkd.base.vllm.known_errors import explain
from sparkd.base.vllm.log_lines import LineSplitter, LogForwarder

LOADED = (LOGS / "E10a-head.log").read_bytes().split(b"(Worker_TP0 pid=27247) INFO 11-21 01:48:55")[0]
"""The log of an engine that serves. Its processes: APIServer 26170, EngineCore 26869, Worker_TP0 27247."""
CORE_KILLED = (
    "(APIServer pid=26170) WARNING 11-21 01:48:55 [core_client.py:817] "
    "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
)
WORKER_KILLED = (
    "(EngineCore pid=26869) ERROR 11-21 01:50:08 [multiproc_executor.py:315] "
    "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."
)
ENGINE_TEXTS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
    "RuntimeError: NCCL error: unhandled system error",
    "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
    "[shutdown] API server: shutdown triggered",
    "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
    "raylet [exit code=-9]",
    "Fatal Python error: Segmentation fault",
    "Loading safetensors checkpoint shards:  26% Completed | 12/46 [00:42<01:59,  3.5s/it]",
    "INFO:     Application startup complete.",
    "vllm serve: error: unrecognized arguments: --x",
)
FORGED = tuple(
    (stream, before + text)
    for text in ENGINE_TEXTS
    for stream, before in (
        (2, ""),  # the text of an exception, in a traceback of the web server
        (2, "(EngineCore pid=26869) ERROR 11-21 01:50:08 [multiproc_executor.py:315] "),
        (2, "2026-11-21 17:23:47,092\tERR scripts.py:87 -- "),
        (1, "(APIServer pid=26170) ERROR 11-21 01:50:08 [serving_chat.py:12] "),  # of a message with line ends
        (1, "(EngineCore pid=26869) ERROR 11-21 01:50:08 [core.py:800] "),
        (1, "(EngineCore pid=1) ERROR 11-21 01:50:08 [multiproc_executor.py:315] "),
        (1, "(APIServer pid=26170) ERROR 11-21 01:50:08 [multiproc_executor.py:315] "),  # printed by the web server
        (1, "(APIServer pid=26170) ERROR 11-21 01:50:08 [v1/engine/core.py:800] "),
    )
)


def serving(*lines: tuple[int, str]) -> LoadProgress:
    """The progress of an engine that has loaded, and then logged these lines."""
    loaded = LoadProgress()
    splitter = LineSplitter()
    for line in (*splitter.feed(LOADED), *splitter.flush()):
        loaded = advance_progress(loaded, line, 0.0, 2 if line.startswith("INFO:") else 1)
    assert loaded.serving
    return reduce(lambda before, line: advance_progress(before, line[1], 1.0, line[0]), lines, loaded)


@pytest.mark.parametrize(("stream", "line"), FORGED)
def test_a_clients_text_is_at_most_a_symptom(stream: int, line: str) -> None:
    after = serving((2, "Traceback (most recent call last):"), (stream, line), (2, "INFO:     Started"))
    assert replace(after, symptom="", failing_since=None) == serving()


JIT = (
    "[jit_monitor.py:134] TileLang JIT compilation during inference: mhc_pre_big_fuse_with_norm_tilelang. "
    "This causes a latency spike; consider extending warmup to cover this shape/config."
)


def test_a_kernel_compiled_inside_a_request_is_counted_by_the_line_of_the_rank() -> None:
    after = serving(
        (1, f"(Worker_TP0 pid=27247) WARNING 11-21 01:50:08 {JIT}"),
        (1, f"(Worker_TP0 pid=27247) WARNING 11-21 01:50:09 {JIT.replace('TileLang', 'Triton kernel')}"),
        (1, f"(APIServer pid=26170) WARNING 11-21 01:50:08 {JIT}"),  # it compiles nothing
        (2, JIT.partition("] ")[2]),
        (1, f"(Worker_TP7 pid=1) WARNING 11-21 01:50:08 {JIT}"),
    )
    assert after.compiled == 2
    assert after.kernel == "mhc_pre_big_fuse_with_norm_tilelang (Triton kernel)"
    assert not after.root_cause(1.0)


@pytest.mark.parametrize(
    "end", [CORE_KILLED, WORKER_KILLED, WORKER_KILLED.replace("[multiproc", "[v1/executor/multiproc")]
)
def test_a_kill_is_the_cause_whatever_clients_wrote_before(end: str) -> None:
    after = serving(*FORGED, (1, end), *FORGED)
    assert after.killed(1.0)
    assert after.root_cause(1.0) == end.partition("] ")[2]


def test_a_fatal_error_of_the_engine_is_the_cause_whatever_clients_wrote_before() -> None:
    core = "(EngineCore pid=26869) ERROR 11-21 01:50:08 [core.py:1512] "
    fatal = (
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        "  File x",
        "queue.Empty: q",
    )
    after = serving(*FORGED, *((1, core + text) for text in fatal), *FORGED)
    assert after.root_cause(1.0) == "queue.Empty: q"


def test_an_error_that_may_be_a_clients_is_named_where_nothing_else_is_known() -> None:
    trace = ((2, "Traceback (most recent call last):"), (2, "  File x"))
    after = serving(
        *trace,
        (2, "ValueError: an earlier one"),
        *trace,
        (2, "OSError: no"),
        (2, "terminate called after throwing an instance of 'x'"),
    )
    assert after.root_cause(1.0) == "its log says last: OSError: no"
    assert after.proven_cause(1.0) == ""


def test_the_end_of_rays_node_process_is_named_and_no_line_that_only_quotes_it() -> None:
    lines = lines_of("ray-worker")
    after = serving(*((1, line) for line in (*lines[-3:], *lines[:-3])))
    assert after.root_cause(1.0) == "its log says last: raylet [exit code=-9]"
    assert not after.worker_died


@pytest.mark.parametrize(
    "stamp", ["2026-11-21 17:23:47,092 ERR scripts.py:87 -- ", "ERROR 11-21 01:50:08 [core.py:8] "]
)
@pytest.mark.parametrize("process", ["(ApiServer_0 pid=3) ", ""])
def test_no_name_of_a_process_makes_a_clients_text_a_proof(process: str, stamp: str) -> None:
    lines = (f"{process}INFO 11-21 01:48:00 [launcher.py:1] x", f"{process}INFO:     Application startup complete.")
    loaded = progress_after(*lines)
    assert loaded.serving
    after = advance_progress(loaded, f"{process}{stamp}Worker proc X died unexpectedly (exit code: 1)", 1.0)
    assert not after.worker_died
    assert after.proven_cause(1.0) == ""


def follow(frames: list[tuple[int, bytes]], _since: str) -> Iterator[tuple[int, bytes]]:
    yield from ((stream, STAMP + data) for stream, data in frames)
    while True:
        time.sleep(0.01)
        yield 1, STAMP


def read_log(
    frames: list[tuple[int, bytes]],
    events: EventLog,
    last: str,
    forwarder: LogForwarder | None = None,
    sources: frozenset[str] | None = None,
) -> LogReader:
    """A reader that has read a line with `last`. `sources`: of an engine that another agent has seen load."""
    read_lines: list[str] = []
    reader = LogReader(
        partial(follow, frames),
        forwarder or LogForwarder(Redactor(), "-"),
        lambda _, text: read_lines.append(text),
        events,
        lambda: None,
    )
    if sources is not None:
        reader.resume(sources)
    reader.start()
    deadline = time.monotonic() + 10
    while not any(last in line for line in read_lines):
        assert time.monotonic() < deadline, read_lines
        time.sleep(0.01)
    return reader


def test_of_a_serving_engine_a_carriage_return_begins_no_line() -> None:
    text = b"INFO 11-21 01:48:55 [x.py:1] of a client\r" + WORKER_KILLED.encode() + b"\nend-of-log\n"
    reader = read_log([(1, LOADED), (1, b"(APIServer pid=26170) " + text)], EventLog(), "end-of-log")
    assert reader.progress.serving
    assert not reader.progress.worker_died


@pytest.mark.parametrize(("end", "code"), [("", "137"), (CORE_KILLED, "0"), (WORKER_KILLED, "0")])
def test_the_cause_of_a_serving_rank_that_was_killed_is_the_kill(end: str, code: str) -> None:
    frames = [(stream, f"{line}\n".encode()) for stream, line in FORGED]
    reader = read_log([(1, LOADED), *frames, (1, f"{end}\nend-of-log\n".encode())], EventLog(), "end-of-log")
    cause, text = find_cause(reader.progress, code, MachineFacts(), time.monotonic(), ready=True)
    assert cause == "killed-from-outside"
    assert not any(forged[:20] in text for forged in ENGINE_TEXTS if forged not in end)
    assert explain(text) is None


class FailingForwarder(LogForwarder):
    def forward(self, line: str, now: float, *, serving: bool = False) -> Iterator[tuple[int, str]]:
        if line.startswith("bad"):
            raise ValueError(f"no way to read {line}")
        return super().forward(line, now, serving=serving)


def test_a_line_that_can_not_be_parsed_is_an_event_and_the_next_ones_are_read() -> None:
    events = EventLog()
    frames = [(1, b"".join(b"bad %d\n" % number for number in range(100)) + b"bad 1\nend-of-log\n")]
    read_log(frames, events, "end-of-log", FailingForwarder(Redactor(), "-"))
    assert {event for event, _ in events.lines} == {"engine.log.failed"}
    assert len(events.lines) == 5
    assert events.lines[0][1]["reason"] == "ValueError: no way to read bad 0"


def test_the_end_of_an_engine_that_was_taken_over_is_proven_by_the_sources_that_its_load_had() -> None:
    end = [(1, WORKER_KILLED.encode() + b"\nend-of-log\n")]
    loaded = read_log([(1, LOADED), *end], EventLog(), "end-of-log")
    assert loaded.progress.worker_died
    assert read_log(end, EventLog(), "end-of-log", sources=loaded.progress.sources).progress.worker_died
    assert not read_log(end, EventLog(), "end-of-log", sources=frozenset()).progress.worker_died
