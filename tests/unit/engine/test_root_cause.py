"""Which line of an engine's log is the cause of its failure, and what is quoted beside it."""

import subprocess

import pytest
from tests.unit.engine.recorded_logs import progress_after, progress_of

from sparkd.agent.engine.load_progress import BURST_SECONDS, LoadProgress, advance_progress
from sparkd.base.plan import script
from sparkd.base.plan.model import Node

DEAD = "(APIServer pid=1) ERROR 01-01 00:00:00 [a.py:1] vllm.v1.engine.exceptions.EngineDeadError: E. See stack trace"
FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
CORE = "(EngineCore pid=9) ERROR 01-01 00:00:00 [c.py:1] "
IBV_FAILED = "spark1:77:78 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error X"


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
    assert progress_of(log).root_cause(0.0).startswith(cause)


def test_a_validation_error_carries_the_line_that_says_what_is_wrong() -> None:
    assert "User-specified max_model_len (100000) is greater" in progress_of("E9-maxlen").root_cause(0.0)
    assert "Invalid JSON: expected value at line 1 column 20" in progress_of("E7-badjson").root_cause(0.0)


@pytest.mark.parametrize("lines", [(DEAD,), (FAILED,), ("Traceback (most recent call last):", "INFO:     Started")])
def test_a_line_that_points_to_others_is_no_cause(lines: tuple[str, ...]) -> None:
    assert progress_after(*lines).root_cause(0.0) == ""


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
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
        ((IBV_FAILED, DEAD), IBV_FAILED),
        (("Fatal Python error: Segmentation fault", DEAD), "Fatal Python error: Segmentation fault"),
    ],
)
def test_the_cause_is_the_line_that_says_why(lines: tuple[str, ...], cause: str) -> None:
    assert progress_after(*lines).root_cause(0.0) == cause


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-21 17:26:41,224 E 181 203] rpc_client.h:204: Failed to connect to GCS within 60 seconds. GCS may",
        "(raylet) Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ],
)
def test_rays_own_errors_are_causes(line: str) -> None:
    assert progress_after(line).root_cause(0.0) == line


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


def test_an_image_without_ray_names_the_cause() -> None:
    node = Node(0, "127.0.0.1", "127.0.0.1", 1)
    text = script.render_script("t", script.ray_lines(node, 1, 29501, {}, []), [("PATH", "/nowhere")], [])
    ended = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, check=False)
    cause = progress_after(*ended.stderr.splitlines()).root_cause(0.0)
    assert cause == "the image is not what the recipe needs: executor: ray, and it has no ray"


RANK = "(Worker_TP0 pid=7) ERROR 01-01 00:00:00 [multiproc_executor.py:671] "
FOO, NINJA = f"{RANK}ValueError: foo", "ninja: build stopped: subcommand failed."


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((FOO, f"{RANK}{NINJA}", f"{RANK}RuntimeError: CUDA error: out of memory"), f"ValueError: foo: {NINJA}"),
        ((FOO, f"{CORE}{NINJA}"), "ValueError: foo"),
        ((FOO, f"{RANK}vllm.v1.engine.exceptions.EngineDeadError: x"), "ValueError: foo"),
        ((FOO, "n:1:2 [0] NCCL WARN harmless"), "ValueError: foo"),
        ((FOO, "n:1:2 [0] NCCL WARN Call to ibv_x failed"), "ValueError: foo"),
        (("n:1:2 [0] NCCL WARN harmless",), "n:1:2 [0] NCCL WARN harmless"),
        (("n:1:2 [0] NCCL WARN harmless", FOO), "ValueError: foo"),
    ],
)
def test_only_a_line_of_its_own_process_explains_a_cause(lines: tuple[str, ...], cause: str) -> None:
    assert progress_after(*lines).root_cause(0.0) == cause


def test_a_warning_before_the_error_does_not_end_the_time_in_which_the_error_counts() -> None:
    progress = advance_progress(LoadProgress(), "n:1:2 [0] NCCL WARN harmless", 0.0)
    assert advance_progress(progress, FOO, 58.0).root_cause(65.0) == "ValueError: foo"


def test_a_port_that_nccls_own_service_does_without_is_no_error() -> None:
    line = "[2025-06-05 10:45:19] n:1:2 [1] ras/client_support.cc:160 NCCL WARN Call to bind failed: Address in use"
    assert progress_after(line) == LoadProgress()


def test_a_cause_that_continues_for_ever_is_bounded() -> None:
    progress = advance_progress(LoadProgress(), "ValueError: Last error:", 0.0)
    for _ in range(1000):
        progress = advance_progress(progress, "x" * 1000 + " Last error:", 0.0)
    assert len(progress.cause) <= 4096
