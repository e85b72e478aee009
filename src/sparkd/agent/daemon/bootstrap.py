"""Builds the agent before its first step: settings, node lock, plan, report, connections to the other nodes."""

import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from msgspec.structs import asdict, replace

from sparkd.agent.actions import Actions
from sparkd.agent.cluster.service import join_cluster
from sparkd.agent.daemon.assembly import assemble, read_keys_beside, report_sinks, serve_observers, unplaced_status
from sparkd.agent.daemon.configuration_stamp import Stamp, look_at_configuration, stamp_configuration
from sparkd.agent.daemon.context import USUAL_PACE, Agent, AgentProcess, Base, Pace
from sparkd.agent.daemon.head_config import report_followed
from sparkd.agent.daemon.head_follower import HeadFollower
from sparkd.agent.daemon.kernel_log import follow_kernel_log
from sparkd.agent.daemon.machine_end import note_machine_end
from sparkd.agent.daemon.readahead import restore_readahead
from sparkd.agent.daemon.reloading import reap_inherited
from sparkd.agent.daemon.switch_start import begin_switch, end_start, stamp_switch
from sparkd.agent.daemon.switching import waiting_limit
from sparkd.agent.daemon.taking_over import AdoptableRank, find_adoptable_rank, note_owner, open_rank, take_over
from sparkd.base.cluster.membership import NodeContext, find_place, resolve_context
from sparkd.base.config import LoadedSettings, Settings, load_with_origins
from sparkd.base.host import Host
from sparkd.base.host.owner import Handed, NodeOwner, take_handed
from sparkd.base.lib.endings import Ending, Stage, StopRequested
from sparkd.base.lib.errors import (
    AddressAwaitedError,
    AwaitedError,
    BlockedError,
    ChoiceError,
    ConfigError,
    DamagedError,
    HeadAwaitedError,
    HeadRefusedError,
    NotReadyError,
    OutdatedPlanError,
    SparkdError,
)
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import Events, ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.systemd import Notifier, invocation_id
from sparkd.base.lib.times import utc_now
from sparkd.base.status.model import Phase
from sparkd.base.status.publisher import Reporter

T = TypeVar("T")


def build_agent(
    role: str,
    loop: MainLoop,
    notifier: Notifier,
    journal: Journal,
    log: ProcessLog,
    env: Mapping[str, str],
    root: Path = Path("/"),
    pace: Pace = USUAL_PACE,
) -> Agent:
    """Build the agent, or take over the rank of the one before. Waits without a deadline for the node's fabric address,
    and for files of the configuration or that it names.

    Raises ConfigError (78) where no restart helps, BlockedError (10) where another owner has the node or the
    configuration changes meanwhile, StopRequested, OSError where the machine fails.
    """
    host, handed = Host(root), take_handed(os.environ)
    if handed is not None:
        reap_inherited()
    invocation = invocation_id(env) or (handed.invocation if handed else "") or uuid.uuid4().hex
    owner = NodeOwner(os.getpid(), f"sparkd run --role {role}", invocation)
    log.bind(node=host.name())
    log.events(Redaction())  # loads structlog, and routes libraries' records, while the machine can still be read
    loop.listen()
    configured_at = look_at_configuration(loop, root, {})
    process = AgentProcess(role, host, owner, loop, notifier, journal, log, configured_at, pace)
    refusals = list[str]()
    adoptable = find_adoptable_rank(host, role, owner.invocation, refusals.append, handed=handed is not None)
    if adoptable is not None:
        if (agent := _adopt_rank(process, adoptable, handed)) is not None:
            return agent
        handed = None  # the node lock is free again
        refusals.append("its first process has just ended, or is in another container")
    process, loaded = _await_settings(process, env, root, handed)
    return _start_afresh(process, loaded, handed, refusals)


def _await_settings(
    process: AgentProcess, env: Mapping[str, str], root: Path, handed: Handed | None
) -> tuple[AgentProcess, LoadedSettings]:
    """Load the settings as soon as they can be read, with one line for each reason. Returns also the process with their
    stamp. Raises ConfigError, and BlockedError (exit 10) where the lock was handed on: while it is held, the guard ends
    no rank.
    """

    def read() -> tuple[Stamp, LoadedSettings]:
        return stamp_configuration(root), load_with_origins(env, root)

    reported = ""
    while True:
        try:
            stamp, loaded = process.loop.beside(read, process.pace.read_seconds, "reading the settings")
            return replace(process, configured_at=stamp), loaded
        except DamagedError:  # a person has to act, and an agent without settings serves no status to show that
            raise
        except (AwaitedError, TimeoutError) as error:  # a share is late, or hangs
            reason, hint = getattr(error, "reason", str(error)), getattr(error, "hint", "") or "look at: sudo dmesg"
            hint = f"sparkd waits for it; {hint}"
            if handed is not None:
                raise BlockedError(reason, hint) from None
            if reason != reported:
                reported = reason
                process.log.events(Redaction()).warning("agent.start.awaited", reason=reported, hint=hint)
                process.notifier.status(f"waiting for the settings: {reported}")
            process.loop.wait(process.pace.look_seconds)


