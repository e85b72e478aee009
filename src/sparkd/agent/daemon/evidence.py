"""Gathers the evidence of why a run ends, beside its error. What it means is judged in `judgement.py`.

A look runs only where the error may have the cause that it would show.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.judgement import CAUSES_WITHOUT_CULPRIT, CODES_AGAINST_PLAN, Evidence, own_words
from sparkd.agent.engine.culprits import Culprit, find_culprit
from sparkd.agent.engine.memory_guard.tenants import Growth, describe_growth
from sparkd.agent.engine.rank import Running
from sparkd.agent.preflight.port_uses import find_holder
from sparkd.base.host import Host, network
from sparkd.base.lib.errors import Cause, SparkdError
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.lib.text import GIB, MIB
from sparkd.base.status.model import Phase
from sparkd.base.vllm.known_errors import PORT_IN_USE

T = TypeVar("T")

GONE_SECONDS = 5.0
"""Limit for a killed rank to end with its whole container: only then do the other nodes' engines lose it."""
_ENGINE_CAUSES = (Cause.ENGINE_ENDED, Cause.NOT_READY, Cause.LOAD_STALLED, Cause.ENGINE_STALLED)
NO_ADDRESS = "Cannot assign requested address"
"""glibc's text of EADDRNOTAVAIL: a program binds to an address that the node lacks."""


class EvidenceSearch:
    """The looks for evidence at one end. They begin while the rank exists, and are awaited once it is gone."""

    def __init__(self, agent: Agent, running: Running | None, error: SparkdError) -> None:
        """Begin the looks, each in a thread. `running`: None where no rank was started."""
        self._agent, self._running, self._error = agent, running, error
        self._ends_at = time.monotonic() + agent.pace.last_look_seconds
        may_hang = error.cause in (*_ENGINE_CAUSES, Cause.SYSTEM_ERROR, Cause.LAUNCH_FAILED)
        self._docker_look = self._start(partial(_time_docker_answer, agent.host) if may_hang else None)
        self._holder_look = self._start(self._choose_holder_look())
        self._culprit_look = self._start(self._choose_culprit_look())
        self._address_look = self._start(self._choose_address_look())

    def gather(self) -> Evidence:
        """Await the looks, until `pace.last_look_seconds` after they began. One that fails or is late finds nothing.

        To be called once the rank is killed: who took memory is looked at only after its end, for which it waits up
        to GONE_SECONDS. After the failure of another node, that node's cause is awaited too.
        """
        evidence = Evidence(
            docker_hangs=self._has_docker_hung(),
            address_gone=self._await_result(self._address_look) or "",
            port_holder=self._await_result(self._holder_look) or "",
            culprit=self._await_result(self._culprit_look),
        )
        growth = self._find_growth()
        if self._error.cause is Cause.PEER_FAILED:
            self._agent.loop.wait_until(self._have_peers_named_causes, self._ends_at - time.monotonic())
        return replace(evidence, memory_taken=growth.by_others, memory_users=growth.text)

    def _start(self, look: Callable[[], T] | None) -> Outcome[T] | None:
        return self._agent.loop.start(look) if look is not None else None

    def _is_over(self, look: Outcome[T]) -> bool:
        return self._agent.loop.wait_until(look.done, self._ends_at - time.monotonic())

    def _await_result(self, look: Outcome[T] | None) -> T | None:
        """The result of a look; None where it was not begun, failed, or is not over in time."""
        if look is not None and self._is_over(look):
            with suppress(OSError, ValueError):
                return look.result()
        return None

    def _choose_holder_look(self) -> Callable[[], str] | None:
        """The look for who else has a port of a head's rank; None where the error can't have that cause."""
        agent, running = self._agent, self._running
        if running is None or running.ready or not agent.context.is_head or self._error.code not in CODES_AGAINST_PLAN:
            return None
        holder, words = running.api_holder, own_words(self._error)
        port_in_use = any(message in words for message in PORT_IN_USE)
        if holder and (port_in_use or holder in words):
            return lambda: holder  # found while the rank started, and awaited as a look is
        if not port_in_use:
            return None
        return partial(find_holder, agent.host, (agent.plan.api_port, agent.plan.master_port), running.rank.pid)

    def _choose_culprit_look(self) -> Callable[[], Culprit] | None:
        """The look for who ended the rank from outside; None where the error can't have that cause."""
        running, error = self._running, self._error
        process_died = error.cause is Cause.ENGINE_ERROR and "died unexpectedly (exit code" in own_words(error)
        may_have_culprit = process_died or error.cause in (
            *CAUSES_WITHOUT_CULPRIT,
            Cause.KERNEL_OOM,
            Cause.ENGINE_ENDED,
        )
        if running is None or not may_have_culprit:
            return None
        rank, pids = running.rank, running.compilers.pids | {running.rank.pid}
        return partial(find_culprit, self._agent.host, (rank.container_id, rank.name), pids, time.time())

    def _choose_address_look(self) -> Callable[[], str] | None:
        """The look for a loss of this node's own address; None where the error can't have that cause."""
        agent, running, address = self._agent, self._running, self._agent.plan.node.address
        if running is None or not agent.context.peers:
            return None
        if self._error.cause not in (*_ENGINE_CAUSES, Cause.ENGINE_ERROR):
            return None
        words = "" if running.ready else own_words(self._error)
        if NO_ADDRESS in words and re.search(rf"\b{re.escape(address)}\b(?!\.\d)", words):
            return lambda: address  # known, and awaited as a look is
        return partial(_find_gone_address, agent.host, address)

    def _has_docker_hung(self) -> bool:
        """Whether dockerd runs, and has not answered in time."""
        look = self._docker_look
        return look is not None and (not self._is_over(look) or (self._await_result(look) or 0.0) > self._ends_at)

    def _find_growth(self) -> Growth:
        """Whose memory has grown since the launch, where memory ran short. Only a rank that is gone can be left out."""
        agent, running, unknown = self._agent, self._running, Growth("", False)
        ran_short = self._error.cause in (Cause.MEMORY_GUARD, Cause.KERNEL_OOM)
        if not ran_short or running is None or running.tenants is None:
            return unknown
        has_ended = agent.loop.wait_until(running.rank.ended.is_set, GONE_SECONDS)
        if not has_ended or (tenants := running.read_tenants()) is None:
            return unknown
        memory = agent.settings.memory
        return describe_growth(running.tenants, tenants, round(memory.headroom_gib * GIB) - memory.floor_mib * MIB)

    def _have_peers_named_causes(self) -> bool:
        """Whether each failed node has reported its cause, which it does once its rank is gone."""
        reports = (peer.report for peer in self._agent.monitor.statuses())
        return all(report.cause for report in reports if report is not None and report.phase is Phase.FAILED)


def _time_docker_answer(host: Host) -> float:
    """Query dockerd. Returns the monotonic time of its answer. Raises OSError where it does not run."""
    host.docker()
    return time.monotonic()


def _find_gone_address(host: Host, address: str) -> str:
    """The address, if no interface has it; else empty. Raises OSError, ValueError."""
    return "" if network.canonical(address) in network.read_addresses(host.files) else address
