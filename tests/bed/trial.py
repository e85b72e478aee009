"""A fault, caused on a pair that serves, and timed."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .acts import HEAD_SIDE, WORKER_SIDE, member, other
from .command import BedError
from .faults import Codes, Fault, Noise
from .pair import Cluster, Moment
from .sparkd_node import complete

RECOVERY_SECONDS = 10.0
"""What coming back may cost beyond the engine's own start."""
NOISY_COMPLETION_SECONDS = 60.0
"""Measured under 20 % loss each way: 2 to 9 s for four tokens."""
MANY_COMPLETIONS = 10
"""Of so many one may take longer: TCP itself waits for up to a minute after a row of losses (seen: one of 20)."""
SETTLED_SECONDS = 30.0
"""After the noise, until all is reported well again."""
LATE_SECONDS = 15.0
"""How long beyond its limit a fault is watched, to say how late it was."""
LOOK_SECONDS = 0.02
SIDES = (HEAD_SIDE, WORKER_SIDE)
Ends = dict[str, list[str]]


@dataclass(frozen=True)
class Result:
    """One row. Seconds are None where the trial did not come so far, or where there is nothing to measure."""

    kind: str
    fault: str
    side: str
    stopped_seconds: float | None = None
    """From the fault until no process of either rank was left."""
    gap_seconds: float | None = None
    """Between the ends of the two."""
    serving_seconds: float | None = None
    """From the event, the end of both ranks or the repair to a completion; of noise, the slowest completion."""
    engine_seconds: float | None = None
    """Of it, the engine's own from its start on."""
    serving_limit_seconds: float | None = None
    ends: tuple[str, ...] = ()
    """`side: code=... reason=...` of each life that failed."""
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fall:
    """How both ranks came down."""

    began: float
    stopped: float | None
    gap: float | None
    complaints: tuple[str, ...] = ()


def run(fault: Fault, cluster: Cluster) -> Result:
    """To serving again."""
    before = cluster.moment()
    fall = fell(fault, cluster, before)
    complaints = [*fall.complaints]
    serving = engine = limit = None
    free_at = fall.began if fault.is_event else fall.began + (fall.stopped or 0)
    try:
        fault.meanwhile(cluster)
    except (BedError, AssertionError) as error:
        complaints.append(str(error) or repr(error))
    if fault.repair is not None:
        time.sleep(max(0.0, fall.began + fault.at_least_seconds - time.monotonic()))
        try:
            fault.repair(cluster)
        except BedError as error:
            complaints.append(f"not repaired: {error}")
        free_at = time.monotonic()
    try:
        cluster.await_serving()
        serving = time.monotonic() - free_at
        engine = cluster.head.engine_seconds(before.cursors[0])
    except BedError as error:
        complaints.append(str(error))
    if engine is not None:
        limit = engine + RECOVERY_SECONDS + fault.extra_seconds
    complaints += late("it served again", serving, limit)
    return _result(fault, cluster, before, fall, complaints, serving, engine, limit)


def run_loading(fault: Fault, cluster: Cluster) -> Result:
    """To the end of both ranks, and to their agents' new lives."""
    before = cluster.moment()
    fall = fell(fault, cluster, before)
    complaints = [*fall.complaints]
    try:
        cluster.await_loading()
    except BedError as error:
        complaints.append(str(error))
    return _result(fault, cluster, before, fall, complaints)


def fell(fault: Fault, cluster: Cluster, before: Moment) -> Fall:
    """Cause it, and see both ranks end."""
    began = fault.cause(cluster)
    try:
        stopped, gap = stops(before, began, fault.stop_seconds + LATE_SECONDS)
    except BedError as error:
        return Fall(began, None, None, (str(error),))
    outlived = late("one rank outlived the other", gap, fault.gap_seconds)
    return Fall(began, stopped, gap, (*late("both ranks stopped", stopped, fault.stop_seconds), *outlived))


def _result(
    fault: Fault,
    cluster: Cluster,
    before: Moment,
    fall: Fall,
    complaints: list[str],
    serving: float | None = None,
    engine: float | None = None,
    limit: float | None = None,
) -> Result:
    ends = failed_lives(cluster, before)
    complaints += unexpected(ends, fault.codes, required=fault.ends_surely)
    complaints += misnamed(ends, fault, cluster)
    return Result(
        fault.kind, fault.name, fault.side, fall.stopped, fall.gap, serving, engine, limit, describe_ends(ends),
        tuple(complaints),
    )  # fmt: skip


