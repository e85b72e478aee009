"""The steps of a load, by whole logs of vLLM 0.32 and by lines of engines on a GPU."""

import re

import pytest
from tests.unit.engine.recorded_logs import LOGS, follow, lines_of, progress_after

from sparkd.agent.engine.load_progress import LoadProgress, advance_progress

SHARD = "Loading safetensors checkpoint shards:  26% Completed | 12/46 [00:42<01:59,  3.5s/it]"


@pytest.mark.parametrize("log", sorted(path.stem for path in LOGS.glob("*.log")))
def test_the_paths_of_vllms_debug_level_change_nothing(log: str) -> None:
    lines = [re.sub(r"(?<= \[)(?=\w+\.py:\d)", "v1/.../executor/", line) for line in lines_of(log)]
    assert lines != lines_of(log) or log == "E7-badjson"
    assert follow(lines) == follow(lines_of(log))


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


def test_shards_are_counted_and_the_time_left_comes_from_their_own_pace() -> None:
    line = "(Worker pid=1) INFO 11-21 01:36:52 [cpu_model_runner.py:68] Starting to load model /m..."
    progress = advance_progress(LoadProgress(), line, now=100.0)
    assert progress.seconds_left(now=101.0) is None
    progress = advance_progress(progress, SHARD, now=142.0)
    assert progress.done == 12
    assert progress.total == 46
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
    assert progress_after(line) == LoadProgress("loading weights", 26, 100, step_seconds=(("starting", 0.0),))


ENGINE_CORE = "(EngineCore pid=64) INFO 11-24 04:37:51 [b.py:1]"
WORKER = "(Worker_TP0 pid=7) INFO 01-01 00:00:00 [g.py:1]"


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
    assert progress_after(line).step == step


def test_a_quoted_request_is_no_step() -> None:
    request = "(APIServer pid=1) INFO 01-01 00:00:00 [l.py:1] Received: 'INFO:     Application startup complete.'"
    assert progress_after(request).step == "starting"


@pytest.mark.parametrize(
    "line",
    [
        "(Worker pid=1) INFO 01-01 00:00:00 [x.py:1] CPU KV cache size: " + "9" * 4400 + " tokens",
        "(Worker pid=1) INFO 01-01 00:00:00 [x.py:1] CPU KV cache size: ,,, tokens",
        "Loading safetensors checkpoint shards:  26% Completed | " + "1" * 4400 + "/" + "2" * 4400 + " [00",
        "Capturing CUDA graphs: 1%| 1% " + "1" * 4400 + "/" + "2" * 4400,
        "Capturing CUDA graphs:  50%|##| ٣/٤ [00:10<00:10]",
        "(" * 16_384,
        "\ud800" * 10,
    ],
)
def test_a_hostile_number_is_no_step(line: str) -> None:
    progress = progress_after(line)
    assert progress.step == "starting"
    assert progress.kv_cache_tokens is None
