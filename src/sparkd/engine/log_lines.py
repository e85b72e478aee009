"""The engine's log line by line: split from the stream, prepared for the journal, parsed for progress and errors. Pure.

The steps and their lines are those of vLLM 0.32; lines for GPUs (compile, graph capture, memory) are from its source.
A line that another version lacks costs a step in STATUS=, never a launch: readiness probes the endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from sparkd.lib.text import printable
from sparkd.plan.script import NOT_AS_NEEDED

LINE_LIMIT_BYTES = 16_384
"""Longer lines are cut and marked; journald cuts at 48 KiB (LineMax=)."""
PROGRESS_SECONDS = 1.0

PROCESS_PREFIX = r"(?:\(\S[^()]* pid=\d+(?:, ip=[^()\s]+)?\) ?)"
"""vLLM's prefix of the process; under Ray, one for Ray's process and one for vLLM's."""

_BREAK = re.compile(rb"[\r\n]+")
_LEVEL = re.compile(rf"^{PROCESS_PREFIX}*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_PRIORITY = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 3}
_PROGRESS = re.compile(r"\d+%(?: Completed)? ?\|.*\[\d\d:\d\d")
_LAST = re.compile(r"\b100%")
_PREFIX = re.compile(rf"^{PROCESS_PREFIX}+")
_STAMP = re.compile(
    r"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] ?"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\s+[A-Z]+ \S+ -- )"  # Ray's own
)

_STEP_LINES = (
    ("waiting for the Ray of the head", r"^waiting for the Ray of \S+ port \d+$"),
    ("starting Ray", r"^Local node IP: "),
    ("waiting for the engine", r"^Ray runtime started\."),
    ("reading arguments", r"^non-default args: \{"),
    ("reading the model's configuration", r"^Resolved architecture: "),
    ("starting the engine core", r"^Initializing a V1 LLM engine "),
    ("waiting for all nodes in Ray", r"^No current placement group found\. Creating a new placement group\."),
    ("waiting for all ranks", r"^world_size=\d+ rank=\d+ local_rank=\d+ distributed_init_method="),
    ("building process groups", r"^rank \d+ in world size \d+ is assigned as DP rank "),
    ("loading weights", r"^Starting to load model "),
    ("loading weights", r"^Loading safetensors checkpoint shards: +\d+% Completed \| (?P<done>\d+)/(?P<total>\d+) \["),
    ("profiling memory", r"^(?:Loading weights took|Model loading took) "),
    ("sizing the KV cache", r"^(?:Available KV cache memory: |Explicitly set \(.*\) GiB for KV cache )"),
    ("warming up", r"^(?:GPU|CPU) KV cache size: (?P<kv>[\d,]+) tokens"),
    ("compiling", r"^Starting torch\.compile"),
    ("capturing graphs", r"^Capturing CUDA graphs.*?: +\d+%.*?(?P<done>\d+)/(?P<total>\d+)"),
    ("warming up", r"^(?:torch\.compile took|Graph capturing finished in) "),
    ("starting the API server", r"^init engine \(profile, create kv cache, warmup model\) took "),
    ("starting the API server", r"^Starting vLLM server on http"),
    ("answering HTTP", r"^INFO: +Application startup complete\."),
)
_STEPS = tuple((step, re.compile(pattern)) for step, pattern in _STEP_LINES)

