"""The engine's load and its end, parsed from its log line by line. Pure.

The steps and their lines are those of vLLM 0.32; lines for GPUs (compile, graph capture, memory) are from its source.
A line that another version lacks costs a step in STATUS=, never a launch: readiness probes the endpoint.

Once the API answers, a client's text may begin a line, such as that of an exception with line ends. From then on no
step is entered, and a cause is proven only by a line of vLLM's logger: of a stream and a process that logged during
the load, from the file of vLLM that logs such ends. Other errors are symptoms, which never hide that the engine was
killed.

Each pattern takes linear time for any line: repeats are bounded, or followed by nothing that may fail.
"""

from __future__ import annotations

import re

from msgspec import Struct, toml
from msgspec.structs import replace

from sparkd.base.lib import read_data
from sparkd.base.plan.script import NOT_AS_NEEDED
from sparkd.base.vllm.known_errors import explain
from sparkd.base.vllm.log_lines import PROCESS_PREFIX

SEARCHED = 4096
"""Characters of a line, and of a cause, that are parsed."""

_PREFIX = re.compile(rf"{PROCESS_PREFIX}{{1,4}}")
_STAMP = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[(?P<place>[^\]]{1,100})\] ?"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{1,6} {1,8}[A-Z]{1,8} \S{1,64} -- "  # Ray's own
)


