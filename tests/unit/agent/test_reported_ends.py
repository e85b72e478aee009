"""What people see of an engine's end, for ends that others have reported: its cause, and what to do."""

import time
from collections.abc import Iterable
from functools import reduce
from pathlib import Path

import pytest
from msgspec import Struct, toml

from sparkd.agent.daemon.ended_engine import OTHER_RANK
from sparkd.agent.daemon.engine_cause import MachineFacts, find_cause
from sparkd.agent.daemon.judgement import Evidence, judge_end
from sparkd.agent.engine.load_progress import LoadProgress, advance_progress
from sparkd.base.lib.errors import Cause, EngineEndedError, LaunchError
from sparkd.base.state.launch_history import End
from sparkd.base.status.model import Phase


class ReportedEnd(Struct, forbid_unknown_fields=True):
    source: str
    log: list[str]
    text: str
    hint: str = ""
    cause: str = "engine-error"
    serving: bool = False
    queries_peers: bool = False
    code: int = 1


class ReportedStart(Struct, forbid_unknown_fields=True):
    source: str
    error: str
    hint: str


class Reported(Struct, forbid_unknown_fields=True):
    ends: list[ReportedEnd]
    starts: list[ReportedStart]


REPORTED = toml.decode((Path(__file__).parent / "reported-ends.toml").read_bytes(), type=Reported)
WRITERS = {
    "W": "(Worker_TP0 pid=7) ERROR 01-01 00:00:00 [multiproc_executor.py:671] ",
    "C": "(EngineCore pid=9) ERROR 01-01 00:00:00 [core.py:800] ",
    "A": "(APIServer pid=1) ",
    "E": "(EngineCore pid=9) ",
}
LOADED = (
    "(APIServer pid=1) INFO 01-01 00:00:00 [utils.py:1] non-default args: {}",
    *(WRITERS[name].replace("ERROR", "INFO") + "ready" for name in "WC"),
    "(APIServer pid=1) INFO:     Application startup complete.",
)


def expand(lines: Iterable[str]) -> Iterable[tuple[int, str]]:
    """Each line as its writer prints it, with the stream that it comes by: vLLM's logger writes to stdout."""
    for line in lines:
        name, _, text = line.partition(" ")
        prefix = WRITERS.get(name, "")
        if text.startswith("ERROR ") and prefix:  # the line has its own level and time
            prefix = prefix.partition(") ")[0] + ") "
        whole = prefix + text
        yield 1 if " ERROR " in whole[:60] else 2, whole


def end_of(reported: ReportedEnd) -> tuple[End, str]:
    """The judged end, and the cause as the engine's rank gives it."""
    now, progress = time.monotonic(), LoadProgress()
    if reported.serving:
        progress = reduce(lambda before, line: advance_progress(before, line, now), LOADED, progress)
        assert progress.serving
    progress = reduce(
        lambda before, line: advance_progress(before, line[1], now, line[0]), expand(reported.log), progress
    )
    cause, text = find_cause(progress, str(reported.code), MachineFacts(), now, ready=reported.serving)
    error = EngineEndedError(f"rank 0 ended while x: {text}", cause=cause)
    return judge_end(error, Evidence(), Phase.LOADING, "now"), text


@pytest.mark.parametrize("reported", REPORTED.ends, ids=lambda reported: reported.source)
def test_a_reported_end_has_its_cause_and_what_to_do(reported: ReportedEnd) -> None:
    end, text = end_of(reported)
    assert reported.text in text
    assert end.cause == reported.cause
    assert reported.hint in end.hint
    assert bool(end.hint) is bool(reported.hint)
    assert bool(OTHER_RANK.search(text)) is reported.queries_peers


@pytest.mark.parametrize("reported", REPORTED.starts, ids=lambda reported: reported.source)
def test_a_container_that_docker_can_not_start_has_what_to_do(reported: ReportedStart) -> None:
    error = LaunchError(f"container sparkd-rank0 can't be started: {reported.error}")
    end = judge_end(error, Evidence(), Phase.LAUNCHING, "now")
    assert reported.hint in end.hint
    assert end.cause == Cause.LAUNCH_FAILED
    assert end.action == "inspect"


def test_a_warning_of_nccls_does_not_hide_that_a_loading_rank_was_killed() -> None:
    end, text = end_of(ReportedEnd("", ["E n:1:2 [0] NCCL WARN NET/IB : Unable to open device"], "", code=137))
    assert end.cause == Cause.KILLED_FROM_OUTSIDE
    assert "killed by signal 9" in text