_ERROR = re.compile(
    r"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception|Interrupt|Exit))(?:: (?P<text>.+))?$"
    r"|^Worker proc \S+ died unexpectedly \(exit code: (?!0\))"
    r"|^RayWorkerProc rank=\S.* died unexpectedly"
    r"|^\w+ \[exit code=-?[1-9]"  # one of Ray's own processes has died
    r"|^\(raylet\) Raylet is terminated\. Termination is unexpected"
    r"|^\[.{30,60}\] \S+: Failed to connect to GCS within "
    r"|^vllm(?: serve)?: error: "
    r"|^\S*(?:launch\.sh|user-script): line \d+: "
    r"|^\[shutdown\] (?:API server: shutdown triggered|EngineCore: trigger |Executor: waiting for worker exit )"
    r"|^\[shutdown\] MPClient: engine core exited unexpectedly"
    r"|^\S+:\d+:\d+ \[\d+\] (?:\S+ ){0,4}NCCL WARN Call to ibv_"
    r"|^Fatal Python error: |^terminate called after throwing |^!!!!!!! Segfault encountered"
    rf"|^{NOT_AS_NEEDED}: "
)
_WORKER_DIED = re.compile(r"^Worker proc \S+ died unexpectedly \(exit code: (?!0\))")
_SECOND_HAND = re.compile(r"Executor failed\.|^[\w.]+$|/ray/session_\S+/logs/raylet\.")
"""Errors that only report another one (Ray's agent quotes the log of a dead raylet), and bare names."""
_NO_CAUSE = re.compile(r"EngineDeadError|[Ss]ee (?:root cause|stack trace)")
"""Errors that point to lines above, and say nothing themselves."""
_STOPPED = re.compile(r"\[shutdown\] (?!MPClient)")
_KILLED = re.compile(r"exit code[:=] ?(?:-9\b|None\))|engine core exited unexpectedly")
"""A process that ends by itself logs an error first. None: vLLM saw the end before it could read the code."""
_TRACE = "Traceback (most recent call last):"
_TRACE_END = re.compile(r"(?!INFO:)[A-Za-z_][\w.]*(?:\(\w+\))?(?:: |$)")
BURST_SECONDS = 60.0
"""Errors closer together than this belong to one failure (slowest end seen: 12.6 s from SIGTERM to exit). A serving
engine may log an error, continue, and die of another one days later."""
_NOTABLE = re.compile(re.sub(r"\?P<\w+>", "?:", "|".join((*(line for _, line in _STEP_LINES), _ERROR.pattern))))
"""A step or an error. Most lines are neither, and one match costs a fifth of a match for each pattern."""
_CONTINUES = re.compile(r"(?:validation errors? for \w{1,80}|NCCL version [\d.]{1,20}|device error\. ?|Last error:)$")


class LineSplitter:
    """Lines of one stream. A carriage return ends a line too: tqdm redraws with it."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._cut_bytes = 0

    def feed(self, data: bytes) -> Iterator[str]:
        length = len(data) - 1
        if data.find(b"\n") == length and 0 < length <= LINE_LIMIT_BYTES and b"\r" not in data and not self._pending:
            # Most of docker's frames are one whole line.
            yield printable(data[:length].decode("utf-8", "replace"))
            return
        *whole, rest = _BREAK.split(data)
        for piece in whole:
            self._grow(piece)
            yield from self.flush()
        self._grow(rest)

    def flush(self) -> Iterator[str]:
        """The rest of the stream, without a line end."""
        if self._pending:
            cut = f" ... (+{self._cut_bytes} bytes)" if self._cut_bytes else ""
            text = printable(self._pending.decode("utf-8", "replace")) + cut
            self._pending.clear()
            self._cut_bytes = 0
            yield text

    def _grow(self, piece: bytes) -> None:
        room = LINE_LIMIT_BYTES - len(self._pending)
        self._pending += piece[:room]
        self._cut_bytes += max(0, len(piece) - room)


class LogForwarder:
    """Turns lines into (priority, text) for the journal: redacted, without sparkd's own polls.

    Passes one line of a progress bar a second. For one thread.
    """

    def __init__(self, redact: Callable[[str], str], own_address: str) -> None:
        """sparkd polls the engine from and on `own_address`."""
        self._redact = redact
        self._own_poll = re.compile(
            rf'^INFO: +{re.escape(own_address)}:\d+ - "GET /(?:health|metrics|v1/models) HTTP/1\.1" 200 OK$'
        )
        self._held: str | None = None
        self._progress_at = float("-inf")

    def lines(self, line: str, now: float) -> Iterator[tuple[int, str]]:
        """The journal's lines for one log line. `now`: monotonic seconds."""
        if self._own_poll.match(line):
            return
        if "%" in line and _PROGRESS.search(line):
            if now - self._progress_at < PROGRESS_SECONDS and not _LAST.search(line):
                self._held = line
                return
            self._held = None
            self._progress_at = now
        elif self._held is not None:
            yield from self.flush()
        found = _LEVEL.match(line)
        yield _PRIORITY[found[1]] if found else 6, f"engine| {self._redact(line)}"

    def flush(self) -> Iterator[tuple[int, str]]:
        """The last held line of a progress bar."""
        if self._held is not None:
            yield 6, f"engine| {self._redact(self._held)}"
            self._held = None


