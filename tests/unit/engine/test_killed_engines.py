"""Which ends of an engine begin with a killed process, which with a signal to stop, and which with neither."""

import pytest
from tests.unit.engine.recorded_logs import lines_of, progress_after, progress_of

from sparkd.agent.engine.load_progress import BURST_SECONDS, LoadProgress, advance_progress


def kind_of_end(progress: LoadProgress, now: float = 0.0) -> str:
    """How the engine's end began: by a process that was killed, by a signal to stop, or by neither."""
    if progress.killed(now):
        assert not progress.stopped_by_signal(now)
        return "killed"
    return "stopped" if progress.stopped_by_signal(now) else ""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("tp1", "[shutdown] API server: shutdown triggered"),
        ("tp2-worker", ""),
        ("worker-stopped-in-load", "[shutdown] Executor: waiting for worker exit count=1"),
    ],
)
def test_an_engine_that_ran_well_has_no_cause_but_the_signal_that_stopped_it(log: str, cause: str) -> None:
    progress = progress_of(log)
    assert progress.root_cause(0.0) == cause
    assert kind_of_end(progress) == ("stopped" if cause else "")


FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s):"
CORE = "(EngineCore pid=9) ERROR 01-01 00:00:00 [c.py:1] "
MAIN = "(MainProcess pid=25969) INFO 11-21 02:10:01 [multiproc_executor.py:479] "
NOT_BORN = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace"
WORKER_KILLED = (
    f"{MAIN}[shutdown] Executor: waiting for worker exit count=1",
    f"{MAIN}[shutdown] Executor: all workers exited gracefully",
    "Traceback (most recent call last):",
    '  File "/opt/vllm/bin/vllm", line 6, in <module>',
    "    sys.exit(main())",
    NOT_BORN,
)
"""Shortened from worker-killed-in-load.log, of vLLM 0.32."""


@pytest.mark.parametrize(
    ("lines", "end"),
    [
        (WORKER_KILLED, "killed"),
        (WORKER_KILLED[:2], "stopped"),
        ((f"{CORE}RuntimeError: boom", *WORKER_KILLED), ""),
        ((f"{FAILED} {{'EngineCore': -9}}",), "killed"),
        # Seen before its parent could read the code.
        ((f"{FAILED} {{}}",), "killed"),
        ((f"{FAILED} {{'EngineCore': 1}}",), ""),
        ((f"{CORE}RuntimeError: boom", f"{FAILED} {{}}"), ""),
        (("[shutdown] API server: shutdown triggered", f"{FAILED} {{}}"), "stopped"),
        ((*WORKER_KILLED, f"{FAILED} {{}}"), "killed"),
    ],
)
def test_a_process_that_is_killed_during_the_load_is_no_orderly_stop(lines: tuple[str, ...], end: str) -> None:
    assert kind_of_end(progress_after(*lines)) == end


SHARD = "Loading safetensors checkpoint shards:  26% Completed | 12/46 [00:42<01:59,  3.5s/it]"


@pytest.mark.parametrize(
    "lines",
    [
        # Another worker loads on.
        ((0, f"{CORE}ValueError: boom"), (1, SHARD), *((2, line) for line in WORKER_KILLED)),
        ((0, f"{CORE}ValueError: boom"), (1, SHARD), (2, f"{FAILED} {{}}")),
        # It takes more than a burst to end.
        ((0, f"{CORE}ValueError: boom"), (BURST_SECONDS + 1, f"{FAILED} {{'EngineCore': -9}}")),
        ((0, f"{CORE}ValueError: boom"), *((BURST_SECONDS + 1, line) for line in WORKER_KILLED)),
    ],
)
def test_a_process_that_logged_an_error_during_the_load_was_not_killed(lines: tuple[tuple[float, str], ...]) -> None:
    progress = LoadProgress()
    for at, line in (*lines, (lines[-1][0] + 1, SHARD)):  # what it leaves behind loads on
        progress = advance_progress(progress, line, at)
    now = lines[-1][0] + 2 * BURST_SECONDS
    assert progress.root_cause(now) == "ValueError: boom"
    assert not progress.killed(now)


def test_a_dead_core_is_the_cause_though_its_worker_loads_on_and_fails_later() -> None:
    lines = lines_of("core-killed-in-load")
    progress = LoadProgress()
    for number, line in enumerate(lines):
        progress = advance_progress(progress, line, 10.0 * number)
    assert "Starting to load model" in "".join(lines)
    assert "BrokenPipeError" in lines[-1]
    assert progress.killed(10.0 * len(lines))
    assert progress.worker_died


@pytest.mark.parametrize("log", ["E10a-head", "E10b-head", "E1b-worker", "ray-worker", "worker-killed-in-load"])
def test_a_process_that_ended_before_it_was_ready_and_logged_no_error_was_killed(log: str) -> None:
    assert kind_of_end(progress_of(log)) == "killed"


@pytest.mark.parametrize(("code", "killed"), [("-9", True), ("None", True), ("1", False), ("-11", False)])
def test_of_a_workers_exit_codes_signal_9_and_an_unread_one_mean_a_kill(code: str, killed: bool) -> None:
    line = f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor."
    assert progress_after(line).killed(0.0) is killed


BROKEN_SHARING = "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'"
UNREAD = "Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor."
GRAPHS = "Capturing CUDA graphs (FULL): 100%|##########| 11/11 [00:00<00:00, 52.12it/s]"


@pytest.mark.parametrize(
    "lines",
    [
        (GRAPHS, BROKEN_SHARING, GRAPHS, BROKEN_SHARING, f"{CORE}{UNREAD}", f"{FAILED} {{}}"),
        (GRAPHS, BROKEN_SHARING, GRAPHS, f"{CORE}{UNREAD}", f"{FAILED} {{}}"),
    ],
    ids=["both ranks print it", "the other rank has loaded on"],
)
def test_a_rank_that_printed_why_it_exits_was_not_killed(lines: tuple[str, ...]) -> None:
    progress = progress_after(*lines)
    assert progress.root_cause(0.0) == BROKEN_SHARING
    assert not progress.killed(0.0)


@pytest.mark.parametrize("pause_seconds", [61.0, 3600.0])
def test_an_error_that_the_load_got_over_does_not_hide_a_later_kill(pause_seconds: float) -> None:
    progress = advance_progress(advance_progress(LoadProgress(), BROKEN_SHARING, 10.0), GRAPHS, 10.0)
    died_at = 10.0 + pause_seconds
    progress = advance_progress(progress, UNREAD, died_at)
    assert progress.root_cause(died_at) == UNREAD
    assert progress.killed(died_at)


@pytest.mark.parametrize("code", ["-9", "None"])
def test_nothing_explains_a_kill(code: str) -> None:
    killed = f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor."
    assert progress_after(killed, "ninja: build stopped: subcommand failed.").root_cause(0.0) == killed
