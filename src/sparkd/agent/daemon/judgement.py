"""Judges why a run ends, and whether that counts against its plan, which then waits longer for its next launch. Pure.

It goes by the error and by evidence beside it, which `evidence.py` gathers: who took memory or a port, who ended the
rank, and whether docker hangs.
"""

from msgspec import Struct

from sparkd.agent.cluster.monitor import ADDRESS_HINT
from sparkd.agent.engine.culprits import Culprit
from sparkd.agent.engine.load_progress import LAST_WORDS
from sparkd.base.lib.errors import ACTIONS, Action, Cause, ExitCode, SparkdError
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.status.model import Phase
from sparkd.base.vllm.known_errors import explain

CAUSES_WITHOUT_CULPRIT = frozenset({Cause.KILLED_FROM_OUTSIDE, Cause.ENGINE_STOPPED})
"""Causes that are somebody's doing, not known whose."""
_BY_OTHERS = frozenset({Cause.MEMORY_TAKEN, Cause.PORT_TAKEN})
"""Causes that do not count against the plan. A lost address counts: the engine's words may be all that shows it, and
the count bounds crash loops."""
_CODES_OF_ENGINE = (ExitCode.NOT_READY, ExitCode.ENGINE_ENDED, ExitCode.STALLED, ExitCode.MEMORY_GUARD)
CODES_AGAINST_PLAN = (*_CODES_OF_ENGINE, ExitCode.LAUNCH_FAILED, ExitCode.BUG)
"""Ends that count against the plan, unless others caused them."""
_HINTS = {Action.INSPECT: "sudo sparkd logs --since 1d --level warning"}
"""Hints for an end that has none of its own, by its action."""


class Evidence(Struct, frozen=True):
    """What was found beside the error. A text is empty where nothing was found, or nobody looked."""

    docker_hangs: bool = False
    memory_taken: bool = False
    """Others took more since the launch than the plan leaves above the memory guard's floor."""
    memory_users: str = ""
    """Who took memory, others or the engine."""
    address_gone: str = ""
    """This node's own address on the fabric, where the engine lacked it, or it is missing now."""
    port_holder: str = ""
    """Who else has a port of the rank, where that kept the rank from serving."""
    culprit: Culprit | None = None
    """Who ended the rank from outside; None where nobody was looked for, or looking took too long."""
    frame: str = ""
    """The innermost frame of a rank that hangs."""


def judge_end(error: SparkdError, evidence: Evidence, phase: Phase, at: str) -> End:
    """Judge the end: what happened to the rank comes before what the engine says. `phase`: that in which it failed."""
    users = f"; {evidence.memory_users}" if evidence.memory_users else ""
    reason, hint, cause = error.reason + users, error.hint, error.cause
    if evidence.docker_hangs:
        reason, hint = f"dockerd runs and does not answer: {reason}", "sudo systemctl restart docker"
        cause = Cause.DOCKER_HUNG
    elif (missing := _find_missing_resource(reason, evidence)) is not None:
        reason, hint, cause = missing
    elif (culprit := evidence.culprit) is not None and (culprit.cause or cause in CAUSES_WITHOUT_CULPRIT):
        reason, hint, cause = f"{reason}; {culprit.text}", culprit.hint or hint, _choose_cause(culprit, cause)
    elif error.code is not ExitCode.PEER_LOST and (known_error := explain(own_words(error))) is not None:
        hint = known_error.hint
    if evidence.frame:
        reason = f"{reason}; it was in {evidence.frame}"
    action = error.action if cause is error.cause else ACTIONS[cause]
    return End(reason, int(error.code), hint or _HINTS.get(action, ""), phase.value, at, cause, action)


def _find_missing_resource(reason: str, evidence: Evidence) -> tuple[str, str, Cause] | None:
    """Reason, hint and cause where others have the rank's memory or port, or this node's address is gone."""
    if evidence.memory_taken:
        return reason, "stop that work, or raise memory.headroom_gib", Cause.MEMORY_TAKEN
    if evidence.address_gone:
        text = f"{reason}; this node's own address {evidence.address_gone} was gone"
        return text, ADDRESS_HINT, Cause.OWN_ADDRESS_GONE
    if evidence.port_holder:
        hint = "sparkd starts it again once the port is free: see the check `ports`"
        return f"{reason}; {evidence.port_holder}", hint, Cause.PORT_TAKEN
    return None


def _choose_cause(culprit: Culprit, cause: Cause) -> Cause:
    """The culprit's cause, unless the kernel killed: its own report of a kill is the best evidence."""
    return cause if cause is Cause.KERNEL_OOM else culprit.cause or cause


def own_words(error: SparkdError) -> str:
    """The error's reason without the last words of the log, which a client may have written."""
    return error.reason.partition(LAST_WORDS)[0]


def count_end(launches: LaunchHistory, end: End, backoff_key: str, boot_id: str) -> LaunchHistory:
    """The launch history with this end. A launch that failed by itself counts against its plan."""
    if end.code in CODES_AGAINST_PLAN and end.cause not in _BY_OTHERS and launches.open is not None:
        launches = launches.record_failure(backoff_key, end)
    return launches.record_end(boot_id, end)
