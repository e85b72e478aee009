"""The fault table: faults of two nodes that serve together, and the required outcome.

Events are known at once; silence is known by its length; noise ends nothing. A fault is caused on a pair that serves,
both ranks must stop in time, each side must say where and why, and the endpoint must answer again by itself.

`in_ci` marks the rows that every change is tested with, one of each kind on one side, except those that the rows of
one node show as well (a restart of docker, SIGSTOP, a reboot), and a stop, with which each difference begins.
`make bed` runs all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from . import acts, differences, victims
from .acts import BOTH, HEAD_SIDE, LINK, WORKER_SIDE, nothing, other
from .pair import LOAD_STALL_SECONDS, PEER_TIMEOUT_SECONDS, Cluster

GAP_SECONDS = 2.0
"""No rank outlives another for longer, once something has happened."""
HUNG_DOCKER_GAP_SECONDS = 6.0
"""The end is reported after a look at dockerd, which is given 3 s."""
EVENT_SECONDS = 2.0
ENGINE_SECONDS = 10.0
"""For the engine itself to find that one of its processes is gone, as it looks every 5 s; or for docker to go."""
HALTED_SECONDS = 45.0
"""For a rank that is stopped or frozen: less than STALL_SECONDS."""
STACKS_GAP_SECONDS = 6.0
"""Each node reads its rank's stacks before it ends it."""
SILENCE_SECONDS = PEER_TIMEOUT_SECONDS + 5.0
EATEN_SECONDS = 60.0
"""For the 8 GiB of a node to go."""
COOLING_SECONDS = 5.0
"""After a launch that counts as the first to fail."""
DOCKER_STOP_SECONDS = 15.0
"""A headless vLLM takes 12 s to handle SIGTERM, and docker kills it after 10."""
STOP_SECONDS = 5.0
"""An orderly stop: a worker waits up to 3 s for its head to leave service."""
SHOWN_SECONDS = 10.0
"""A plan that differs is shown for 6 s before the node restarts with its current configuration."""

Act = Callable[[Cluster], None]
Cause = Callable[[Cluster], float]
"""Gives the moment, monotonic, at which it happened."""
Codes = Mapping[str, tuple[int, ...]]
Causes = Mapping[str, tuple[str, ...]]

OUTSIDE = "killed-from-outside"
DOCKER = "docker-restarted"
CHANGED = ("blocked", "plan-outdated")


@dataclass(frozen=True)
class Fault:
    """One that ends both ranks. `codes`: what a life may end with, by side; nothing where it may not end by failure.

    `meanwhile` checks the pair while it waits, `repair` does what no agent can do. The time to serving counts from the
    end of the repair, else from an event itself, else from the end of both ranks; what it may be over the engine's
    own start is ten seconds and `extra_seconds`.
    """

    kind: str
    name: str
    side: str
    cause: Cause
    codes: Codes
    causes: Causes
    """The code that each side's first end has, in its event and in the exit record that the next agent reports."""
    found_on: str = ""
    """The side whose line names no other node; empty for that of the fault."""
    stop_seconds: float = EVENT_SECONDS
    gap_seconds: float | None = GAP_SECONDS
    ends_surely: bool = True
    """Whether each side with codes must end with one."""
    meanwhile: Act = nothing
    repair: Act | None = None
    at_least_seconds: float = 0.0
    """From the cause to the repair."""
    extra_seconds: float = 0.0
    in_ci: bool = False

    @property
    def is_event(self) -> bool:
        """Noticed at once, by somebody."""
        return self.stop_seconds <= ENGINE_SECONDS


@dataclass(frozen=True)
class Noise:
    """One that ends nothing: completions come, late perhaps, and no agent is another one afterwards."""

    kind: str
    name: str
    side: str
    cause: Cause
    seconds: float
    repair: Act
    in_ci: bool = False