def _adopt_rank(process: AgentProcess, adoptable: AdoptableRank, handed: Handed | None) -> Agent | None:
    """Build the agent for the rank of the one before it; None, without the node lock, where that has just ended.

    Raises BlockedError (exit 10) where something is missing that may come back: the next process tries again, for as
    long as the guard waits.
    """
    settings, loop = adoptable.kept.configured, process.loop
    process.log.configure(as_json=settings.log.format == "json", level=settings.log.level)
    actions = Actions.acquire(process.host, loop, process.owner, handed)
    if (rank := open_rank(process.host, adoptable)) is None:
        actions.release()
        return None
    loop.endings.enter(Stage.END)  # what would end the rank is acted on once it is this agent's
    equals_no_stamp = object()  # so that a choice that was made while no agent ran is looked for at once
    base = _make_base(process, settings, actions, process.log.events(Redaction()), switch_seen=equals_no_stamp)
    try:
        agent = assemble(base, adoptable.kept.context, adoptable=adoptable)
    except ConfigError as error:
        raise BlockedError(error.reason, error.hint) from None
    take_over(agent, note_owner(agent, adoptable), rank)
    follow_kernel_log(agent.host, agent.loop, agent.reporter, agent.events)
    loop.endings.enter(Stage.RUN)
    return agent


def _start_afresh(
    process: AgentProcess, loaded: LoadedSettings, handed: Handed | None, refusals: Sequence[str]
) -> Agent:
    """Build the agent by what is configured or chosen. `refusals`: why a rank that was left is not taken over."""
    settings, host, loop = loaded.settings, process.host, process.loop
    process.log.configure(as_json=settings.log.format == "json", level=settings.log.level)
    events = process.log.events(Redaction())
    place = None
    # Before the lock, so that a unit of the wrong role changes nothing. `begin_switch` below drops a newly chosen plan
    # that can't be made.
    with suppress(AwaitedError, ChoiceError):
        place = _resolve_place(process, settings)
    actions = Actions.acquire(host, loop, process.owner, handed)
    for reason in refusals:  # logged only now: only the unit of this node's role gets here
        hint = "nothing is to be done: it is ended, and another one is started"
        events.warning("engine.rank.refused", reason=reason, hint=hint)
    if fault := actions.disown_rank():
        events.warning("state.read.failed", reason=fault)
    note_machine_end(host, actions, loop, events)
    base = _make_base(process, settings, actions, events, switch_seen=stamp_switch(host))
    # A bad key is raised, and a missing one awaited, before the step of `begin_switch`: no plan is at fault.
    _await(base, events, partial(read_keys_beside, loop, host, settings))
    switch, switch_seen = begin_switch(settings, host, actions, events)
    if place is not None and place.switch != switch:
        place = None  # its plan is that of the choice before this step: `await_agent` makes that of the present one
    base = replace(base, switch_seen=switch_seen)
    try:
        agent = await_agent(base, place, events, limit_seconds=waiting_limit(switch))
    except (StopRequested, SparkdError) as error:
        end_start(switch, host, actions, events, error)
        raise
    _record_start(agent, loaded.origins)
    return agent


def _make_base(
    process: AgentProcess, settings: Settings, actions: Actions, events: Events, switch_seen: object
) -> Base:
    """Make the agent's base, and start the notifications that the settings configure."""
    notify = None
    if settings.notify.configured_ways:
        from sparkd.agent.daemon.notify import start_notifications

        notify = start_notifications(process.host, settings.notify, events)
    return Base(**asdict(process), settings=settings, actions=actions, switch_seen=switch_seen, notify=notify)


def _record_start(agent: Agent, origins: Mapping[str, str]) -> None:
    """Count this start, and put in order what earlier agents have left. `origins`: as `report_followed` takes them."""
    last_exit = agent.store.require_launches().last_exit
    # Before all else: until its end is recorded, the process counts as killed, and a crash before this would not count.
    agent.store.record(lambda launches: launches.recover(agent.boot_id, utc_now()))
    agent.launch_row.recall(last_exit)
    follow_kernel_log(agent.host, agent.loop, agent.reporter, agent.events)
    restore_readahead(agent)
    agent.switching.settle()
    report_followed(agent, origins)


