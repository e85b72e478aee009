"""Judges why a run ends, by its error and by other evidence: who took memory or a port, who ended the rank."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec import Struct

from sparkd.agent.cluster.monitor import ADDRESS_HINT
from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.api_owner import find_holder
from sparkd.agent.engine.culprits import Culprit, find_culprit
from sparkd.agent.engine.load_progress import LAST_WORDS
from sparkd.agent.engine.memory_guard.tenants import Growth, describe_growth
from sparkd.agent.engine.rank import Running
from sparkd.base.host import Host, network
from sparkd.base.lib.errors import ACTIONS, Cause, ExitCode, SparkdError
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.lib.text import GIB, MIB
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.status.model import Phase
from sparkd.base.vllm.known_errors import PORT_IN_USE, explain

T = TypeVar("T")

GONE_SECONDS = 5.0
"""Limit for a killed rank to end with its whole container: only then do the other nodes' engines lose it."""
BY_DOCKER = frozenset(
    {
        Cause.SYSTEM_ERROR,
        Cause.LAUNCH_FAILED,
        Cause.NOT_READY,
        Cause.LOAD_STALLED,
        Cause.ENGINE_STALLED,
        Cause.ENGINE_ENDED,
    }
)
"""Causes that may be due to a hung dockerd."""
SHORT_OF_MEMORY = frozenset({Cause.MEMORY_GUARD, Cause.KERNEL_OOM})
BY_ADDRESS = frozenset(
    {Cause.ENGINE_ERROR, Cause.ENGINE_ENDED, Cause.NOT_READY, Cause.LOAD_STALLED, Cause.ENGINE_STALLED}
)
"""Causes that may be due to the loss of this node's own address."""
NO_ADDRESS = "Cannot assign requested address"
"""glibc's text of EADDRNOTAVAIL: a program binds to an address that the node lacks."""
_UNNAMED = frozenset({Cause.KILLED_FROM_OUTSIDE, Cause.ENGINE_STOPPED})
"""Causes that are somebody's doing, not known whose."""
_BY_OTHERS = frozenset({Cause.MEMORY_TAKEN, Cause.PORT_TAKEN})
"""Causes that do not count against the plan. A lost address counts: the engine's words may be all that shows it, and
the count bounds crash loops."""
COUNTED = frozenset(
    {
        ExitCode.LAUNCH_FAILED,
        ExitCode.NOT_READY,
        ExitCode.ENGINE_ENDED,
        ExitCode.STALLED,
        ExitCode.MEMORY_GUARD,
        ExitCode.BUG,
    }
)
"""Ends that count against the plan, unless others caused them."""


class Evidence(Struct, frozen=True):
    """What was found beside the error. A text is empty where nothing was found, or nobody looked."""

    docker_hangs: bool = False
    memory_taken: bool = False
    """Others took more since the launch than the plan leaves above the floor."""
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


class Looks:
    """Looks for the cause behind an error. Looks begin while the rank exists, and are awaited once it is gone."""

    def __init__(self, agent: Agent, running: Running | None, error: SparkdError) -> None:
        self._agent, self._running, self._error = agent, running, error
        self._ends_at = time.monotonic() + agent.pace.last_look_seconds
        self._docker = agent.loop.start(partial(_time_docker_answer, agent.host)) if error.cause in BY_DOCKER else None
        search_holder, search_culprit, search_address = (
            self._choose_holder_search(),
            self._choose_culprit_search(),
            self._choose_address_search(),
        )
        self._holder = agent.loop.start(search_holder) if search_holder is not None else None
        self._culprit = agent.loop.start(search_culprit) if search_culprit is not None else None
        self._address = agent.loop.start(search_address) if search_address is not None else None

    def evidence(self) -> Evidence:
        docker_hangs = False
        if self._docker is not None:
            docker_hangs = not self._is_over(self._docker)
            with suppress(OSError):  # dockerd does not run, or no thread could be started
                docker_hangs = docker_hangs or self._docker.result() > self._ends_at
        holder, culprit = self._await_result(self._holder) or "", self._await_result(self._culprit)
        address = self._await_result(self._address) or ""
        growth = self._find_memory_takers() if self._error.cause in SHORT_OF_MEMORY else Growth("", False)
        if self._error.cause is Cause.PEER_FAILED:
            self._agent.loop.wait_until(self._have_peers_named_causes, self._ends_at - time.monotonic())
        return Evidence(docker_hangs, growth.by_others, growth.text, address, holder, culprit)

    def _have_peers_named_causes(self) -> bool:
        """Whether each failed node has reported its cause, which it does once its rank is gone."""
        reports = (peer.report for peer in self._agent.monitor.statuses())
        return all(report.cause for report in reports if report is not None and report.phase is Phase.FAILED)

    def _is_over(self, look: Outcome[T]) -> bool:
        return self._agent.loop.wait_until(look.done, self._ends_at - time.monotonic())

    def _await_result(self, look: Outcome[T] | None) -> T | None:
        """The result of a look; None where it was not begun, failed, or is not over in time."""
        if look is not None and self._is_over(look):
            with suppress(OSError, ValueError):
                return look.result()
        return None

    def _choose_holder_search(self) -> Callable[[], str] | None:
        agent, running = self._agent, self._running
        if running is None or running.ready or not agent.context.is_head or self._error.code not in COUNTED:
            return None
        holder, words = running.api_holder, own_words(self._error)
        port_in_use = any(message in words for message in PORT_IN_USE)
        if holder and (port_in_use or holder in words):
            return lambda: holder
        if not port_in_use:
            return None
        return partial(find_holder, agent.host, (agent.plan.api_port, agent.plan.master_port), running.rank.pid)

    def _choose_culprit_search(self) -> Callable[[], Culprit] | None:
        running = self._running
        if running is None or not _may_have_culprit(self._error):
            return None
        rank, pids = running.rank, running.compilers.pids if running.compilers is not None else frozenset[int]()
        container = (rank.container_id, rank.name)
        return partial(find_culprit, self._agent.host, container, pids | {rank.pid}, time.time())

    def _choose_address_search(self) -> Callable[[], str] | None:
        agent, running, address = self._agent, self._running, self._agent.plan.node.address
        if running is None or not agent.context.peers or self._error.cause not in BY_ADDRESS:
            return None
        words = "" if running.ready else own_words(self._error)
        if NO_ADDRESS in words and re.search(rf"\b{re.escape(address)}\b(?!\.\d)", words):
            return lambda: address
        return partial(_find_gone_address, agent.host, address)

    def _find_memory_takers(self) -> Growth:
        agent, running = self._agent, self._running
        if running is None or running.tenants is None:
            return Growth("", False)
        has_ended = agent.loop.wait_until(running.rank.ended.is_set, GONE_SECONDS)
        if not has_ended or (tenants := running.read_tenants()) is None:
            return Growth("", False)
        memory = agent.settings.memory
        return describe_growth(running.tenants, tenants, round(memory.headroom_gib * GIB) - memory.floor_mib * MIB)