def on(side: str) -> list[Fault]:
    """Faults of either node."""
    head = side == HEAD_SIDE
    elsewhere, there = {other(side): (14,)}, other(side)
    by_power = {side: ("agent-killed",)}
    table = [
        killed(side, "kill the engine's main process", partial(acts.kill, side, victims.main_of_engine)),
        killed_worker(side),
        killed(side, "docker kill", partial(acts.docker_kill, side)),
        Fault(
            "agent", "kill dockerd", side, partial(acts.kill, side, victims.dockerd),
            {side: (11, 13), **elsewhere}, {side: (DOCKER, "launch-failed"), there: ("peer-failed",)},
            stop_seconds=ENGINE_SECONDS,
        ),
        Fault(
            "docker", "systemctl restart docker", side, partial(acts.restart_docker, side),
            {side: (13,), **elsewhere}, {side: (DOCKER,), there: ("peer-failed",)}, stop_seconds=DOCKER_STOP_SECONDS,
        ),
        Fault(
            "docker", "docker stop", side, partial(acts.docker_stop, side),
            {side: (13,), **elsewhere}, {side: ("engine-stopped",), there: ("peer-failed",)},
            stop_seconds=DOCKER_STOP_SECONDS,
        ),
        Fault(
            "docker", "dockerd hangs, and the engine is killed", side, partial(acts.kill_without_docker, side),
            {side: (13,), **elsewhere}, {side: ("docker-hung",), there: ("peer-failed",)}, stop_seconds=ENGINE_SECONDS,
            gap_seconds=HUNG_DOCKER_GAP_SECONDS, repair=partial(acts.wake_docker, side), at_least_seconds=20,
        ),
        Fault(
            "link", "the fabric's address is gone", side, partial(acts.lose_address, side),
            {side: (14,), **elsewhere}, {side: ("own-address-gone",), there: ("peer-silent",)},
            stop_seconds=SILENCE_SECONDS, gap_seconds=None, repair=partial(acts.regain_address, side),
            at_least_seconds=25,
        ),
        Fault(
            "hang", "SIGSTOP of the worker process under requests", side, partial(acts.hang, side),
            {side: (15,), **elsewhere}, {side: ("engine-stalled",), there: ("peer-failed",)},
            stop_seconds=HALTED_SECONDS, gap_seconds=STACKS_GAP_SECONDS, meanwhile=acts.quiet,
        ),
        Fault(
            "hang", "docker pause of an idle rank, then a request", side, partial(acts.pause, side),
            {side: (15,), **elsewhere}, {side: ("engine-stalled",), there: ("peer-failed",)},
            stop_seconds=HALTED_SECONDS, gap_seconds=STACKS_GAP_SECONDS, meanwhile=acts.degraded_in_time,
            in_ci=not head,
        ),
        Fault(
            "stop", "systemctl stop, later start", side, partial(acts.stop, side), elsewhere,
            {there: ("peer-stopped",)},
            stop_seconds=STOP_SECONDS, meanwhile=partial(acts.awaits, side), repair=partial(acts.start, side),
        ),
        Fault(
            "power", "reboot", side, partial(acts.reboot, side), elsewhere, {there: ("peer-stopped",)},
            stop_seconds=STOP_SECONDS, repair=partial(acts.wait_up, side),
        ),
        Fault(
            "power", "power cut", side, partial(acts.cut_power, side), elsewhere,
            {there: ("peer-silent",), **by_power}, stop_seconds=SILENCE_SECONDS, gap_seconds=None,
            repair=partial(acts.power_on, side), in_ci=not head,
        ),
    ]  # fmt: skip
    if head:
        table.insert(1, killed(side, "kill EngineCore", partial(acts.kill, side, victims.engine_core), ENGINE_SECONDS))
    return table + [differing(side, difference, in_ci=side in difference.in_ci) for difference in differences.ALL]


def killed(side: str, name: str, cause: Cause, seconds: float = EVENT_SECONDS) -> Fault:
    codes: Codes = {side: (13,), other(side): (14,)}
    causes: Causes = {side: (OUTSIDE,), other(side): ("peer-failed",)}
    return Fault("process", name, side, cause, codes, causes, stop_seconds=seconds)


def killed_worker(side: str) -> Fault:
    """For every change the head's is killed where messages of a pair's loss are awaited."""
    return killed(side, "kill the engine's worker process", partial(acts.kill, side, victims.worker), ENGINE_SECONDS)


def killed_agent(side: str) -> Fault:
    """One that serves is taken over: `crashes.CRASHES`."""
    there = other(side)
    return Fault(
        "agent", "kill sparkd", side, partial(acts.kill, side, victims.sparkd), {there: (14,)},
        {there: ("peer-lost",), side: ("agent-killed",)},
    )  # fmt: skip


