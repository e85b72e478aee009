"""The engine's load and its end, parsed from its log line by line. Pure.

The steps and their lines are those of vLLM 0.32; lines for GPUs (compile, graph capture, memory) are from its source.
A line that another version lacks costs a step in STATUS=, never a launch: readiness probes the endpoint.

Once the API answers, a client's text may begin a line, such as that of an exception with line ends. From then on no
step is entered, and a cause is proven only by a line of vLLM's logger: of a stream and a process that logged during
the load, from the file of vLLM that logs such ends. Other errors are symptoms, which never hide that the engine was
killed.

Each pattern takes linear time for any line: repeats are bounded, or followed by nothing that may fail.
"""

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
_NCCL_WARNING = re.compile(r"[\s\S]{0,250} NCCL WARN (?P<rdma>Call to ibv_)?")
"""A warning that is not about RDMA may be harmless: it is only quoted beside an error of NCCL's. That error may come
first, since what NCCL prints lies in a buffer until its process ends (seen)."""
_NCCL_ERROR = re.compile(r"NCCL error|RPC call to \w{1,40} timed out")
_NO_CAUSE = re.compile(r"EngineDeadError|[Ss]ee (?:root cause|stack trace)")
"""Errors that point to lines above, and say nothing themselves."""
_STOPPED = re.compile(r"\[shutdown\] (?!MPClient)")
GONE = "a process of the rank was gone without a word before it was ready"
_KILLED = re.compile(rf"exit code[:=] ?(?:-9\b|None\))|engine core exited unexpectedly|^{GONE}$")
"""End of a killed process: one that ends by itself logs an error first. None: vLLM could not read the code yet."""
_PROCESS_GONE = re.compile(
    r"(?P<worker>Exception: WorkerProc initialization failed due to an exception in a background process)"
    r"|RuntimeError: Engine core initialization failed\. .{0,100}Failed core proc\(s\): \{(?:\}|'\w{1,40}': -9\b)"
)
"""A process of the load has gone before it was ready. Its own error stands above, unless it was killed. Where it was a
worker, the line of its executor's shutdown stands above, too."""
_TRACE = "Traceback (most recent call last):"
_TRACE_END = re.compile(r"(?!INFO:)[A-Za-z_][\w.]{0,199}(?:\(\w{1,64}\))?(?:: |$)")
_END = re.compile(
    r"multiproc_executor\.py:\d+ (?:Worker proc \S{1,64} died unexpectedly|\[shutdown\] Executor: waiting for worker )"
    r"|core\.py:\d+ \[shutdown\] EngineCore: trigger |ray_\w{1,40}\.py:\d+ RayWorkerProc rank="
)
"""End of a serving engine, with the file of vLLM that logs it: no text of a client can look like that."""
_API_END = re.compile(r"core_client\.py:\d+ \[shutdown\] MPClient: |launcher\.py:\d+ \[shutdown\] API server: ")
"""End of the API server. It may print clients' text, so that only these files of its own count."""
_FATAL = re.compile(
    r"(?:core|(?:multiproc|uniproc|ray)_executor(?:_v2)?)\.py:\d+ "
    r"(?:EngineCore encountered a fatal|\w{1,40} hit an exception)"
)
"""Begins a traceback; its lines are of the same process, file and line number."""
_JIT = re.compile(
    r"jit_monitor\.py:\d+ (?P<kind>[\w -]{1,40}) JIT compilation during inference: (?P<kernel>\S{1,200})", re.ASCII
)
"""vLLM's warning since 0.23. A kernel's name comes from code, not from a client."""
LAST_WORDS = "its log says last: "
"""Stands before what may be a client's text, on which nothing is decided."""
MOST_STEPS = 64
"""Steps of which the times are kept: a log may go back to a step any number of times."""
BURST_SECONDS = 60.0
"""Errors closer together than this belong to one failure (slowest end seen: 12.6 s from SIGTERM to exit). A serving
engine may log an error, continue, and die of another one days later."""
_NOTABLE = re.compile(re.sub(r"\?P<\w+>", "?:", "|".join((*(line for _, line in _LOG.steps), _ERROR.pattern))))
"""A step or an error. Most lines are neither: matching this one pattern costs a fifth of matching each."""
LAST_ERROR = "Last error:"
"""NCCL's line between its own error and what has caused it."""
_IS_CONTINUED = re.compile(
    r"(?:validation errors? for \w{1,80}|NCCL version [\d.]{1,20}|device error\. ?|Last error:|throwing an .{1,80}')$"
)


