"""Builds the agent before its first step: settings, node lock, plan, report, connections to the other nodes."""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NoReturn

from msgspec.structs import asdict, replace

from sparkd import __version__
from sparkd.agent.actions import Actions
from sparkd.agent.actions.processes import Rank
from sparkd.agent.cluster.monitor import PeerMonitor
from sparkd.agent.cluster.service import Cluster, join_cluster, start_status_server
from sparkd.agent.daemon.admission import Admission, Backoff
from sparkd.agent.daemon.agreed import Agreed, PlanDifferences
from sparkd.agent.daemon.blocked import stamp_configuration
from sparkd.agent.daemon.context import Agent, Base, Context, OwnRank, PhaseReport
from sparkd.agent.daemon.head_config import HeadFollower, await_head, use_kept
from sparkd.agent.daemon.history import LaunchRow
from sparkd.agent.daemon.kernel_log import follow_kernel_log
from sparkd.agent.daemon.machine_end import note_machine_end
from sparkd.agent.daemon.page_cache import restore_readahead
from sparkd.agent.daemon.proving import ProvingPeriod
from sparkd.agent.daemon.run import endings
from sparkd.agent.daemon.state_store import StateStore
from sparkd.agent.daemon.switching import Switching, begin_switch, stamp_switch, waiting_limit
from sparkd.agent.daemon.taking_over import LeftRank, find_left, first_report, open_rank, take_over
from sparkd.base.cluster.membership import NodeContext, find_place, resolve_context
from sparkd.base.config import Settings, load_with_origins
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.processes import read_process
from sparkd.base.lib.endings import Ending
from sparkd.base.lib.errors import (
    AddressAwaitedError,
    AwaitedError,
    BlockedError,
    ExitCode,
    HeadAwaitedError,
    HeadRefusedError,
    NotReadyError,
    OutdatedPlanError,
)
from sparkd.base.lib.log import Events, ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.systemd import Journal, Notifier, invocation_id
from sparkd.base.lib.text import Redactor
from sparkd.base.plan.fingerprint import read_secrets
from sparkd.base.plan.model import Node
from sparkd.base.state import launch_history
from sparkd.base.state.rank_record import read_boot_id
from sparkd.base.status.model import UNKNOWN_RANK, NodeReport, PeerStatus, Phase, utc_now
from sparkd.base.status.publisher import Published, Reporter, Sink, status_line
from sparkd.base.vllm.args import API_KEY


def build_agent(
    role: str,
    loop: MainLoop,
    notifier: Notifier,
    journal: Journal,
    log: ProcessLog,
    env: Mapping[str, str],
    root: Path = Path("/"),
) -> Agent:
    """Waits for the node's fabric address, and for files that the configuration names, without a deadline.

    Raises ConfigError (78) where no restart helps, BlockedError (10) where another owner has the node or the
    configuration changes meanwhile, StopRequested.
    """
    configured_at, host = stamp_configuration(root), Host(root)
    owner = NodeOwner(os.getpid(), f"sparkd run --role {role}", invocation_id(env) or uuid.uuid4().hex)
    log.bind(node=host.name())
    events = log.events(Redaction())
    loop.listen()
    hint = "nothing is to be done: it is ended, and another one is started"
    left = find_left(
        host, role, owner.invocation, lambda reason: events.warning("engine.rank.refused", reason=reason, hint=hint)
    )
    if left is not None:
        settings = left.kept.configured
        log.configure(as_json=settings.log.format == "json", level=settings.log.level)
        actions = Actions.acquire(host, loop, owner)
        base = Base(settings, host, actions, loop, notifier, journal, log, configured_at, object())
        if (rank := open_rank(host, left)) is not None:
            return _take_over(base, left, rank)
        actions.release()
    loaded = load_with_origins(env, root)
    config = loaded.settings
    log.configure(as_json=config.log.format == "json", level=config.log.level)
    place = None
    with suppress(AwaitedError):  # before the lock: a unit of the wrong role changes nothing
        place = resolve_context(config, role, host)
    actions = Actions.acquire(host, loop, owner)
    if reason := actions.set_aside_rank():
        events.warning("state.read.failed", reason=reason)
    note_machine_end(host, actions, loop, events)
    begun, switch_seen = begin_switch(config, host, actions, events)
    if place is not None and place.switch != begun:
        place = None
    notify = _start_notifications(config, host, events)
    base = Base(config, host, actions, loop, notifier, journal, log, configured_at, switch_seen, notify)
    agent = _await_agent(base, role, place, events, limit_seconds=waiting_limit(begun))
    last = agent.store.require_launches().last_exit
    # First of all: a crash before this would not be counted.
    agent.store.record_start(agent.boot_id)
    agent.launch_row.recall(last)
    follow_kernel_log(agent.host, agent.loop, agent.reporter, agent.events)
    restore_readahead(agent)
    agent.switching.settle()
    use_kept(agent, loaded.origins)
    return agent


