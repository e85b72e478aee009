"""What the engine is doing, read from its log line by line. Pure.

The steps and their lines were read off vLLM 0.32; rows for GPUs (compile, graph capture, memory) stand in its source.
A line that is missing in another version costs a step in STATUS=, never a launch: readiness asks the endpoint.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from sparkd.engine.lines import WHOSE
from sparkd.launch.script import NOT_AS_NEEDED

_PREFIX = re.compile(rf"^{WHOSE}+")
_STAMP = re.compile(
    r"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] ?"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\s+[A-Z]+ \S+ -- )"  # Ray's own
)

_STEPS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("waiting for the Ray of the head", re.compile(r"^waiting for the Ray of \S+ port \d+$")),
    ("starting Ray", re.compile(r"^Local node IP: ")),
    ("waiting for the engine", re.compile(r"^Ray runtime started\.")),
    ("reading arguments", re.compile(r"^non-default args: \{")),
    ("reading the model's configuration", re.compile(r"^Resolved architecture: ")),
    ("starting the engine core", re.compile(r"^Initializing a V1 LLM engine ")),
    (
        "waiting for all nodes in Ray",
        re.compile(r"^No current placement group found\. Creating a new placement group\."),
    ),
    ("waiting for all ranks", re.compile(r"^world_size=\d+ rank=\d+ local_rank=\d+ distributed_init_method=")),
    ("building process groups", re.compile(r"^rank \d+ in world size \d+ is assigned as DP rank ")),
    ("loading weights", re.compile(r"^Starting to load model ")),
    (
        "loading weights",
        re.compile(r"^Loading safetensors checkpoint shards: +\d+% Completed \| (?P<done>\d+)/(?P<total>\d+) \["),
    ),
    ("profiling memory", re.compile(r"^(?:Loading weights took|Model loading took) ")),
    ("sizing the KV cache", re.compile(r"^(?:Available KV cache memory: |Explicitly set \(.*\) GiB for KV cache )")),
    ("warming up", re.compile(r"^(?:GPU|CPU) KV cache size: (?P<kv>[\d,]+) tokens")),
    ("compiling", re.compile(r"^Starting torch\.compile")),
    ("capturing graphs", re.compile(r"^Capturing CUDA graphs.*?: +\d+%.*?(?P<done>\d+)/(?P<total>\d+)")),
    ("warming up", re.compile(r"^(?:torch\.compile took|Graph capturing finished in) ")),
    ("starting the API server", re.compile(r"^init engine \(profile, create kv cache, warmup model\) took ")),
    ("starting the API server", re.compile(r"^Starting vLLM server on http")),
    ("answering HTTP", re.compile(r"^INFO: +Application startup complete\.")),
)

_ERROR = re.compile(
    r"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception|Interrupt|Exit))(?:: (?P<text>.+))?$"
    r"|^Worker proc \S+ died unexpectedly \(exit code: (?!0\))"
    r"|^RayWorkerProc rank=\S.* died unexpectedly"
    r"|^\w+ \[exit code=-?[1-9]"  # of Ray's own processes, where one has died
    r"|^\(raylet\) Raylet is terminated\. Termination is unexpected"
    r"|^\[.{30,60}\] \S+: Failed to connect to GCS within "
    r"|^vllm(?: serve)?: error: "
    r"|^\S*(?:launch\.sh|user-script): line \d+: "
    rf"|^{NOT_AS_NEEDED}: "
)
_WORKER_DIED = re.compile(r"^Worker proc \S+ died unexpectedly \(exit code: (?!0\))")
_SECOND_HAND = re.compile(
    r"EngineDeadError|[Ss]ee (?:root cause|stack trace)|Executor failed\.|WorkerProc initialization failed|^[\w.]+$"
    r"|/ray/session_\S+/logs/raylet\."
)
"""Errors that only report another one (Ray's agent reads the log of a raylet that has died), and bare names."""
BURST_SECONDS = 60.0
"""Errors closer together than this belong to one failure (slowest end seen: 12.6 s from SIGTERM to exit); an engine
that serves may log an error, live on, and die of another one days later."""
_GROUP_NAME = re.compile(r"\?P<\w+>")
_NOTABLE = re.compile("|".join(_GROUP_NAME.sub("?:", one.pattern) for one in (*(step for _, step in _STEPS), _ERROR)))
"""A step or an error. Most lines are neither, and one match shows it at a fifth of the cost of a match for each."""
_CONTINUES = re.compile(r"validation errors? for \w+$")


class Story(Struct, frozen=True):
    """What is known so far. `done` of `total` is the step's own count (shards, graphs), 0 of 0 where it has none."""

    step: str = "starting"
    done: int = 0
    total: int = 0
    step_since: float = 0.0
    kv_cache_tokens: int | None = None
    cause: str = ""
    """First causal line since the last step, or of the last burst of errors; empty where the engine named none."""
    symptom: str = ""
    """First line that only reports a failure elsewhere: second best."""
    failing_since: float | None = None
    worker_died: bool = False
    """A process of this node's rank has died, so the engine is dead. The container ends 2 s later (seen)."""

    def seconds_left(self, now: float) -> float | None:
        """Estimate for the step from its own pace; None before there is one."""
        if not 0 < self.done < self.total:
            return None
        return (now - self.step_since) / self.done * (self.total - self.done)

    def blame(self, now: float) -> str:
        """Why the engine fails now, in its own words; empty where it said nothing, or only long ago."""
        if self.failing_since is None or now - self.failing_since > BURST_SECONDS:
            return ""
        return self.cause or self.symptom


def read(story: Story, line: str, now: float) -> Story:
    """The story after one more line, `now` being monotonic seconds."""
    text = _STAMP.sub("", _PREFIX.sub("", line, count=1), count=1)
    notable = _NOTABLE.match(text)
    if notable:
        for step, pattern in _STEPS:
            if found := pattern.match(text):
                return _advance(story, step, found.groupdict(), now)
    if story.cause and _CONTINUES.search(story.cause) and text.strip():
        return replace(story, cause=f"{story.cause}: {text.strip()}")
    if not notable:
        return story
    if _WORKER_DIED.match(text):
        story = replace(story, worker_died=True)
    return _blame(story, text, now) if _ERROR.match(text) else story


def _blame(story: Story, text: str, now: float) -> Story:
    if story.failing_since is None or now - story.failing_since > BURST_SECONDS:
        story = replace(story, cause="", symptom="", failing_since=now)
    if story.cause:
        return story
    if not _SECOND_HAND.search(text):
        return replace(story, cause=text)
    return story if story.symptom else replace(story, symptom=text)


def _advance(story: Story, step: str, found: dict[str, str | None], now: float) -> Story:
    # An error that the engine went on after was none: what counts is what came after its last step.
    done, total, kv = found.get("done"), found.get("total"), found.get("kv")
    return Story(
        step=step,
        done=int(done) if done else 0,
        total=int(total) if total else 0,
        step_since=story.step_since if step == story.step else now,
        kv_cache_tokens=int(kv.replace(",", "")) if kv else story.kv_cache_tokens,
    )
