"""Patterns of the lines of vLLM's log that report a step of the load, an error or an end. Pure.

The steps and their lines are those of vLLM 0.32; lines for GPUs (compile, graph capture, memory) are from its source.
A line that another version lacks costs a step in STATUS=, never a launch: readiness probes the endpoint.

Each pattern takes linear time for any line: repeats are bounded, or followed by nothing that may fail.
"""

import re

from msgspec import Struct, toml

from sparkd.base.lib import read_data
from sparkd.base.plan.image_asserts import NOT_AS_NEEDED
from sparkd.base.vllm.log_lines import PROCESS_PREFIX

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
STEPS = tuple((step, re.compile(pattern, re.ASCII)) for step, pattern in _LOG.steps)
ERROR = re.compile("|".join((*_LOG.errors, f"^{NOT_AS_NEEDED}: ")))
WORKER_DIED = re.compile(r"^Worker proc \S{1,64} died unexpectedly \(exit code: (?!0\))")
SECOND_HAND = re.compile(r"Executor failed\.|^[\w.]+$|/ray/session_[\w.-]{1,64}/logs/raylet\.")
"""Errors that only report another one (Ray's agent quotes the log of a dead raylet), and bare names."""
NCCL_WARNING = re.compile(r"[\s\S]{0,250} NCCL WARN (?P<rdma>Call to ibv_)?")
"""A warning that is not about RDMA may be harmless: it is only quoted beside an error of NCCL's. That error may come
first, since what NCCL prints lies in a buffer until its process ends (seen)."""
NCCL_ERROR = re.compile(r"NCCL error|RPC call to \w{1,40} timed out")
NO_CAUSE = re.compile(r"EngineDeadError|[Ss]ee (?:root cause|stack trace)")
"""Errors that point to lines above, and say nothing themselves."""
STOPPED = re.compile(r"\[shutdown\] (?!MPClient)")
GONE = "a process of the rank ended before it was ready, and logged no error"
KILLED = re.compile(rf"exit code[:=] ?(?:-9\b|None\))|engine core exited unexpectedly|^{GONE}$")
"""End of a killed process: one that ends by itself logs an error first. None: vLLM could not read the code yet."""
PROCESS_GONE = re.compile(
    r"(?P<worker>Exception: WorkerProc initialization failed due to an exception in a background process)"
    r"|RuntimeError: Engine core initialization failed\. .{0,100}Failed core proc\(s\): \{(?:\}|'\w{1,40}': -9\b)"
)
"""A process of the load has gone before it was ready. Its own error stands above, unless it was killed. Where it was a
worker, the line of its executor's shutdown stands above, too."""
TRACE = "Traceback (most recent call last):"
TRACE_END = re.compile(r"(?!INFO:)[A-Za-z_][\w.]{0,199}(?:\(\w{1,64}\))?(?:: |$)")
END = re.compile(
    r"multiproc_executor\.py:\d+ (?:Worker proc \S{1,64} died unexpectedly|\[shutdown\] Executor: waiting for worker )"
    r"|core\.py:\d+ \[shutdown\] EngineCore: trigger |ray_\w{1,40}\.py:\d+ RayWorkerProc rank="
)
"""End of a serving engine, with the file of vLLM that logs it: no text of a client can look like that."""
API_END = re.compile(r"core_client\.py:\d+ \[shutdown\] MPClient: |launcher\.py:\d+ \[shutdown\] API server: ")
"""End of the API server. It may print clients' text, so that only these files of its own count."""
FATAL = re.compile(
    r"(?:core|(?:multiproc|uniproc|ray)_executor(?:_v2)?)\.py:\d+ "
    r"(?:EngineCore encountered a fatal|\w{1,40} hit an exception)"
)
"""Begins a traceback; its lines are of the same process, file and line number."""
JIT = re.compile(
    r"jit_monitor\.py:\d+ (?P<kind>[\w -]{1,40}) JIT compilation during inference: (?P<kernel>\S{1,200})", re.ASCII
)
"""vLLM's warning since 0.23. A kernel's name comes from code, not from a client."""
NOTABLE = re.compile(re.sub(r"\?P<\w+>", "?:", "|".join((*(line for _, line in _LOG.steps), ERROR.pattern))))
"""A step or an error. Most lines are neither: matching this one pattern costs a fifth of matching each."""
_IS_CONTINUED = re.compile(
    r"(?:validation errors? for \w{1,80}|NCCL version [\d.]{1,20}|device error\. ?|Last error:|throwing an .{1,80}')$"
)


def split_line(line: str) -> tuple[str, str, str]:
    """The prefix of its process, the file and line number where vLLM's logger names them, and the text."""
    prefix = match[0] if (match := _PREFIX.match(line)) else ""
    stamp = _STAMP.match(line, len(prefix))
    if stamp is None:
        return prefix, "", line[len(prefix) :]
    # At the level DEBUG vLLM logs the file's path.
    return prefix, (stamp["place"] or "").rpartition("/")[2], line[stamp.end() :]


def is_cause(text: str) -> bool:
    """Whether an error may be the cause of a failure: neither second-hand nor a harmless warning of NCCL's."""
    warning = NCCL_WARNING.match(text)
    return not SECOND_HAND.search(text) and (warning is None or warning["rdma"] is not None)


def continues_message(cause: str, text: str) -> bool:
    """Whether the text of a line is the rest of the cause's message."""
    if not text:
        return False
    # NCCL has a line between its own error and what has caused it.
    return _IS_CONTINUED.search(cause) is not None or (text == "Last error:" and "NCCL version" in cause)