def differing(side: str, difference: differences.Difference, in_ci: bool) -> Fault:
    return Fault(
        "difference", difference.name, side, partial(acts.stop, side), {side: (10,), other(side): (10, 14)},
        {side: CHANGED, other(side): (*CHANGED, "peer-stopped")},
        stop_seconds=STOP_SECONDS, ends_surely=False, meanwhile=partial(acts.differ, side, difference),
        repair=partial(acts.undo, side, difference), extra_seconds=SHOWN_SECONDS, in_ci=in_ci,
    )  # fmt: skip


_LOST = {HEAD_SIDE: (14,), WORKER_SIDE: (14,)}
_SILENT = {HEAD_SIDE: ("peer-silent",), WORKER_SIDE: ("peer-silent",)}
_CUT = {HEAD_SIDE: ("own-address-gone",), WORKER_SIDE: ("own-address-gone",)}
"""Without a carrier systemd-networkd takes the address away."""
FAULTS: tuple[Fault, ...] = (
    *on(HEAD_SIDE),
    *on(WORKER_SIDE),
    Fault(
        "power", "power cut of both at once", BOTH, acts.cut_power_of_all, {},
        {HEAD_SIDE: ("agent-killed",), WORKER_SIDE: ("agent-killed",)}, stop_seconds=SILENCE_SECONDS,
        gap_seconds=None, repair=acts.power_on_all,
    ),
    Fault(
        "link", "fabric cut for 20 s", LINK, acts.cut, _LOST, _CUT, LINK, SILENCE_SECONDS, None,
        repair=acts.clear, at_least_seconds=20, in_ci=True,
    ),
    Fault(
        "link", "fabric cut for good", LINK, acts.cut, _LOST, _CUT, LINK, SILENCE_SECONDS, None,
        meanwhile=acts.both_wait, repair=acts.clear, at_least_seconds=90,
    ),
    Fault(
        "link", "fabric that swallows everything", LINK, acts.blackhole, _LOST, _SILENT, LINK, SILENCE_SECONDS, None,
        meanwhile=acts.both_wait, repair=acts.clear, at_least_seconds=40,
    ),
)  # fmt: skip
NOISES: tuple[Noise, ...] = (
    Noise("noise", "fabric cut for 3 s", LINK, acts.cut, 3, acts.clear, in_ci=True),
    # At 20 % a segment of the engine's may be lost seven times in a row: 25 s by TCP's clock.
    Noise("noise", "loss of 10 % for 24 s", LINK, partial(acts.lose, 10), 24, acts.clear, in_ci=True),
    Noise("noise", "loss of 20 % for half a minute", LINK, partial(acts.lose, 20), 30, acts.clear),
    Noise("noise", "loss of 20 % for five minutes", LINK, partial(acts.lose, 20), 300, acts.clear),
)
OUT_OF_MEMORY = Fault(
    "memory", "a process in the worker's container takes all memory", WORKER_SIDE, partial(acts.eat, WORKER_SIDE),
    {HEAD_SIDE: (14,), WORKER_SIDE: (16,)}, {HEAD_SIDE: ("peer-failed",), WORKER_SIDE: ("memory-guard",)},
    stop_seconds=EATEN_SECONDS,
    meanwhile=partial(acts.counted, WORKER_SIDE), extra_seconds=COOLING_SECONDS,
)  # fmt: skip
"""For a pair whose launch the ledgers still have."""
WHILE_LOADING: tuple[Fault, ...] = tuple(
    replace(fault, name=f"{fault.name}, while the ranks load")
    for side in (HEAD_SIDE, WORKER_SIDE)
    for fault in (killed_agent(side), *on(side))
    if fault.kind == "agent"
)
"""One after the other: each hits the pair as it starts after the one before."""
HANGING_LOADS: tuple[Fault, ...] = tuple(
    Fault(
        "hang", "SIGSTOP of the worker process, while the ranks load", side, partial(acts.halt, side),
        {side: (12,), other(side): (14,)}, {side: ("load-stalled",), other(side): ("peer-failed",)},
        stop_seconds=1.5 * LOAD_STALL_SECONDS,
    )
    for side in (HEAD_SIDE, WORKER_SIDE)
)  # fmt: skip
