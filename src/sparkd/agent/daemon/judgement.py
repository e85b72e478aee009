"""Why a run ends, judged by the error that ended it and by what was seen beside it. Pure."""

from __future__ import annotations

from msgspec import Struct

from sparkd.agent.engine.load_progress import LAST_WORDS
from sparkd.base.lib.errors import Cause, ExitCode, SparkdError
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.status.model import Phase
from sparkd.base.vllm.known_errors import PORT_IN_USE, explain

_BY_DOCKER = frozenset(
    {
        Cause.SYSTEM_ERROR,
        Cause.LAUNCH_FAILED,
        Cause.NOT_READY,
        Cause.LOAD_STALLED,
        Cause.ENGINE_STALLED,
        Cause.ENGINE_ENDED,
    }
)
"""Causes that a hung dockerd may be behind."""
_SHORT_OF_MEMORY = frozenset({Cause.MEMORY_GUARD, Cause.KERNEL_OOM})
_BY_OTHERS = frozenset({Cause.MEMORY_TAKEN, Cause.PORT_TAKEN})
"""Not counted against the plan."""
_COUNTED = frozenset(
    {
        ExitCode.LAUNCH_FAILED,
        ExitCode.NOT_READY,
        ExitCode.ENGINE_ENDED,
        ExitCode.STALLED,
        ExitCode.MEMORY_GUARD,
        ExitCode.BUG,
    }
)


class Evidence(Struct, frozen=True):
    """What was seen beside the end. The texts are empty where nothing was seen, or nothing was looked at."""

    docker_hangs: bool = False
    memory_taken: str = ""
    """By whom, where others took more since the launch than the plan leaves above the floor."""
    port_holder: str = ""
    """Who else has a port of the rank's, where that kept it from serving."""


def may_be_docker(error: SparkdError) -> bool:
    return error.cause in _BY_DOCKER


def may_be_memory(error: SparkdError) -> bool:
    return error.cause in _SHORT_OF_MEMORY


def may_be_port(error: SparkdError) -> bool:
    return error.code in _COUNTED


def names_port(error: SparkdError) -> bool:
    """Whether the engine says that a port is in use."""
    return any(words in own_words(error) for words in PORT_IN_USE)


def own_words(error: SparkdError) -> str:
    """The reason, without last words of the log that a client may have written."""
    return error.reason.partition(LAST_WORDS)[0]


def judge_end(error: SparkdError, evidence: Evidence, phase: Phase, at: str) -> End:
    """What happened to the rank comes before what the engine says of it. `phase`: in which it failed."""
    reason, hint, cause = error.reason, error.hint, error.cause
    if evidence.docker_hangs:
        reason, hint = f"dockerd runs and does not answer: {reason}", "systemctl restart docker"
        cause = Cause.DOCKER_HUNG
    elif evidence.memory_taken:
        reason, hint = f"{reason}; {evidence.memory_taken}", "stop that work, or raise memory.headroom_gib"
        cause = Cause.MEMORY_TAKEN
    elif evidence.port_holder:
        reason, cause = f"{reason}; {evidence.port_holder}", Cause.PORT_TAKEN
        hint = "sparkd starts it again once the port is free: see the check `ports`"
    elif error.code is not ExitCode.PEER_LOST and (known := explain(own_words(error))) is not None:
        hint = known.hint
    return End(reason, int(error.code), hint, phase.value, at, cause)


def count_end(launches: LaunchHistory, end: End, counted_as: str, boot_id: str) -> LaunchHistory:
    """Write the end into the launch history; a launch that failed by itself counts against its plan."""
    if end.code in _COUNTED and end.cause not in _BY_OTHERS and launches.open is not None:
        launches = launches.record_failure(counted_as, end)
    return launches.record_end(boot_id, end)