class LoadProgress(Struct, frozen=True):
    """What the log has shown. `done` of `total`: the step's own count (shards, graphs), 0 of 0 where it has none."""

    step: str = "starting"
    done: int = 0
    total: int = 0
    step_since: float = 0.0
    kv_cache_tokens: int | None = None
    took: tuple[tuple[str, float], ...] = ()
    """Seconds of each step that is over, in their order; one that came twice is there twice."""
    cause: str = ""
    """First line since the last step, or of the last burst of errors, that is a cause, with a line that explains it."""
    cause_source: str = ""
    """Stream and prefix of the process that logged it; in service with the file and line number, too."""
    symptom: str = ""
    """First line that only reports a failure elsewhere; once it serves, the last error that may be a client's text."""
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
    """Source, file and line number of the lines of the traceback that ends a serving engine."""
    earlier_cause: str = ""
    """The last cause before the last step, which another process may have entered, or before this burst of errors."""
    earlier_errors_at: float = 0.0
    """When the last errors before the last step began."""

    def seconds_left(self, now: float) -> float | None:
        """Estimate for the rest of the step from its own pace; None without a count."""
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
        if _NCCL_WARNING.match(self.symptom):
            return _NCCL_ERROR.search(self.cause) is not None
        return bool(self.symptom and _WORKER_DIED.match(self.cause) and not _KILLED.search(self.cause))

    def proven_cause(self, now: float) -> str:
        """As `root_cause`, but never a client's text."""
        return self.cause if self.is_failing(now) else ""

    def stopped_by_signal(self, now: float) -> bool:
        """Whether the engine's end began with SIGTERM or SIGINT."""
        return _STOPPED.match(self.proven_cause(now)) is not None

    def killed(self, now: float) -> bool:
        """Whether the engine's end began with a process that was killed."""
        return _KILLED.search(self.proven_cause(now)) is not None


def advance_progress(progress: LoadProgress, line: str, now: float, stream: int = 1) -> LoadProgress:
    """The progress after one more line. `now`: monotonic seconds; `stream`: 1 for stdout, 2 for stderr."""
    prefix, place, text = _split_line(line[:SEARCHED])
    source = f"{stream}{prefix}"
    if not progress.serving:
        if place and source not in progress.sources and len(progress.sources) < 256:
            progress = replace(progress, sources=progress.sources | {source})
        return _advance(progress, prefix, text, now)
    origin = source + place
    if place and source in progress.sources:
        is_api_server = "(apiserver" in prefix.lower()  # with more than one: ApiServer_0
        if not is_api_server and (after := _note_event(progress, origin, f"{place} {text}")) is not None:
            return after
        if origin == progress.fatal or (_API_END if is_api_server else _END).match(f"{place} {text}"):
            return _advance(progress, origin, text, now)
    return _note_symptom(progress, origin, text, now)


def _note_event(progress: LoadProgress, origin: str, text: str) -> LoadProgress | None:
    """Note a compiled kernel, or the first line of the end, in a serving engine's log; None for other lines."""
    if jit := _JIT.match(text):
        kernel = f"{jit['kernel'].rstrip('.')} ({jit['kind']})"
        return replace(progress, compiled=progress.compiled + 1, kernel=kernel)
    return replace(progress, fatal=origin) if _FATAL.match(text) else None


def _split_line(line: str) -> tuple[str, str, str]:
    """The prefix of its process, the file and line number where vLLM's logger names them, and the text."""
    prefix = match[0] if (match := _PREFIX.match(line)) else ""
    stamp = _STAMP.match(line, len(prefix))
    if stamp is None:
        return prefix, "", line[len(prefix) :]
    # At the level DEBUG vLLM logs the file's path.
    return prefix, (stamp["place"] or "").rpartition("/")[2], line[stamp.end() :]