class _Log(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of vllm-log.toml: regular expressions."""

    steps: tuple[tuple[str, str], ...]
    """Each step with the line that begins it."""
    errors: tuple[str, ...]
    """Lines that report an error."""


_LOG = toml.decode(read_data("vllm-log.toml"), type=_Log)
LAST_STEP = _LOG.steps[-1][0]
_STEPS = tuple((step, re.compile(pattern, re.ASCII)) for step, pattern in _LOG.steps)
_ERROR = re.compile("|".join((*_LOG.errors, f"^{NOT_AS_NEEDED}: ")))
_WORKER_DIED = re.compile(r"^Worker proc \S{1,64} died unexpectedly \(exit code: (?!0\))")
_SECOND_HAND = re.compile(r"Executor failed\.|^[\w.]+$|/ray/session_[\w.-]{1,64}/logs/raylet\.")
"""Errors that only report another one (Ray's agent quotes the log of a dead raylet), and bare names."""
_NCCL_WARNS = re.compile(r"[\s\S]{0,250} NCCL WARN (?P<rdma>Call to ibv_)?")
"""May be harmless where it is not RDMA's: it is quoted beside an error of NCCL's. That may come first, since what NCCL
prints lies in a buffer until its process ends (seen)."""
_OF_NCCL = re.compile(r"NCCL error|RPC call to \w{1,40} timed out")
_NO_CAUSE = re.compile(r"EngineDeadError|[Ss]ee (?:root cause|stack trace)")
"""Errors that point to lines above, and say nothing themselves."""
_STOPPED = re.compile(r"\[shutdown\] (?!MPClient)")
GONE = "a process of the rank was gone without a word before it was ready"
_KILLED = re.compile(rf"exit code[:=] ?(?:-9\b|None\))|engine core exited unexpectedly|^{GONE}$")
"""A process that ends by itself logs an error first. None: vLLM saw the end before it could read the code."""
_FOUND_GONE = re.compile(
    r"(?P<worker>Exception: WorkerProc initialization failed due to an exception in a background process)"
    r"|RuntimeError: Engine core initialization failed\. .{0,100}Failed core proc\(s\): \{(?:\}|'\w{1,40}': -9\b)"
)
"""A process of the load was gone before it was ready. Its own error is logged before; there is none where it was
killed, and a worker's executor shuts down before it says so."""
_TRACE = "Traceback (most recent call last):"
_TRACE_END = re.compile(r"(?!INFO:)[A-Za-z_][\w.]{0,199}(?:\(\w{1,64}\))?(?:: |$)")
_END = re.compile(
    r"multiproc_executor\.py:\d+ (?:Worker proc \S{1,64} died unexpectedly|\[shutdown\] Executor: waiting for worker )"
    r"|core\.py:\d+ \[shutdown\] EngineCore: trigger |ray_\w{1,40}\.py:\d+ RayWorkerProc rank="
)
"""End of a serving engine, by vLLM's file that logs it: what no text of a client can look like."""
_API_END = re.compile(r"core_client\.py:\d+ \[shutdown\] MPClient: |launcher\.py:\d+ \[shutdown\] API server: ")
"""End of the process that answers clients, whose text it may print: it knows of no other file's ends."""
_FATAL = re.compile(
    r"(?:core|(?:multiproc|uniproc|ray)_executor(?:_v2)?)\.py:\d+ "
    r"(?:EngineCore encountered a fatal|\w{1,40} hit an exception)"
)
"""Begins a traceback; its lines are of the same process, file and line number."""
_JIT = re.compile(
    r"jit_monitor\.py:\d+ (?P<kind>[\w -]{1,40}) JIT compilation during inference: (?P<kernel>\S{1,200})", re.ASCII
)
"""vLLM's warning since 0.23. A kernel's name is the code's."""
LAST_WORDS = "its log says last: "
"""Stands before what may be a client's text: nobody acts on it."""
MOST_STEPS = 64
"""A log may go back to a step as often as it likes."""
BURST_SECONDS = 60.0
"""Errors closer together than this belong to one failure (slowest end seen: 12.6 s from SIGTERM to exit). A serving
engine may log an error, continue, and die of another one days later."""
_NOTABLE = re.compile(re.sub(r"\?P<\w+>", "?:", "|".join((*(line for _, line in _LOG.steps), _ERROR.pattern))))
"""A step or an error. Most lines are neither, and one match costs a fifth of a match for each pattern."""
LAST_ERROR = "Last error:"
"""NCCL's line between its own error and what has caused it."""
_CONTINUES = re.compile(
    r"(?:validation errors? for \w{1,80}|NCCL version [\d.]{1,20}|device error\. ?|Last error:|throwing an .{1,80}')$"
)


class LoadProgress(Struct, frozen=True):
    """`done` of `total` is the step's own count (shards, graphs), 0 of 0 where it has none."""

    step: str = "starting"
    done: int = 0
    total: int = 0
    step_since: float = 0.0
    kv_cache_tokens: int | None = None
    took: tuple[tuple[str, float], ...] = ()
    """Seconds of each step that is over, in their order; one that came twice is there twice."""
    cause: str = ""
    """First causal line since the last step, or of the last burst of errors, with a line that explains it; empty where
    there is none."""
    cause_source: str = ""
    symptom: str = ""
    """First line that only reports a failure elsewhere; of a serving engine, the last that may be a client's text."""
    failing_since: float | None = None
    worker_died: bool = False
    """A process of this rank has died, so the engine is dead. The container ends 2 s later (seen)."""
    tracing: str | None = None
    """The source of the traceback that is being logged."""
    serving: bool = False
    """Clients may be served: their text may begin a line."""
    sources: frozenset[str] = frozenset()
    """Stream and prefix of the processes that logged during the load."""
    compiled: int = 0
    """Kernels that were compiled inside requests, by vLLM's own monitor."""
    kernel: str = ""
    """The last of them, with what compiled it."""
    fatal: str = ""
    """Source, file and line number of the traceback that ends a serving engine."""
    blamed: str = ""
    """The last cause of the load, also where another process has entered a step since, or a new burst has begun."""
    blamed_at: float = 0.0
    """Begin of the last errors before a step."""

    def seconds_left(self, now: float) -> float | None:
        """Estimate for the step from its own pace; None without one."""
        if not 0 < self.done < self.total:
            return None
        return (now - self.step_since) / self.done * (self.total - self.done)

    def is_failing(self, now: float) -> bool:
        return self.failing_since is not None and (now - self.failing_since <= BURST_SECONDS or self.worker_died)

    def root_cause(self, now: float) -> str:
        """Why the engine fails now, in its own words; empty where it logged no recent cause."""
        if not self.is_failing(now):
            return ""
        symptom = f"{LAST_WORDS}{self.symptom}" if self.serving and self.symptom else self.symptom
        return f"{self.cause}; {symptom}" if self._needs_symptom() else self.cause or symptom

    def _needs_symptom(self) -> bool:
        """Whether the cause itself says little: a process that ended itself, or a call of NCCL's that failed."""
        if _NCCL_WARNS.match(self.symptom):
            return _OF_NCCL.search(self.cause) is not None
        return bool(self.symptom and _WORKER_DIED.match(self.cause) and not _KILLED.search(self.cause))

    def proven_cause(self, now: float) -> str:
        """As `root_cause`, but never a client's text."""
        return self.cause if self.is_failing(now) else ""

    def stopped_by_signal(self, now: float) -> bool:
        """Whether its end began with SIGTERM or SIGINT."""
        return _STOPPED.match(self.proven_cause(now)) is not None

    def killed(self, now: float) -> bool:
        """Whether its end began with a process that was gone without a word."""
        return _KILLED.search(self.proven_cause(now)) is not None


def advance_progress(before: LoadProgress, line: str, now: float, stream: int = 1) -> LoadProgress:
    """The progress after one more line. `now`: monotonic seconds; `stream`: 1 for stdout, 2 for stderr."""
    prefix, place, text = _split(line[:SEARCHED])
    source = f"{stream}{prefix}"
    if not before.serving:
        if place and source not in before.sources and len(before.sources) < 256:
            before = replace(before, sources=before.sources | {source})
        return _advance(before, prefix, text, now)
    here = source + place
    if place and source in before.sources:
        answers = "(apiserver" in prefix.lower()  # with more than one: ApiServer_0
        if not answers and (after := _note_rank(before, here, f"{place} {text}")) is not None:
            return after
        if here == before.fatal or (_API_END if answers else _END).match(f"{place} {text}"):
            return _advance(before, here, text, now)
    return _note_symptom(before, here, text, now)


def _note_rank(before: LoadProgress, here: str, text: str) -> LoadProgress | None:
    """Note a compiled kernel, or the begin of the end, by a line of the serving engine's own processes. Else None."""
    if jit := _JIT.match(text):
        kernel = f"{jit['kernel'].rstrip('.')} ({jit['kind']})"
        return replace(before, compiled=before.compiled + 1, kernel=kernel)
    return replace(before, fatal=here) if _FATAL.match(text) else None


def _split(line: str) -> tuple[str, str, str]:
    """The prefix of its process, the file and line number where vLLM's logger names them, and the text."""
    prefix = match[0] if (match := _PREFIX.match(line)) else ""
    stamp = _STAMP.match(line, len(prefix))
    if stamp is None:
        return prefix, "", line[len(prefix) :]
    # At the level DEBUG vLLM logs the file's path.
    return prefix, (stamp["place"] or "").rpartition("/")[2], line[stamp.end() :]


def _note_symptom(before: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """Note the symptom in a line of a serving engine that may be a client's text."""
    before, fails = _follow_trace(before, source, text)
    if not fails and not _ERROR.match(text):
        return before
    if before.proven_cause(now) or _NO_CAUSE.search(text) or _SECOND_HAND.search(text):
        return before
    if before.symptom and before.is_failing(now) and text.startswith("terminate called "):
        return before  # what was logged just before says why
    return replace(
        before, cause="", symptom=text, failing_since=before.failing_since if before.is_failing(now) else now
    )


def _follow_trace(before: LoadProgress, source: str, text: str) -> tuple[LoadProgress, bool]:
    """Whether this line ends a traceback of its source, with the exception."""
    if text.startswith(_TRACE):
        return replace(before, tracing=source), False
    if source != before.tracing or text.startswith((" ", "^", "+", "|")):  # of tracebacks and groups of them
        return before, False
    return replace(before, tracing=None), _TRACE_END.match(text) is not None


def _advance(before: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """The progress after a line that is no client's text."""
    before, fails = _follow_trace(before, source, text)
    notable = fails or (_ERROR if before.serving else _NOTABLE).match(text)
    if notable and not before.serving and not before.worker_died:  # what it leaves behind may load on for minutes
        for step, pattern in _STEPS:
            if match := pattern.match(text):
                return _enter_step(before, step, match.groupdict(), now)
    if _belongs_to_cause(before, source, text, now):
        return replace(before, cause=f"{before.cause.rstrip(': ')}: {text.strip()}"[:SEARCHED])
    if _finds_gone(before, text, now):
        return replace(before, cause=_blamed(before) or GONE, failing_since=now, worker_died=True)
    return before if not notable or _NO_CAUSE.search(text) else _note_error(before, source, text, now)


def _finds_gone(before: LoadProgress, text: str, now: float) -> bool:
    """Whether the line says that a process has gone while it loads, and nothing just before it says why."""
    if before.serving or not (gone := _FOUND_GONE.match(text)):
        return False
    known = before.proven_cause(now)
    return not known or bool(gone["worker"] and known.startswith("[shutdown] Executor: "))


def _blamed(progress: LoadProgress) -> str:
    """The last cause that is no mere end by a signal, or after another's end."""
    return progress.blamed if not progress.cause or _STOPPED.match(progress.cause) else progress.cause


def _continues(cause: str, text: str) -> bool:
    if not cause or not text or len(cause) >= SEARCHED:
        return False
    return _CONTINUES.search(cause) is not None or (text == LAST_ERROR and "NCCL version" in cause)


def _belongs_to_cause(before: LoadProgress, source: str, text: str, now: float) -> bool:
    """Whether it is a line of the cause's message, or explains a cause that nobody explains: a compiler's message below
    it, or the exception that it led to, of the same process."""
    if _continues(before.cause, text.strip()):
        return True
    of_cause = (
        before.cause and source == before.cause_source and before.is_failing(now) and len(before.cause) < SEARCHED
    )
    if not of_cause or _KILLED.search(before.cause) or _NO_CAUSE.search(text) or _WORKER_DIED.match(text):
        return False
    return explain(text) is not None and explain(before.cause) is None


def _note_error(before: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """The first error of a burst is the cause."""
    after = before
    if not before.is_failing(now) or (before.serving and not before.cause):
        symptom = before.symptom if before.serving and before.is_failing(now) else ""
        after = replace(before, cause="", symptom=symptom, failing_since=now, blamed=_blamed(before))
    if _WORKER_DIED.match(text):
        after = replace(after, worker_died=True)
        text = _own_error(before, text, now) or text
    if not after.cause and _is_cause(text):
        return replace(after, cause=text, cause_source=source, failing_since=now)
    kept = after.symptom or (after.cause and not _NCCL_WARNS.match(text))
    return after if kept else replace(after, symptom=text)


def _is_cause(text: str) -> bool:
    return not _SECOND_HAND.search(text) and ((warns := _NCCL_WARNS.match(text)) is None or warns["rdma"] is not None)


def _own_error(before: LoadProgress, text: str, now: float) -> str:
    """What a process that died logged just before, where its exit code is unread. The load got over an older error."""
    recent = now - before.blamed_at <= BURST_SECONDS and not before.serving
    return before.blamed if recent and "(exit code: None)" in text else ""


def _enter_step(before: LoadProgress, step: str, counts: dict[str, str | None], now: float) -> LoadProgress:
    # The engine continued after any earlier error: only errors after its last step count.
    if percent := counts.get("percent"):
        counts = {"done": percent, "total": "100"}
    done, total, kv = (int((counts.get(name) or "0").replace(",", "")) for name in ("done", "total", "kv"))
    return LoadProgress(
        step,
        done,
        total,
        before.step_since if step == before.step else now,
        kv or before.kv_cache_tokens,
        before.took if step == before.step else (*before.took, (before.step, now - before.step_since))[-MOST_STEPS:],
        serving=step == LAST_STEP,
        sources=before.sources,
        blamed=_blamed(before),
        blamed_at=before.blamed_at if before.failing_since is None else before.failing_since,
    )
