"""The load's progress and the engine's end against whole logs of vLLM 0.32 (CPU wheel, captured runs and failures)."""

import re
import subprocess
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest

from sparkd.agent.engine.load_progress import BURST_SECONDS, LoadProgress, advance_progress
from sparkd.base.plan import script
from sparkd.base.plan.model import Node
from sparkd.base.vllm.log_lines import LineSplitter

LOGS = Path(__file__).parent / "engine-logs"


def lines_of(name: str) -> list[str]:
    splitter = LineSplitter()
    return [*splitter.feed((LOGS / f"{name}.log").read_bytes()), *splitter.flush()]


def follow(lines: list[str]) -> list[LoadProgress]:
    """After each line, all of them at the moment 0."""
    return list(accumulate(lines, partial(advance_progress, now=0.0), initial=LoadProgress()))


def progress_of(name: str) -> LoadProgress:
    return follow(lines_of(name))[-1]


@pytest.mark.parametrize("log", sorted(path.stem for path in LOGS.glob("*.log")))
def test_the_paths_of_vllms_debug_level_change_nothing(log: str) -> None:
    lines = [re.sub(r"(?<= \[)(?=\w+\.py:\d)", "v1/.../executor/", line) for line in lines_of(log)]
    assert lines != lines_of(log) or log == "E7-badjson"
    assert follow(lines) == follow(lines_of(log))


def cause_of(name: str) -> str:
    return progress_of(name).root_cause(now=0.0)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("E10b-head", "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."),
        ("E11-head", "TimeoutError: RPC call to execute_model timed out."),
        ("E1b-worker", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor."),
        ("E5-worker", "AssertionError: collective_rpc should not be called on follower node"),
        ("E6-head", "torch.distributed.DistNetworkError: The server socket has failed to listen"),
        ("E7-badjson", "vllm serve: error: argument --compilation-config/-cc: 1 validation error for"),
        ("E8-missing", "FileNotFoundError: Weight files referenced in index but missing: {'/models/missing/"),
        ("ray-head", "RayWorkerProc rank=[1] died unexpectedly, shutting down executor."),
        ("ray-worker", "raylet [exit code=-9]"),
        ("E9-apiport", "OSError: [Errno 98] Address already in use"),
        ("E10a-head", "[shutdown] MPClient: engine core exited unexpectedly"),
        ("E9-kvsmall", "ValueError: To serve at least one request with the model's max seq len (4096)"),
    ],
)
def test_the_first_causal_line_is_quoted(log: str, cause: str) -> None:
    assert cause_of(log).startswith(cause)


def test_a_validation_error_carries_the_line_that_says_what_is_wrong() -> None:
    assert "User-specified max_model_len (100000) is greater" in cause_of("E9-maxlen")
    assert "Invalid JSON: expected value at line 1 column 20" in cause_of("E7-badjson")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("tp1", "[shutdown] API server: shutdown triggered"),
        ("tp2-worker", ""),
        ("worker-stopped-in-load", "[shutdown] Executor: waiting for worker exit count=1"),
    ],
)
def test_an_engine_that_ran_well_has_no_cause_but_the_signal_that_stopped_it(log: str, cause: str) -> None:
    assert cause_of(log) == cause
    assert (progress_of(log).stopped_by_signal(0.0), progress_of(log).killed(0.0)) == (bool(cause), False)


DEAD = "(APIServer pid=1) ERROR 01-01 00:00:00 [a.py:1] vllm.v1.engine.exceptions.EngineDeadError: E. See stack trace"
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
    ("lines", "killed", "stopped"),
    [
        (WORKER_KILLED, True, False),
        (WORKER_KILLED[:2], False, True),
        ((f"{CORE}RuntimeError: boom", *WORKER_KILLED), False, False),
        ((f"{FAILED} {{'EngineCore': -9}}",), True, False),
        # Seen before its parent could read the code.
        ((f"{FAILED} {{}}",), True, False),
        ((f"{FAILED} {{'EngineCore': 1}}",), False, False),
        ((f"{CORE}RuntimeError: boom", f"{FAILED} {{}}"), False, False),
        (("[shutdown] API server: shutdown triggered", f"{FAILED} {{}}"), False, True),
        ((*WORKER_KILLED, f"{FAILED} {{}}"), True, False),
    ],
)
def test_a_process_that_is_killed_during_the_load_is_no_orderly_stop(
    lines: tuple[str, ...], killed: bool, stopped: bool
) -> None:
    progress = follow(list(lines))[-1]
    assert (progress.killed(0.0), progress.stopped_by_signal(0.0)) == (killed, stopped)


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
    assert (progress.root_cause(now), progress.killed(now)) == ("ValueError: boom", False)


