"""Has kernels compiled before READY, by requests of all sizes, where the caches of any node are cold.

warm.json lists the plans that were warmed on this node, with the number of files of kernels in its caches after that.
A cache with fewer files is cold: it was emptied. Kernels that requests have compiled since only add to it.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.rank import Running
from sparkd.base.host import caches
from sparkd.base.lib.errors import Cause, EngineEndedError, MemoryGuardError, NotReadyError, PeerLostError
from sparkd.base.lib.event_loop import run_in_thread
from sparkd.base.lib.http_client import HttpError
from sparkd.base.plan.agreement import LONGEST_TEXT
from sparkd.base.state.file import PUBLIC, StateFile
from sparkd.base.status.figures import COLD, WARM, WARMING, EngineReport
from sparkd.base.vllm.warm_up import Compiled, Result, add_up, warm_up
from sparkd.base.vllm.warm_up_steps import MOST_AT_ONCE, read_limits

LOOK_SECONDS = 2.0
"""Limit for counting files of kernels in service, where requests wait, and the engine must be watched."""
COUNT_SECONDS = 20.0
"""Limit for counting the files of some ten folders, on a disk that also loads weights."""
MOST_BEGUN = 2
"""An engine that ended so often while it was warmed serves cold: clients may never send what ends it."""
MOST_PLANS = 32
"""Most plans that warm.json lists."""
AGAIN = "it serves all the same; for another try at the next start: sudo rm /var/lib/sparkd/warm.json"


class Entry(Struct, frozen=True):
    agreement: Annotated[str, Meta(max_length=LONGEST_TEXT)]
    """Digest of the plan, the image, the weights and the script."""
    kernels: int | None = None
    """Files in the image's caches, by `caches.count_kernels`; None where it was not warmed yet."""
    begun: int = 0
    """Times in a row that the engine ended while it was warmed."""


class Warmed(Struct, frozen=True):
    plans: Annotated[tuple[Entry, ...], Meta(max_length=MOST_PLANS)] = ()
    """The newest first."""

    def find(self, agreement: str) -> Entry:
        """The plan's entry; a new one where it has none."""
        return next((plan for plan in self.plans if plan.agreement == agreement), Entry(agreement))

    def add(self, entry: Entry) -> "Warmed":
        return Warmed((entry, *(plan for plan in self.plans if plan.agreement != entry.agreement))[:MOST_PLANS])


FILE = StateFile(Warmed, "warm.json", PUBLIC)


def note_warmth(agent: Agent) -> None:
    """Report to the head, which warms for all, whether this node's caches are cold. Unreadable ones count as cold."""
    if agent.settings.readiness.warm != "never" and agent.plan.container.gpus == "all":
        known_kernels, kernels = _read_warmed(agent).find(agent.agreed.agreement.digest).kernels, _count_kernels(agent)
        is_warm = known_kernels is not None and kernels is not None and kernels >= known_kernels
        agent.reporter.update_engine(warmth=WARM if is_warm else COLD)


class WarmthFollower(Struct):
    """Follows the head on a worker: what the head warms after this node's caches were reported is warm here too."""

    agent: Agent
    _saw_warming: bool = False

    def follow(self, head: EngineReport, running: Running) -> None:
        if head.warmth == WARMING:
            self._saw_warming = True
            running.mark_loaded()
        elif self._saw_warming and head.warmth == WARM:
            self._saw_warming = False
            _keep_entry(self.agent, Entry(self.agent.agreed.agreement.digest, _count_kernels(self.agent)))
            self.agent.reporter.update_engine(warmth=WARM)


def make_warm(
    agent: Agent,
    running: Running,
    works: Callable[[], bool],
    show: Callable[[str], object],
    answer_again: Callable[[float], object],
) -> None:
    """Warm the engine on the head, after the first completion. Raises the error that ends the run.

    `works`: whether this rank computes with new memory. `answer_again(seconds)` waits so long for another completion.
    """
    settings, cold = agent.settings.readiness, _find_cold(agent)
    if settings.warm == "never" or not (cold or settings.warm == "always"):
        return
    known_plan = _read_warmed(agent).find(agent.agreed.agreement.digest)
    if known_plan.begun >= MOST_BEGUN:
        agent.reporter.update_engine(warmth="")  # so that nothing else warms it by itself
        reason = f"not warmed: the engine, or its machine, ended the last {known_plan.begun} times meanwhile"
        agent.events.warning("engine.kernels.cold", reason=reason, hint=AGAIN)
        return
    began = running.seconds
    agent.events.info(
        "engine.kernels.warming", cold=", ".join(cold), hint="nothing is to be done: it is ready after it"
    )
    agent.reporter.update_engine(warmth=WARMING)
    _keep_entry(agent, replace(known_plan, begun=known_plan.begun + 1))
    try:
        outcome = _await_warm_up(agent, running, works, show)
        if not outcome.whole:
            answer_again(agent.settings.supervise.stall_seconds if outcome.lost else settings.timeout_seconds)
    except BaseException as error:
        if not _may_be_due_to_requests(error):
            _keep_entry(agent, known_plan)
        raise
    _keep_entry(
        agent, replace(known_plan, begun=0, kernels=_count_kernels(agent) if outcome.over else known_plan.kernels)
    )
    agent.reporter.update_engine(warmth=WARM if outcome.over else COLD)
    _log_outcome(agent, running, outcome, round(running.seconds - began))