def stops(before: Moment, began: float, seconds: float) -> tuple[float, float]:
    """When no process of either rank was left, and how long one outlived the other; BedError when that takes longer."""
    gone: dict[int, float] = {}
    while len(gone) < len(before.ranks):
        now = time.monotonic()
        gone |= {rank: now for rank in range(len(before.ranks)) if rank not in gone and before.gone(rank)}
        if now > began + seconds:
            raise BedError(f"ranks that still run after {seconds:g} s: {set(range(len(before.ranks))) - set(gone)}")
        time.sleep(LOOK_SECONDS)
    return max(gone.values()) - began, max(gone.values()) - min(gone.values())


def run_noise(noise: Noise, cluster: Cluster) -> Result:
    before = cluster.moment()
    over = threading.Event()
    complaints: list[str] = []
    with ThreadPoolExecutor() as pool:
        noise.cause(cluster)
        completing = pool.submit(complete_until, over, cluster)
        try:
            time.sleep(noise.seconds)
            noise.repair(cluster)
        finally:
            over.set()
        took = completing.result()
    deadline = time.monotonic() + SETTLED_SECONDS
    while not cluster.serves() and time.monotonic() < deadline:
        time.sleep(1)
    if not cluster.serves():
        complaints.append(f"not serving {SETTLED_SECONDS:g} s after the noise\n{cluster.describe()}")
    failed = [number + 1 for number, seconds in enumerate(took) if seconds is None]
    if len(failed) > len(took) // MANY_COMPLETIONS:
        complaints.append(f"of {len(took)} completions these failed: {failed}")
    if any(before.gone(rank) for rank in range(len(before.ranks))):
        complaints.append("a rank has ended")
    if cluster.moment().agents != before.agents:
        complaints.append("an agent has restarted")
    ends = failed_lives(cluster, before)
    slowest = max((seconds for seconds in took if seconds is not None), default=None)
    return Result(
        noise.kind, noise.name, noise.side, serving_seconds=slowest, serving_limit_seconds=NOISY_COMPLETION_SECONDS,
        ends=describe_ends(ends), complaints=(*complaints, *unexpected(ends, {}, required=False)),
    )  # fmt: skip


def complete_until(over: threading.Event, cluster: Cluster) -> list[float | None]:
    """Seconds of each completion, one after the other; None for one that failed."""
    took: list[float | None] = []
    while not over.is_set() or not took:
        began = time.monotonic()
        made = complete(cluster.head.node, NOISY_COMPLETION_SECONDS)
        took.append(time.monotonic() - began if made else None)
    return took


def failed_lives(cluster: Cluster, before: Moment) -> Ends:
    lives: Ends = {}
    for side, one, cursor in zip(SIDES, cluster.members, before.cursors, strict=True):
        lives[side] = one.ends_since(cursor) if one.node.init else []
    return lives


def describe_ends(ends: Ends) -> tuple[str, ...]:
    return tuple(f"{side}: {line}" for side, lines in ends.items() for line in lines)


def late(what: str, seconds: float | None, limit: float | None) -> list[str]:
    return [f"{what} after {seconds:.1f} s, not {limit:g} s"] if seconds and limit and seconds > limit else []


def unexpected(ends: Ends, allowed: Codes, required: bool) -> list[str]:
    complaints = []
    for side, lines in ends.items():
        found = {int(match[1]) for line in lines if (match := re.search(r"\bcode=(\d+)", line))}
        may = set(allowed.get(side, ()))
        if not found <= may:
            complaints.append(f"{side}: ended with {sorted(found)}, may end with {sorted(may)}: {lines}")
        if required and may and not found:
            complaints.append(f"{side}: did not end, must end with one of {sorted(may)}")
    return complaints


def misnamed(ends: Ends, fault: Fault, cluster: Cluster) -> list[str]:
    """The first end of each side must have its cause, and its line must say where unless it happened there.

    The record of an end is what the next agent reports; it is all that an agent that was killed leaves.
    """
    complaints = []
    for side, allowed in fault.causes.items():
        causes = [match[1] for line in ends[side] if (match := re.search(r"\bcause=(\S+)", line))]
        report = member(cluster, side).report()
        recorded = report.last_cause_code if report else "no report"
        first = causes[0] if causes else recorded if fault.ends_surely else ""
        if first and first not in allowed:
            complaints.append(f"{side}: the cause is {first}, not of {allowed}")
        if causes and recorded != causes[-1]:
            complaints.append(f"{side}: {recorded} is on record, and the last event has {causes[-1]}")
    for side, lines in ends.items():
        if not lines or not fault.codes:
            continue
        elsewhere = member(cluster, other(side)).node.fabric_address
        if side != (fault.found_on or fault.side) and elsewhere not in lines[0]:
            complaints.append(f"{side}: names no {elsewhere}: {lines[0]}")
    return complaints