def test_a_dead_core_is_the_cause_though_its_worker_loads_on_and_fails_later() -> None:
    lines = lines_of("core-killed-in-load")
    progress = LoadProgress()
    for number, line in enumerate(lines):
        progress = advance_progress(progress, line, 10.0 * number)
    assert "Starting to load model" in "".join(lines)
    assert "BrokenPipeError" in lines[-1]
    assert progress.killed(10.0 * len(lines))
    assert progress.worker_died


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((DEAD,), ""),
        ((f"{FAILED} {{'EngineCore': 1}}",), ""),
        # The last line of a trace is the cause, whatever the name of its class.
        (
            (f"{CORE}Traceback (most recent call last):", f'{CORE}  File "x", line 1', f"{CORE}queue.Empty: q", DEAD),
            "queue.Empty: q",
        ),
        (
            (
                "Traceback (most recent call last):",
                "(APIServer pid=1) INFO 01-01 00:00:00 [x.py:1] another process: says this meanwhile",
                "    raise value",
                "ray.exceptions.RayTaskError(ValueError): boom",
            ),
            "ray.exceptions.RayTaskError(ValueError): boom",
        ),
        (("Traceback (most recent call last):", "INFO:     Started"), ""),
        # NCCL's reason is on the last of four lines.
        (
            (
                "torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled, NCCL version 2.27.5",
                "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
                "Last error:",
                "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
                "frame #0: c10::Error",
            ),
            (
                "torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled, NCCL version 2.27.5: "
                "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.: "
                "Last error: Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
            ),
        ),
        (
            (
                "torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled, NCCL version 2.28.9",
                "ncclRemoteError: A call failed possibly due to a network error.",
                "Last error:",
                "NET/IB: Got completion from peer with error 12",
                "frame #0: c10::Error",
            ),
            (
                "torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled, NCCL version 2.28.9: "
                "ncclRemoteError: A call failed possibly due to a network error.: Last error: "
                "NET/IB: Got completion from peer with error 12"
            ),
        ),
        (("spark1:77:78 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error X", DEAD), "spark1:77:78"),
        (("Fatal Python error: Segmentation fault", DEAD), "Fatal Python error: Segmentation fault"),
    ],
)
def test_a_line_that_points_to_others_is_never_the_cause(lines: tuple[str, ...], cause: str) -> None:
    root_cause = follow(list(lines))[-1].root_cause(now=0.0)
    assert root_cause.startswith(cause)
    assert bool(root_cause) is bool(cause)


@pytest.mark.parametrize("log", ["E10a-head", "E10b-head", "E1b-worker", "ray-worker", "worker-killed-in-load"])
def test_a_process_that_is_gone_without_a_word_was_killed(log: str) -> None:
    progress = progress_of(log)
    assert (progress.killed(0.0), progress.stopped_by_signal(0.0)) == (True, False)


@pytest.mark.parametrize(("code", "killed"), [("-9", True), ("None", True), ("1", False), ("-11", False)])
def test_of_a_workers_exit_codes_signal_9_and_an_unread_one_mean_a_kill(code: str, killed: bool) -> None:
    line = f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor."
    assert advance_progress(LoadProgress(), line, 0.0).killed(0.0) is killed


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
    progress = follow(list(lines))[-1]
    assert (progress.root_cause(0.0), progress.killed(0.0)) == (BROKEN_SHARING, False)


@pytest.mark.parametrize("pause_seconds", [61.0, 3600.0])
def test_an_error_that_the_load_got_over_does_not_hide_a_later_kill(pause_seconds: float) -> None:
    progress = advance_progress(advance_progress(LoadProgress(), BROKEN_SHARING, 10.0), GRAPHS, 10.0)
    died_at = 10.0 + pause_seconds
    progress = advance_progress(progress, UNREAD, died_at)
    assert (progress.root_cause(died_at), progress.killed(died_at)) == (UNREAD, True)


ENGINE = "reading arguments, reading the model's configuration, starting the engine core, "
LOADING = "waiting for all ranks, building process groups, loading weights, profiling memory, "
RAY = "starting Ray, waiting for the engine, "


@pytest.mark.parametrize(
    ("log", "steps", "kv_cache_tokens"),
    [
        ("tp1", ENGINE + LOADING + "sizing the KV cache, warming up, starting the API server, answering HTTP", 524_288),
        # On Ray, lines of every node's rank.
        (
            "ray-head",
            (
                f"{RAY}{ENGINE}waiting for all nodes in Ray, {LOADING}"
                "warming up, sizing the KV cache, starting the API server, answering HTTP"
            ),
            1_048_576,
        ),
        ("ray-worker", f"waiting for the Ray of the head, {RAY}{LOADING}sizing the KV cache", None),
    ],
)
def test_a_start_passes_its_steps_in_order(log: str, steps: str, kv_cache_tokens: int | None) -> None:
    passed = follow(lines_of(log))
    assert list(dict.fromkeys(state.step for state in passed if state.step != "starting")) == steps.split(", ")
    assert kv_cache_tokens in (None, passed[-1].kv_cache_tokens)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-21 17:26:41,224 E 181 203] rpc_client.h:204: Failed to connect to GCS within 60 seconds. GCS may",
        "(raylet) Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ],
)
def test_rays_own_errors_are_causes(line: str) -> None:
    assert advance_progress(LoadProgress(), line, now=0.0).root_cause(now=0.0) == line