def _note_symptom(progress: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """Note the symptom in a line of a serving engine that may be a client's text."""
    progress, ends_trace = _follow_trace(progress, source, text)
    if not ends_trace and not _ERROR.match(text):
        return progress
    if progress.proven_cause(now) or _NO_CAUSE.search(text) or _SECOND_HAND.search(text):
        return progress
    if progress.symptom and progress.is_failing(now) and text.startswith("terminate called "):
        return progress  # what was logged just before says why
    failing_since = progress.failing_since if progress.is_failing(now) else now
    return replace(progress, cause="", symptom=text, failing_since=failing_since)


def _follow_trace(progress: LoadProgress, source: str, text: str) -> tuple[LoadProgress, bool]:
    """The progress, and whether this line ends a traceback of its source, with the exception."""
    if text.startswith(_TRACE):
        return replace(progress, tracing=source), False
    if source != progress.tracing or text.startswith((" ", "^", "+", "|")):  # a line inside a traceback, or of a group
        return progress, False
    return replace(progress, tracing=None), _TRACE_END.match(text) is not None


def _advance(progress: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """The progress after a line that is no client's text."""
    progress, ends_trace = _follow_trace(progress, source, text)
    is_notable = ends_trace or (_ERROR if progress.serving else _NOTABLE).match(text)
    # After a worker's death the processes that are left may load on for minutes.
    if is_notable and not progress.serving and not progress.worker_died:
        for step, pattern in _STEPS:
            if match := pattern.match(text):
                return _enter_step(progress, step, match.groupdict(), now)
    if _belongs_to_cause(progress, source, text, now):
        return replace(progress, cause=f"{progress.cause.rstrip(': ')}: {text.strip()}"[:SEARCHED])
    if _reports_gone_process(progress, text, now):
        return replace(progress, cause=_find_real_cause(progress) or GONE, failing_since=now, worker_died=True)
    return progress if not is_notable or _NO_CAUSE.search(text) else _note_error(progress, source, text, now)


def _reports_gone_process(progress: LoadProgress, text: str, now: float) -> bool:
    """Whether the line reports a process that has gone during the load, while no line just above says why."""
    if progress.serving or not (report := _PROCESS_GONE.match(text)):
        return False
    cause = progress.proven_cause(now)
    return not cause or bool(report["worker"] and cause.startswith("[shutdown] Executor: "))


def _find_real_cause(progress: LoadProgress) -> str:
    """The last cause that is more than a shutdown, by a signal or after the end of another process."""
    return progress.earlier_cause if not progress.cause or _STOPPED.match(progress.cause) else progress.cause


def _continues_message(cause: str, text: str) -> bool:
    if not cause or not text or len(cause) >= SEARCHED:
        return False
    return _IS_CONTINUED.search(cause) is not None or (text == LAST_ERROR and "NCCL version" in cause)


def _belongs_to_cause(progress: LoadProgress, source: str, text: str, now: float) -> bool:
    """Whether the line continues the cause's message, or explains a cause that sparkd knows no explanation of: the
    same process logs a compiler's message below it, or the exception that it led to."""
    if _continues_message(progress.cause, text.strip()):
        return True
    cause = progress.cause
    may_explain = cause and source == progress.cause_source and progress.is_failing(now) and len(cause) < SEARCHED
    if not may_explain or _KILLED.search(cause) or _NO_CAUSE.search(text) or _WORKER_DIED.match(text):
        return False
    return explain(text) is not None and explain(cause) is None


def _note_error(progress: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """Note an error: the first of a burst that is a cause counts, and others are symptoms at most."""
    noted, is_failing = progress, progress.is_failing(now)
    # In service the first proven error begins a burst of its own. The symptom stays: it may be what led to the error.
    if not is_failing or (progress.serving and not progress.cause):
        symptom = progress.symptom if progress.serving and is_failing else ""
        earlier_cause = _find_real_cause(progress)
        noted = replace(progress, cause="", symptom=symptom, failing_since=now, earlier_cause=earlier_cause)
    if _WORKER_DIED.match(text):
        noted = replace(noted, worker_died=True)
        text = _find_own_error(progress, text, now) or text
    if not noted.cause and _is_cause(text):
        return replace(noted, cause=text, cause_source=source, failing_since=now)
    keeps_symptom = noted.symptom or (noted.cause and not _NCCL_WARNING.match(text))
    return noted if keeps_symptom else replace(noted, symptom=text)


def _is_cause(text: str) -> bool:
    return not _SECOND_HAND.search(text) and ((warns := _NCCL_WARNING.match(text)) is None or warns["rdma"] is not None)


def _find_own_error(progress: LoadProgress, text: str, now: float) -> str:
    """The error that a process logged just before it died with an unread exit code; the load survived older ones."""
    is_recent = now - progress.earlier_errors_at <= BURST_SECONDS and not progress.serving
    return progress.earlier_cause if is_recent and "(exit code: None)" in text else ""


def _enter_step(last: LoadProgress, step: str, counts: dict[str, str | None], now: float) -> LoadProgress:
    # The engine continued after any earlier error: only errors after its last step count.
    if percent := counts.get("percent"):
        counts = {"done": percent, "total": "100"}
    done, total, kv_tokens = (int((counts.get(name) or "0").replace(",", "")) for name in ("done", "total", "kv"))
    return LoadProgress(
        step,
        done,
        total,
        last.step_since if step == last.step else now,
        kv_tokens or last.kv_cache_tokens,
        last.took if step == last.step else (*last.took, (last.step, now - last.step_since))[-MOST_STEPS:],
        serving=step == LAST_STEP,
        sources=last.sources,
        earlier_cause=_find_real_cause(last),
        earlier_errors_at=last.earlier_errors_at if last.failing_since is None else last.failing_since,
    )