def _find_cold(agent: Agent) -> list[str]:
    """Names of the nodes with cold caches."""
    own_report = agent.reporter.report
    cold_peers = [peer.name for peer in agent.monitor.statuses() if peer.report and peer.report.engine.warmth == COLD]
    return [own_report.node, *cold_peers] if own_report.engine.warmth == COLD else cold_peers


def _may_be_due_to_requests(error: BaseException) -> bool:
    """Whether the requests of the warm-up may have caused the error."""
    is_peer_failure = isinstance(error, PeerLostError) and error.cause is Cause.PEER_FAILED
    return is_peer_failure or isinstance(error, EngineEndedError | MemoryGuardError | NotReadyError)


def _log_outcome(agent: Agent, running: Running, outcome: Result, seconds: int) -> None:
    if outcome.whole:
        agent.events.info("engine.kernels.warm", seconds=seconds, reason=outcome.shown)
        return
    last_kernel = running.log.progress.kernel
    reason = outcome.shown + (f"; the last one is {last_kernel}" if last_kernel else "")
    hint = "it serves all the same, and requests may wait for a kernel; once it does: sudo sparkd warm"
    agent.events.warning("engine.kernels.cold", seconds=seconds, reason=reason, hint=hint)


def _await_warm_up(agent: Agent, running: Running, works: Callable[[], bool], show: Callable[[str], object]) -> Result:
    shown = "its kernels to be compiled"

    def note(number: int, done: int, steps: int) -> None:
        nonlocal shown
        shown = f"its kernels to be compiled: pass {number}, {done} of {steps} steps"

    warming = agent.loop.start(_warm_up(agent, running, works, note))
    try:
        while not warming.done():
            show(shown)
            agent.loop.wait(0.5)
    finally:
        warming.cancel()
    try:
        return warming.result()
    except (OSError, HttpError, ValueError) as error:
        return Result(0, 0, 0, 0, fault=str(error))


async def _warm_up(
    agent: Agent, running: Running, works: Callable[[], bool], note: Callable[[int, int, int], object]
) -> Result:
    endpoint = agent.endpoint(running, MOST_AT_ONCE)

    async def look() -> Compiled:
        files = await run_in_thread("kernels", lambda: _count_files(agent))
        peers = [peer.report.engine for peer in agent.monitor.statuses() if peer.report]
        kernels = running.log.progress.compiled
        own_report = EngineReport(compilers=running.compilers.count, kernels_compiled=kernels, works=works())
        return add_up([own_report, *peers], files)

    limits = read_limits(agent.plan.argv, await endpoint.context_tokens())
    seconds, still_seconds = agent.settings.readiness.warm_seconds, agent.settings.supervise.stall_seconds
    return await warm_up(endpoint, limits, look, note, seconds, still_seconds)


def _count_files(agent: Agent) -> int:
    image, names = agent.reporter.report.engine.image, [cache.name for cache in agent.plan.caches]
    return caches.count_kernels(agent.host.files, image, names)


def _count_kernels(agent: Agent) -> int | None:
    """How many files of kernels there are; None where a disk fails or hangs, which ends no load."""
    try:
        return agent.loop.beside(lambda: _count_files(agent), COUNT_SECONDS, "counting kernels in the caches")
    except OSError as error:
        agent.events.warning("engine.kernels.uncounted", reason=str(error), hint="the next start warms them again")
        return None


class KernelGrowth(Struct):
    """New files of kernels in this node's caches. CuTe DSL and others compile inside the engine's own processes."""

    agent: Agent
    _kernel_count: int | None = None

    def detect(self) -> bool:
        """Whether there are new files since the last call. False where they can't be counted, to excuse no engine."""
        previous_count, look = self._kernel_count, partial(_count_files, self.agent)
        count: int | None = self.agent.look(look, LOOK_SECONDS, "counting kernels in service", None)
        self._kernel_count = count
        return previous_count is not None and count is not None and count > previous_count


def _read_warmed(agent: Agent) -> Warmed:
    return agent.store.try_read(FILE.load) or Warmed()


def _keep_entry(agent: Agent, plan: Entry) -> None:
    """Write the entry, unless the others can't be read, which must not be lost."""
    try:
        warmed = agent.store.read(FILE.load) or Warmed()
    except OSError as error:
        agent.store.report_unread(str(error))
    else:
        agent.store.write(FILE, warmed.add(plan))