def _time_docker_answer(host: Host) -> float:
    """Query dockerd. Returns the monotonic time of its answer. Raises OSError where it does not run."""
    host.docker()
    return time.monotonic()


def _find_gone_address(host: Host, address: str) -> str:
    """The address, if no interface has it; else empty. Raises OSError, ValueError."""
    return "" if network.canonical(address) in network.read_addresses(host.files) else address


def _may_have_culprit(error: SparkdError) -> bool:
    """Whether somebody may have ended the rank from outside."""
    process_died = error.cause is Cause.ENGINE_ERROR and "died unexpectedly (exit code" in own_words(error)
    return process_died or error.cause in (*_UNNAMED, Cause.KERNEL_OOM, Cause.ENGINE_ENDED)


def own_words(error: SparkdError) -> str:
    """The error's reason without the last words of the log, which a client may have written."""
    return error.reason.partition(LAST_WORDS)[0]


def _choose_cause(culprit: Culprit, cause: Cause) -> Cause:
    """The culprit's cause, unless the kernel killed: its own report of a kill is the best evidence."""
    return cause if cause is Cause.KERNEL_OOM else culprit.cause or cause


def judge_end(error: SparkdError, evidence: Evidence, phase: Phase, at: str) -> End:
    """Judge the end: what happened to the rank comes before what the engine says. `phase`: that in which it failed."""
    users = f"; {evidence.memory_users}" if evidence.memory_users else ""
    reason, hint, cause = error.reason + users, error.hint, error.cause
    if evidence.docker_hangs:
        reason, hint = f"dockerd runs and does not answer: {reason}", "sudo systemctl restart docker"
        cause = Cause.DOCKER_HUNG
    elif (lack := _find_lack(reason, evidence)) is not None:
        reason, hint, cause = lack
    elif (culprit := evidence.culprit) is not None and (culprit.cause or cause in _UNNAMED):
        reason, hint, cause = f"{reason}; {culprit.text}", culprit.hint or hint, _choose_cause(culprit, cause)
    elif error.code is not ExitCode.PEER_LOST and (known_error := explain(own_words(error))) is not None:
        hint = known_error.hint
    if evidence.frame:
        reason = f"{reason}; it was in {evidence.frame}"
    action = error.action if cause is error.cause else ACTIONS[cause]
    return End(reason, int(error.code), hint, phase.value, at, cause, action)


def _find_lack(reason: str, evidence: Evidence) -> tuple[str, str, Cause] | None:
    """Reason, hint and cause where the rank lacked what it had at its start; the plan is not to blame."""
    if evidence.memory_taken:
        return reason, "stop that work, or raise memory.headroom_gib", Cause.MEMORY_TAKEN
    if evidence.address_gone:
        text = f"{reason}; this node's own address {evidence.address_gone} was gone"
        return text, ADDRESS_HINT, Cause.OWN_ADDRESS_GONE
    if evidence.port_holder:
        hint = "sparkd starts it again once the port is free: see the check `ports`"
        return f"{reason}; {evidence.port_holder}", hint, Cause.PORT_TAKEN
    return None


def count_end(launches: LaunchHistory, end: End, backoff_key: str, boot_id: str) -> LaunchHistory:
    """The launch history with this end. A launch that failed by itself counts against its plan."""
    if end.code in COUNTED and end.cause not in _BY_OTHERS and launches.open is not None:
        launches = launches.record_failure(backoff_key, end)
    return launches.record_end(boot_id, end)