def _start_notifications(config: Settings, host: Host, events: Events) -> Sink | None:
    if not config.notify.ways:
        return None
    from sparkd.agent.daemon.notify import start_notifications

    return start_notifications(host, config.notify, events)


def _take_over(base: Base, left: LeftRank, rank: Rank) -> Agent:
    """Raises BlockedError (exit 10) where the node lacks what may come back: the next process tries it again."""
    events = base.log.events(Redaction())
    base = replace(base, notify=_start_notifications(base.settings, base.host, events))
    try:
        agent = assemble(base, left.kept.context, left=left)
    except AwaitedError as error:
        raise BlockedError(error.reason, error.hint) from None
    take_over(agent, left, rank)
    follow_kernel_log(agent.host, agent.loop, agent.reporter, agent.events)
    return agent


def assemble(base: Base, node: NodeContext, owner_uid: int = 0, left: LeftRank | None = None) -> Agent:
    """The agent in its place: serving its report and reading the other nodes. `owner_uid`: of the key file.

    `left`: the rank that it is to take over.
    """
    host, actions, loop = base.host, base.actions, base.loop
    base.log.bind(rank=node.rank)
    secrets = read_secrets(node.plan)
    redact = Redaction(secrets.values())
    events = base.log.events(redact)
    cluster = join_cluster(node.plan.node, node.settings, host, loop.wake, base.loop.spawn, events, owner_uid)
    first = initial_status(node, host, actions.owner.invocation)
    history = launch_history.read_history(host.files)
    first = replace(first, rank_id=uuid.uuid4().hex, restarts=history.restarts(datetime.now(UTC)))
    if (last := history.last_cause) is not None:
        hint = "" if last.code == ExitCode.PEER_LOST else last.hint  # the other node has what is to be done
        first = replace(first, last_cause=str(last), last_cause_code=last.cause, last_hint=hint)
    if left is not None:
        first = first_report(left, first)
    reporter = Reporter(first, (*_sinks(base), *cluster.sinks), redact)
    monitor = PeerMonitor(
        cluster.readers,
        loop.start,
        node.settings.supervise.peer_timeout_seconds,
        node.settings.supervise.agent_return_seconds,
        lambda: loop.resumed_at,
        partial(_report_peers, reporter, events),
    )
    _serve_observers(base, reporter, events)
    store, rank = StateStore(host, actions, loop, events), OwnRank()
    context = Context(
        **asdict(replace(base, settings=node.settings)),
        context=node,
        events=events,
        redact=redact,
        redact_line=Redactor(secrets.values()),
        reporter=reporter,
        monitor=monitor,
        cluster=cluster,
        boot_id=read_boot_id(host.files),
        rank_id=first.rank_id,
        api_key=secrets.get(API_KEY),
        store=store,
        rank=rank,
        phase=PhaseReport(host, reporter, events, rank, node.settings.memory.floor_mib << 20),
        follower=_follower(base, node.plan.node, cluster, events, owner_uid, node.followed.digest)
        if node.followed
        else None,
    )
    agent = equip(context)
    loop.end_by(*endings(agent))
    return agent


def equip(context: Context) -> Agent:
    """With what the steps of its run leave to later ones."""
    agreed = Agreed(context.host, context.loop, context.plan, context.reporter)
    switching = Switching(context)
    return Agent(
        **{name: getattr(context, name) for name in Context.__struct_fields__},
        agreed=agreed,
        admission=Admission(context),
        backoff=Backoff(context),
        differences=PlanDifferences(context, agreed),
        switching=switching,
        launch_row=LaunchRow(context, agreed),
        proving=ProvingPeriod(context, agreed, switching),
    )


def _follower(
    base: Base, place: Node, cluster: Cluster, events: Events, owner_uid: int, digest: str = ""
) -> HeadFollower:
    head = cluster.readers[0]
    return HeadFollower(base.settings, place, base.host, base.actions, base.loop, head, events, digest, owner_uid)


def _report_peers(reporter: Reporter, events: Events, peers: tuple[PeerStatus, ...]) -> None:
    """Put the other nodes into the report, and log each change of contact."""
    before = {one.rank: one.contact for one in reporter.report.peers}
    reporter.update(peers=peers)
    for one in peers:
        if before.get(one.rank) not in (None, one.contact):
            events.info("cluster.contact.changed", node=one.name, contact=one.contact.value, said=one.said)


