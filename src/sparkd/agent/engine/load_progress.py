"""The engine's load and its end, as its log shows them line by line. Pure.

Once the API answers, a client's text may begin a line, such as that of an exception with line ends. From then on no
step is entered, and a cause is proven only by a line of vLLM's logger: of a stream and a process that logged during
the load, from the file of vLLM that logs such ends. Other errors are symptoms, which never hide a kill of the engine.
"""

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.engine import log_patterns
from sparkd.base.vllm.known_errors import explain

SEARCHED = 4096
"""Characters of a line, and of a cause, that are parsed."""
LAST_WORDS = "its log says last: "
"""Stands before what may be a client's text, on which nothing is decided."""
BURST_SECONDS = 60.0
"""Errors closer together than this belong to one failure (slowest end seen: 12.6 s from SIGTERM to exit). A serving
engine may log an error, continue, and die of another one days later."""


class LoadProgress(Struct, frozen=True):
    """What the log has shown. `done` of `total`: the step's own count (shards, graphs), 0 of 0 where it has none."""

    step: str = "starting"
    done: int = 0
    total: int = 0
    step_since: float = 0.0
    kv_cache_tokens: int | None = None
    step_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds of each step that is over, in their order; one that came twice is there twice."""
    cause: str = ""
    """First line since the last step, or of the last burst of errors, that is a cause, with a line that explains it."""
    cause_source: str = ""
    """Prefix of the process that logged it; in service with the stream, file and line number, too."""
    symptom: str = ""
    """First line that only reports a failure elsewhere; once it serves, the last error that may be a client's text."""
    failing_since: float | None = None
    worker_died: bool = False
    """A process of this rank has died, so the engine is dead. The container ends 2 s later (seen)."""
    tracing: str | None = None
    """The source, as `cause_source`, of the traceback that is being logged."""
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
        if log_patterns.NCCL_WARNING.match(self.symptom):
            return log_patterns.NCCL_ERROR.search(self.cause) is not None
        ended_itself = log_patterns.WORKER_DIED.match(self.cause) and not log_patterns.KILLED.search(self.cause)
        return bool(self.symptom and ended_itself)

    def proven_cause(self, now: float) -> str:
        """The part of `root_cause` that can't be a client's text; empty without one."""
        return self.cause if self.is_failing(now) else ""

    def stopped_by_signal(self, now: float) -> bool:
        """Whether the engine's end began with SIGTERM or SIGINT."""
        return log_patterns.STOPPED.match(self.proven_cause(now)) is not None

    def killed(self, now: float) -> bool:
        """Whether the engine's end began with a process that was killed."""
        return log_patterns.KILLED.search(self.proven_cause(now)) is not None


def advance_progress(progress: LoadProgress, line: str, now: float, stream: int = 1) -> LoadProgress:
    """The progress after one more line. `now`: monotonic seconds; `stream`: 1 for stdout, 2 for stderr."""
    prefix, place, text = log_patterns.split_line(line[:SEARCHED])
    source = f"{stream}{prefix}"
    if not progress.serving:
        if place and source not in progress.sources and len(progress.sources) < 256:
            progress = replace(progress, sources=progress.sources | {source})
        return _note_own_text(progress, prefix, text, now)
    origin, located_text = source + place, f"{place} {text}"
    if not place or source not in progress.sources:
        return _note_symptom(progress, origin, text, now)
    is_api_server = "(apiserver" in prefix.lower()  # with more than one: ApiServer_0
    if not is_api_server and (after := _note_event(progress, origin, located_text)) is not None:
        return after
    end = log_patterns.API_END if is_api_server else log_patterns.END
    is_own_text = origin == progress.fatal or end.match(located_text)
    return (_note_own_text if is_own_text else _note_symptom)(progress, origin, text, now)


def _note_event(progress: LoadProgress, origin: str, text: str) -> LoadProgress | None:
    """Note a compiled kernel, or the first line of the end, in a serving engine's log; None for other lines."""
    if jit := log_patterns.JIT.match(text):
        kernel = f"{jit['kernel'].rstrip('.')} ({jit['kind']})"
        return replace(progress, compiled=progress.compiled + 1, kernel=kernel)
    return replace(progress, fatal=origin) if log_patterns.FATAL.match(text) else None