def test_shards_are_counted_and_the_time_left_comes_from_their_own_pace() -> None:
    line = "(Worker pid=1) INFO 11-21 01:36:52 [cpu_model_runner.py:68] Starting to load model /m..."
    progress = advance_progress(LoadProgress(), line, now=100.0)
    assert progress.seconds_left(now=101.0) is None
    progress = advance_progress(
        progress, "Loading safetensors checkpoint shards:  26% Completed | 12/46 [00:42<01:59,  3.5s/it]", now=142.0
    )
    assert (progress.done, progress.total) == (12, 46)
    assert progress.seconds_left(now=142.0) == pytest.approx(119.0)


@pytest.mark.parametrize(
    "line",
    [
        "Loading safetensors using InstantTensor loader:  26% Completed | 40.3G/155G [00:02<00:06, 18.1GB/s]",
        "Loading safetensors using Runai Model Streamer:  26% Completed | 50/194 [00:02<00:06, 20.81it/s]",
        "Loading safetensors using Fastsafetensor loader:  26%|##6       | 5/19 [00:02<00:06,  2.3it/s]",
    ],
)
def test_other_loaders_have_progress_too(line: str) -> None:
    progress = advance_progress(LoadProgress(), line, now=0.0)
    assert (progress.step, progress.done, progress.total) == ("loading weights", 26, 100)


ENGINE_CORE, WORKER = (
    "(EngineCore pid=64) INFO 11-24 04:37:51 [b.py:1]",
    "(Worker_TP0 pid=7) INFO 01-01 00:00:00 [g.py:1]",
)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (f"(RayWorkerWrapper pid=7, ip=10.0.0.2) {SHARD}", "loading weights"),
        (f"(Core pid=1) (RayWorkerProc pid=7) {WORKER} Starting to load model m", "loading weights"),
        (f"{ENGINE_CORE} Loading model from scratch...", "loading weights"),
        (f"{ENGINE_CORE} Using cache directory: /root/x for vLLM's torch.compile", "compiling"),
        (f"{ENGINE_CORE} Dynamo bytecode transform time: 4.25 s", "compiling"),
        ("Capturing CUDA graphs (decode, FULL):  50%|#####     | 2/4 [00:10<00:10,  5.0s/it]", "capturing graphs"),
        (f"{WORKER} Starting torch.compile", "compiling"),
        (f"{WORKER} Graph capturing finished in 20 secs, took 1.2 GiB", "warming up"),
        (f"{WORKER} Available KV cache memory: 30.1 GiB", "sizing the KV cache"),
    ],
)
def test_lines_of_a_gpu_engine_are_known_whichever_process_they_are_of(line: str, step: str) -> None:
    assert advance_progress(LoadProgress(), line, now=0.0).step == step


def test_an_error_that_the_engine_survived_is_forgotten() -> None:
    progress = advance_progress(LoadProgress(), "ImportError: cannot import name 'x'", now=0.0)
    assert progress.root_cause(now=1.0) == "ImportError: cannot import name 'x'"
    progress = advance_progress(progress, "INFO:     Application startup complete.", now=2.0)
    assert progress.root_cause(now=2.0) == ""


def test_an_old_error_of_a_serving_engine_is_not_blamed_for_a_new_failure() -> None:
    progress = advance_progress(LoadProgress(), "ValueError: of a bad request", now=0.0)
    late = BURST_SECONDS + 1
    assert progress.root_cause(now=late) == ""
    progress = advance_progress(progress, "RuntimeError: the real one", now=late)
    assert progress.root_cause(now=late) == "RuntimeError: the real one"


def test_a_quoted_request_is_no_step() -> None:
    progress = advance_progress(
        LoadProgress(),
        "(APIServer pid=1) INFO 01-01 00:00:00 [l.py:1] Received: 'INFO:     Application startup complete.'",
        now=0.0,
    )
    assert (progress.step, progress.serving) == ("starting", False)


def test_an_image_without_ray_names_the_cause() -> None:
    node = Node(0, "127.0.0.1", "127.0.0.1", 1)
    text = script.render_script("t", script.ray_lines(node, 1, 29501, {}, []), [("PATH", "/nowhere")], [])
    ended = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, check=False)
    cause = follow(ended.stderr.splitlines())[-1].root_cause(now=0.0)
    assert cause == "the image is not what the recipe needs: executor: ray, and it has no ray"