def _resolve_place(process: AgentProcess, settings: Settings) -> NodeContext:
    """This node's place and plan. Raises as `resolve_context`, and BlockedError (exit 10) where a disk fails or hangs:
    in good time before TimeoutStartSec=.
    """
    try:
        resolve = partial(resolve_context, settings, process.role, process.host)
        return process.loop.beside(resolve, process.pace.read_seconds, "reading the plan")
    except OSError as error:
        hint = "what holds /var/lib/sparkd, or a file that the configuration names? look at: sudo dmesg"
        raise BlockedError(str(error), hint) from None


def await_agent(base: Base, place: NodeContext | None, events: Events, limit_seconds: float) -> Agent:
    """Wait until the agent can be built. Raises NotReadyError after `limit_seconds`.

    The fabric address, which the rank depends on, may come up half a minute after the other networks, and files that
    the configuration names may be on a mount that is late.
    """

    def build() -> Agent:
        nonlocal place
        try:
            place = place or _resolve_place(base, base.settings)
            return assemble(base, place)
        except HeadAwaitedError as error:
            await_head_config(base, error, events)

    return _await(base, events, build, limit_seconds)


def _await(base: Base, events: Events, attempt: Callable[[], T], limit_seconds: float = math.inf) -> T:
    """The result of `attempt`, once nothing is awaited. Raises NotReadyError after `limit_seconds`."""
    last_reported, deadline = "", time.monotonic() + limit_seconds
    while True:
        try:
            return attempt()
        except AwaitedError as error:
            awaited = error
        if awaited.reason != last_reported:
            last_reported = awaited.reason
            is_fabric = isinstance(awaited, AddressAwaitedError)
            since = time.strftime("%H:%M:%S UTC", time.gmtime())
            message = f"waiting {'for the fabric ' if is_fabric else ''}since {since}: {awaited}"
            phase = Phase.AWAITING_PEERS if is_fabric else Phase.BLOCKED
            events.warning("agent.start.awaited", reason=awaited.reason, hint=awaited.hint)
            report = unplaced_status(base.role, base.host, base.owner.invocation, message, phase)
            hint = f"if it stays: {awaited.hint}" if is_fabric else awaited.hint  # a boot may take half a minute for it
            report = replace(report, action="" if is_fabric else awaited.action, hint=hint)
            Reporter(report, report_sinks(base)).publish()
        if time.monotonic() > deadline:
            raise NotReadyError(f"awaited for {limit_seconds:.0f} s: {awaited.reason}", awaited.hint)
        base.loop.wait(1.0)
        _raise_if_outdated(base)


def _raise_if_outdated(base: Base) -> None:
    stamp = look_at_configuration(base.loop, base.host.files.root, base.configured_at)
    if (stamp, stamp_switch(base.host)) != (base.configured_at, base.switch_seen):
        raise OutdatedPlanError("the configuration, or sparkd itself, has changed", "sparkd restarts with it")


def await_head_config(base: Base, awaited: HeadAwaitedError, events: Events) -> NoReturn:
    """On a worker without a configuration, report to the other nodes until the head's configuration has come.

    Raises OutdatedPlanError then, and AwaitedError where this node has no place, no key or no port.
    """
    place = find_place(base.settings, base.host)
    keys = read_keys_beside(base.loop, base.host, base.settings)
    cluster = join_cluster(place, base.settings, base.host, base.loop.wake, base.loop.spawn, events, keys)
    first_status = unplaced_status(base.role, base.host, base.owner.invocation, str(awaited))
    first_status = replace(first_status, rank=place.rank, address=place.address)
    reporter = Reporter(first_status, (*report_sinks(base), *cluster.sinks))
    events.warning("agent.start.awaited", reason=awaited.reason, hint=awaited.hint)
    serve_observers(base, reporter, events)
    follower = HeadFollower(base, place, cluster.readers[0], events)
    base.loop.endings.end_by(Ending(partial(_raise_if_outdated, base)))

    if not isinstance(awaited, HeadRefusedError):
        base.loop.report_ready()  # as any worker that stands by

    def report(phase: Phase, message: str, hint: str) -> None:
        action, hint = (awaited.action, hint) if phase is Phase.BLOCKED else ("", "")
        peers = tuple(reader.status for reader in cluster.readers.values())
        reporter.update(phase=phase, message=message, hint=hint, action=action, peers=peers)

    while True:
        try:
            follower.check()
            head = follower.head.status
            message = head.said or (head.living.message if head.living else "")
            phase = Phase.BLOCKED if isinstance(awaited, HeadRefusedError) else Phase.AWAITING_PEERS
            contact = f"; {head.name} {head.contact.value}: {message}" if message else ""
            report(phase, f"{awaited}{contact}", awaited.hint)
        except OutdatedPlanError:
            raise
        except BlockedError as refusal:
            report(Phase.BLOCKED, str(refusal), refusal.hint)
        base.loop.wait(1.0)