def _note_symptom(progress: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """Note the symptom in a line of a serving engine that may be a client's text."""
    progress, ends_trace = _follow_trace(progress, source, text)
    if not ends_trace and not log_patterns.ERROR.match(text):
        return progress
    if progress.proven_cause(now) or log_patterns.NO_CAUSE.search(text) or log_patterns.SECOND_HAND.search(text):
        return progress
    if progress.symptom and progress.is_failing(now) and text.startswith("terminate called "):
        return progress  # what was logged just before says why
    failing_since = progress.failing_since if progress.is_failing(now) else now
    return replace(progress, cause="", symptom=text, failing_since=failing_since)


def _follow_trace(progress: LoadProgress, source: str, text: str) -> tuple[LoadProgress, bool]:
    """The progress, and whether this line ends a traceback of its source, with the exception."""
    if text.startswith(log_patterns.TRACE):
        return replace(progress, tracing=source), False
    if source != progress.tracing or text.startswith((" ", "^", "+", "|")):  # a line inside a traceback, or of a group
        return progress, False
    return replace(progress, tracing=None), log_patterns.TRACE_END.match(text) is not None


def _note_own_text(progress: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """The progress after a line that is vLLM's own, and no client's text."""
    traced, ends_trace = _follow_trace(progress, source, text)
    notable = log_patterns.ERROR if progress.serving else log_patterns.NOTABLE
    is_notable = ends_trace or notable.match(text)
    if is_notable and (stepped := _note_step(traced, text, now)) is not None:
        return stepped
    if _belongs_to_cause(traced, source, text, now):
        return replace(traced, cause=f"{traced.cause.rstrip(': ')}: {text.strip()}"[:SEARCHED])
    if _reports_gone_process(traced, text, now):
        cause = _find_real_cause(traced) or log_patterns.GONE
        return replace(traced, cause=cause, failing_since=now, worker_died=True)
    if not is_notable or log_patterns.NO_CAUSE.search(text):
        return traced
    return _note_error(traced, source, text, now)


def _note_step(progress: LoadProgress, text: str, now: float) -> LoadProgress | None:
    """Enter or count the step of the load that the line is of; None for other lines."""
    if progress.serving or progress.worker_died:  # after a worker's death the others may load on for minutes
        return None
    matches = ((step, pattern.match(text)) for step, pattern in log_patterns.STEPS)
    return next((_enter_step(progress, step, match.groupdict(), now) for step, match in matches if match), None)


def _reports_gone_process(progress: LoadProgress, text: str, now: float) -> bool:
    """Whether the line reports a process that has gone during the load, while no line just above says why."""
    if progress.serving or not (report := log_patterns.PROCESS_GONE.match(text)):
        return False
    cause = progress.proven_cause(now)
    return not cause or bool(report["worker"] and cause.startswith("[shutdown] Executor: "))


def _find_real_cause(progress: LoadProgress) -> str:
    """The last cause that is more than a shutdown, by a signal or after the end of another process."""
    is_shutdown = log_patterns.STOPPED.match(progress.cause)
    return progress.earlier_cause if not progress.cause or is_shutdown else progress.cause


def _belongs_to_cause(progress: LoadProgress, source: str, text: str, now: float) -> bool:
    """Whether the line continues the cause's message, or explains a cause that sparkd knows no explanation of: the
    same process logs a compiler's message below it, or the exception that it led to."""
    cause = progress.cause
    if not cause or len(cause) >= SEARCHED:
        return False
    if log_patterns.continues_message(cause, text.strip()):
        return True
    if source != progress.cause_source or not progress.is_failing(now) or log_patterns.KILLED.search(cause):
        return False
    if log_patterns.NO_CAUSE.search(text) or log_patterns.WORKER_DIED.match(text):
        return False
    return explain(text) is not None and explain(cause) is None


def _note_error(progress: LoadProgress, source: str, text: str, now: float) -> LoadProgress:
    """Note an error: the first of a burst that is a cause counts, and others are symptoms at most."""
    # In service the first proven error begins a burst of its own.
    begins_burst = not progress.is_failing(now) or (progress.serving and not progress.cause)
    noted = _begin_burst(progress, now) if begins_burst else progress
    if log_patterns.WORKER_DIED.match(text):
        noted = replace(noted, worker_died=True)
        text = _find_own_error(progress, text, now) or text
    if not noted.cause and log_patterns.is_cause(text):
        return replace(noted, cause=text, cause_source=source, failing_since=now)
    keeps_symptom = noted.symptom or (noted.cause and not log_patterns.NCCL_WARNING.match(text))
    return noted if keeps_symptom else replace(noted, symptom=text)


def _begin_burst(progress: LoadProgress, now: float) -> LoadProgress:
    """Forget earlier errors, except the last cause. In service a recent symptom stays: it may have led to the error."""
    symptom = progress.symptom if progress.serving and progress.is_failing(now) else ""
    earlier_cause = _find_real_cause(progress)
    return replace(progress, cause="", symptom=symptom, failing_since=now, earlier_cause=earlier_cause)


def _find_own_error(progress: LoadProgress, text: str, now: float) -> str:
    """The error that a process logged just before it died with an unread exit code; the load survived older ones."""
    is_recent = now - progress.earlier_errors_at <= BURST_SECONDS and not progress.serving
    return progress.earlier_cause if is_recent and "(exit code: None)" in text else ""


def _enter_step(last: LoadProgress, step: str, counts: dict[str, str | None], now: float) -> LoadProgress:
    """The progress at a line that begins or counts a step. The engine has survived any earlier error: it is no cause.

    `counts`: what the line's pattern names: `done` and `total`, or `percent`; `kv`, the tokens of the KV cache.
    """
    if percent := counts.get("percent"):
        counts = {"done": percent, "total": "100"}
    done, total, kv_tokens = (int((counts.get(name) or "0").replace(",", "")) for name in ("done", "total", "kv"))
    is_same = step == last.step
    # Bounded, since a log may go back to a step any number of times.
    ended_steps = last.step_seconds if is_same else (*last.step_seconds, (last.step, now - last.step_since))[-64:]
    return LoadProgress(
        step=step,
        done=done,
        total=total,
        step_since=last.step_since if is_same else now,
        kv_cache_tokens=kv_tokens or last.kv_cache_tokens,
        step_seconds=ended_steps,
        serving=step == log_patterns.LAST_STEP,
        sources=last.sources,
        earlier_cause=_find_real_cause(last),
        earlier_errors_at=last.earlier_errors_at if last.failing_since is None else last.failing_since,
    )
