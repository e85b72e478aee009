"""The story against whole logs of vLLM 0.32 (CPU wheel, captured runs and failures)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from sparkd.engine.lines import LineSplitter
from sparkd.engine.story import BURST_SECONDS, Story, read
from sparkd.launch import script
from sparkd.launch.plan import Assertion, LineCount

LOGS = Path(__file__).parent / "engine-logs"


def lines_of(name: str) -> list[str]:
    splitter = LineSplitter()
    return [*splitter.feed((LOGS / f"{name}.log").read_bytes()), *splitter.flush()]


def story_of(name: str) -> Story:
    story = Story()
    for line in lines_of(name):
        story = read(story, line, now=0.0)
    return story


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
        ("E9-kvsmall", "ValueError: To serve at least one request with the model's max seq len (4096)"),
    ],
)
def test_the_first_causal_line_is_quoted_and_not_what_reports_it_later(log: str, cause: str) -> None:
    assert story_of(log).blame(now=0.0).startswith(cause)


def test_a_validation_error_carries_the_line_that_says_what_is_wrong() -> None:
    assert "User-specified max_model_len (100000) is greater" in story_of("E9-maxlen").blame(now=0.0)
    assert "Invalid JSON: expected value at line 1 column 20" in story_of("E7-badjson").blame(now=0.0)


def test_a_second_hand_report_serves_where_no_cause_was_named() -> None:
    assert story_of("E10a-head").blame(now=0.0).startswith("vllm.v1.engine.exceptions.EngineDeadError")


@pytest.mark.parametrize("log", ["tp1", "tp2-worker"])
def test_an_engine_that_ran_well_has_nothing_to_blame(log: str) -> None:
    assert story_of(log).blame(now=0.0) == ""


def steps_of(name: str) -> list[str]:
    story, steps = Story(), []
    for line in lines_of(name):
        story = read(story, line, now=0.0)
        if story.step not in steps:
            steps.append(story.step)
    return steps


def test_a_start_passes_its_steps_in_order() -> None:
    assert steps_of("tp1") == [
        "starting",
        "reading arguments",
        "reading the model's configuration",
        "starting the engine core",
        "waiting for all ranks",
        "building process groups",
        "loading weights",
        "profiling memory",
        "sizing the KV cache",
        "warming up",
        "starting the API server",
        "answering HTTP",
    ]
    assert story_of("tp1").kv_cache_tokens == 524_288


def test_a_start_on_ray_is_followed_through_the_lines_of_every_nodes_rank() -> None:
    assert steps_of("ray-head") == [
        "starting",
        "starting Ray",
        "waiting for the engine",
        "reading arguments",
        "reading the model's configuration",
        "starting the engine core",
        "waiting for all nodes in Ray",
        "waiting for all ranks",
        "building process groups",
        "loading weights",
        "profiling memory",
        "warming up",
        "sizing the KV cache",
        "starting the API server",
        "answering HTTP",
    ]
    assert story_of("ray-head").kv_cache_tokens == 1_048_576
    assert steps_of("ray-worker") == [
        "waiting for the Ray of the head",
        "starting Ray",
        "waiting for the engine",
        "waiting for all ranks",
        "building process groups",
        "loading weights",
        "profiling memory",
        "sizing the KV cache",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "(RayWorkerWrapper pid=7, ip=10.0.0.2) Loading safetensors checkpoint shards:  26% Completed | 12/46 [00:42<",
        "(EngineCore pid=1) (RayWorkerProc pid=7) (Worker pid=7) INFO 01-01 00:00:00 [w.py:1] Starting to load model m",
    ],
)
def test_whose_line_it_is_does_not_matter(line: str) -> None:
    assert read(Story(), line, now=0.0).step == "loading weights"


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-21 17:26:41,224 E 181 203] rpc_client.h:204: Failed to connect to GCS within 60 seconds. GCS may",
        "(raylet) Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ],
)
def test_what_ray_says_of_its_own_end_is_a_cause(line: str) -> None:
    assert read(Story(), line, now=0.0).blame(now=0.0) == line


def test_shards_are_counted_and_the_time_left_comes_from_their_own_pace() -> None:
    story = read(
        Story(), "(Worker pid=1) INFO 11-21 01:36:52 [cpu_model_runner.py:68] Starting to load model /m...", now=100.0
    )
    assert story.seconds_left(now=101.0) is None
    story = read(
        story, "Loading safetensors checkpoint shards:  26% Completed | 12/46 [00:42<01:59,  3.5s/it]", now=142.0
    )
    assert (story.done, story.total) == (12, 46)
    assert story.seconds_left(now=142.0) == pytest.approx(119.0)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Capturing CUDA graphs (decode, FULL):  50%|#####     | 2/4 [00:10<00:10,  5.0s/it]", "capturing graphs"),
        ("(Worker_TP0 pid=7) INFO 01-01 00:00:00 [backends.py:1] Starting torch.compile", "compiling"),
        (
            "(Worker_TP0 pid=7) INFO 01-01 00:00:00 [g.py:1] Graph capturing finished in 20 secs, took 1.2 GiB",
            "warming up",
        ),
        ("(Worker_TP0 pid=7) INFO 01-01 00:00:00 [g.py:1] Available KV cache memory: 30.1 GiB", "sizing the KV cache"),
    ],
)
def test_lines_of_a_gpu_engine_are_known(line: str, step: str) -> None:
    assert read(Story(), line, now=0.0).step == step


def test_an_error_that_the_engine_went_on_after_is_forgotten() -> None:
    story = read(Story(), "ImportError: cannot import name 'x'", now=0.0)
    assert story.blame(now=1.0) == "ImportError: cannot import name 'x'"
    story = read(story, "INFO:     Application startup complete.", now=2.0)
    assert story.blame(now=2.0) == ""


def test_an_old_error_of_a_serving_engine_is_not_blamed_for_a_new_failure() -> None:
    story = read(Story(), "ValueError: of a bad request", now=0.0)
    late = BURST_SECONDS + 1
    assert story.blame(now=late) == ""
    story = read(story, "RuntimeError: the real one", now=late)
    assert story.blame(now=late) == "RuntimeError: the real one"


def test_what_a_request_says_is_no_step() -> None:
    story = read(
        Story(),
        "(APIServer pid=1) INFO 01-01 00:00:00 [l.py:1] Received: 'INFO:     Application startup complete.'",
        now=0.0,
    )
    assert story == replace(Story(), step="starting")


@pytest.mark.parametrize("wanted", ["test -e /nowhere", LineCount("/nowhere", "a patch", 1)], ids=["command", "lines"])
def test_an_image_that_is_not_as_needed_names_the_cause(wanted: Assertion) -> None:
    text = script.render("t", script.engine(["true"]), [], [], asserts=[wanted])
    done = subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, check=False)
    story = Story()
    for line in done.stderr.splitlines():
        story = read(story, line, now=0.0)
    assert story.blame(now=0.0).startswith("the image is not what the recipe needs: ")
    assert "/nowhere" in story.blame(now=0.0)