class LoadProgress(Struct, frozen=True):
    """`done` of `total` is the step's own count (shards, graphs), 0 of 0 where it has none."""

    step: str = "starting"
    done: int = 0
    total: int = 0
    step_since: float = 0.0
    kv_cache_tokens: int | None = None
    cause: str = ""
    """First causal line since the last step, or of the last burst of errors; empty where there is none."""
    symptom: str = ""
    """First line that only reports a failure elsewhere; used where there is no cause."""
    failing_since: float | None = None
    worker_died: bool = False
    """A process of this rank has died, so the engine is dead. The container ends 2 s later (seen)."""
    tracing: str | None = None
    """The prefix of the process whose traceback is being logged."""

    def seconds_left(self, now: float) -> float | None:
        """Estimate for the step from its own pace; None without one."""
        if not 0 < self.done < self.total:
            return None
        return (now - self.step_since) / self.done * (self.total - self.done)

    def is_failing(self, now: float) -> bool:
        return self.failing_since is not None and now - self.failing_since <= BURST_SECONDS

    def root_cause(self, now: float) -> str:
        """Why the engine fails now, in its own words; empty where it logged no recent cause."""
        return self.cause or self.symptom if self.is_failing(now) else ""

    def stopped_by_signal(self, now: float) -> bool:
        """Whether its end began with SIGTERM or SIGINT."""
        return _STOPPED.match(self.root_cause(now)) is not None

    def killed(self, now: float) -> bool:
        """Whether its end began with a process that was gone without a word."""
        return _KILLED.search(self.root_cause(now)) is not None


def advance_progress(before: LoadProgress, line: str, now: float) -> LoadProgress:
    """The progress after one more line. `now`: monotonic seconds."""
    prefix = found[0] if (found := _PREFIX.match(line)) else ""
    text = _STAMP.sub("", line[len(prefix) :], count=1)
    if text.startswith(_TRACE):
        return replace(before, tracing=prefix)
    notable: object = _NOTABLE.match(text)
    if prefix == before.tracing and not text.startswith((" ", "^", "+", "|")):  # of tracebacks and groups of them
        before, notable = replace(before, tracing=None), notable or _TRACE_END.match(text)
    if notable:
        for step, pattern in _STEPS:
            if found := pattern.match(text):
                return _enter_step(before, step, found.groupdict(), now)
    if before.cause and _CONTINUES.search(before.cause) and text.strip():
        return replace(before, cause=f"{before.cause}: {text.strip()}")
    if not notable or _NO_CAUSE.search(text):
        return before
    # The first error of a burst is the cause.
    after = before if before.is_failing(now) else replace(before, cause="", symptom="", failing_since=now)
    if _WORKER_DIED.match(text):
        after = replace(after, worker_died=True)
    if after.cause:
        return after
    if not _SECOND_HAND.search(text):
        return replace(after, cause=text)
    return after if after.symptom else replace(after, symptom=text)


def _enter_step(before: LoadProgress, step: str, found: dict[str, str | None], now: float) -> LoadProgress:
    # The engine continued after any earlier error: only errors after its last step count.
    done, total, kv = (int((found.get(name) or "0").replace(",", "")) for name in ("done", "total", "kv"))
    since = before.step_since if step == before.step else now
    return LoadProgress(step, done, total, since, kv or before.kv_cache_tokens)