def _await_agent(
    base: Base, role: str, place: NodeContext | None, events: Events, limit_seconds: float = math.inf
) -> Agent:
    """The rank depends on the fabric address, which may come up half a minute after the rest of the network.

    Files that the configuration names may be on a mount that is late. Raises NotReadyError after `limit_seconds`.
    """
    reported, deadline = "", time.monotonic() + limit_seconds
    while True:
        try:
            place = place or resolve_context(base.settings, role, base.host)
            return assemble(base, place)
        except HeadAwaitedError as error:
            try:
                _await_head(base, role, error, events)
            except AwaitedError as other:
                awaited = other
        except AwaitedError as error:
            awaited = error
        if awaited.reason != reported:
            reported = awaited.reason
            fabric = isinstance(awaited, AddressAwaitedError)
            since = time.strftime("%H:%M:%S UTC", time.gmtime())
            message = f"waiting {'for the fabric ' * fabric}since {since}: {awaited}"
            phase = Phase.AWAITING_PEERS if fabric else Phase.BLOCKED
            events.warning("agent.start.awaited", reason=awaited.reason, hint=awaited.hint)
            report = unplaced_status(role, base.host, base.actions.owner.invocation, message, phase)
            Reporter(report, _sinks(base)).publish()
        if time.monotonic() > deadline:
            raise NotReadyError(f"awaited for {limit_seconds:.0f} s: {awaited.reason}", awaited.hint)
        base.loop.wait(1.0)
        _raise_if_outdated(base)


def _raise_if_outdated(base: Base) -> None:
    stamps = stamp_configuration(base.host.files.root), stamp_switch(base.host)
    if stamps != (base.configured_at, base.switch_seen):
        raise OutdatedPlanError("the configuration has changed", "sparkd restarts with it")


def _await_head(base: Base, role: str, awaited: HeadAwaitedError, events: Events, owner_uid: int = 0) -> NoReturn:
    """Of a worker without a configuration: report to the other nodes, until the head's has come.

    Raises OutdatedPlanError then; AwaitedError where this node has no place, no key or no port.
    """
    place = find_place(base.settings, base.host)
    cluster = join_cluster(place, base.settings, base.host, base.loop.wake, base.loop.spawn, events, owner_uid)
    first = unplaced_status(role, base.host, base.actions.owner.invocation, str(awaited))
    first = replace(first, rank=place.rank, address=place.address)
    reporter = Reporter(first, (*_sinks(base), *cluster.sinks))
    events.warning("agent.start.awaited", reason=awaited.reason, hint=awaited.hint)
    _serve_observers(base, reporter, events)
    follower = _follower(base, place, cluster, events, owner_uid)
    base.loop.end_by(Ending(partial(_raise_if_outdated, base)))

    if not isinstance(awaited, HeadRefusedError):
        base.loop.report_ready()  # as any worker that stands by

    def report(phase: Phase, message: str) -> None:
        reporter.update(phase=phase, message=message, peers=tuple(one.status for one in cluster.readers.values()))

    while True:
        await_head(follower, awaited, report)


def _serve_observers(base: Base, reporter: Reporter, events: Events) -> None:
    show = base.settings.observe, base.host.files, lambda: reporter.published, base.loop.keepalive_age
    start_status_server(*show, base.loop.spawn, events)


def _sinks(base: Base) -> tuple[Sink, ...]:
    def to_file(published: Published) -> None:
        # A full /run ends no run: STATUS= and the journal have the same.
        with suppress(OSError):
            base.actions.write_run("report.json", published.text)

    def to_systemd(published: Published) -> None:
        base.notifier.status(status_line(published.report))

    return to_file, to_systemd, *([base.notify] if base.notify is not None else [])


def initial_status(node: NodeContext, host: Host, invocation: str) -> NodeReport:
    address = node.plan.node.address if node.peers else ""
    unplaced = unplaced_status(node.role, host, invocation)
    return replace(unplaced, rank=node.rank, phase=Phase.PREFLIGHT, address=address, recipe=node.recipe.name)


def unplaced_status(
    role: str, host: Host, invocation: str, message: str = "", phase: Phase = Phase.AWAITING_PEERS
) -> NodeReport:
    """Before the rank is known."""
    stat = read_process(host.files, "self")
    return NodeReport(
        node=host.name(),
        role=role,
        rank=UNKNOWN_RANK,
        phase=phase,
        since=utc_now(),
        epoch="",
        incarnation=invocation,
        version=__version__,
        message=message,
        pid=os.getpid(),
        start_time=stat.start_time if stat else 0,
    )
