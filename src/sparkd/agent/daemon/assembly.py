"""Builds the agent: report server, peer readers, and the objects of a run."""

import os
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from msgspec.structs import asdict, replace

from sparkd import __version__
from sparkd.agent.cluster.monitor import PeerMonitor
from sparkd.agent.cluster.service import join_cluster
from sparkd.agent.daemon.admission import Admission
from sparkd.agent.daemon.agreed import Agreed
from sparkd.agent.daemon.backoff import Backoff
from sparkd.agent.daemon.context import Agent, Base, Context, beside_or_blocked
from sparkd.agent.daemon.head_follower import HeadFollower
from sparkd.agent.daemon.history import LaunchRow, read_disk
from sparkd.agent.daemon.own_rank import OwnRank
from sparkd.agent.daemon.phase_report import PhaseReport
from sparkd.agent.daemon.plan_differences import PlanDifferences
from sparkd.agent.daemon.proving import ProvingPeriod
from sparkd.agent.daemon.run import endings
from sparkd.agent.daemon.state_store import StateStore
from sparkd.agent.daemon.switching import Switching
from sparkd.agent.daemon.taking_over import AdoptableRank, first_report
from sparkd.agent.status.http_api import start_status_server
from sparkd.agent.status.page_history import PageHistory
from sparkd.base.cluster.auth import read_keys
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.host import Host, network
from sparkd.base.host.files import Files
from sparkd.base.host.processes import read_process
from sparkd.base.lib.errors import ExitCode, find_action
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.redactor import Redactor
from sparkd.base.lib.times import utc_now
from sparkd.base.plan.fingerprint import read_secrets
from sparkd.base.state.rank_record import read_boot_id
from sparkd.base.status.model import UNKNOWN_RANK, NodeReport, PeerStatus, Phase
from sparkd.base.status.publisher import Published, Reporter, Sink, status_line


def assemble(base: Base, node: NodeContext, adoptable: AdoptableRank | None = None) -> Agent:
    """Build the agent. It then serves its report and reads the other nodes.

    `adoptable`: the rank that it is to take over.
    """
    host, actions, loop = base.host, base.actions, base.loop
    base.log.bind(rank=node.rank)
    keys = read_keys_beside(loop, host, node.settings)
    if adoptable is not None:
        secrets = adoptable.kept.secrets
    else:
        read_engine_secrets = partial(read_secrets, Files(), node.plan)
        hint = "what holds a file of engine.secrets? look at: sudo dmesg"
        secrets = beside_or_blocked(loop, read_engine_secrets, 10.0, "reading the secrets", hint)
    redact = Redaction(secrets.values())
    events = base.log.events(redact)
    cluster = join_cluster(node.plan.node, node.settings, host, loop.wake, base.loop.spawn, events, keys)
    report = initial_status(node, host, actions.owner.invocation)
    store, rank = StateStore(host, actions, loop, events), OwnRank()
    history = store.read_launches()
    report = replace(report, rank_id=uuid.uuid4().hex, restarts=history.restarts(datetime.now(UTC)))
    if adoptable is not None:
        report = first_report(adoptable, report)
    elif (last_end := history.last_cause) is not None:
        hint = "" if last_end.code == ExitCode.PEER_LOST else last_end.hint  # the other node reports what is to be done
        action = last_end.action or find_action(last_end.cause)
        report = replace(
            report, last_cause=str(last_end), last_cause_code=last_end.cause, last_action=action, last_hint=hint
        )
    reporter = Reporter(report, (*report_sinks(base), *cluster.sinks), redact)
    monitor = PeerMonitor(
        cluster.readers,
        loop.start,
        node.settings.supervise.peer_timeout_seconds,
        node.settings.supervise.agent_return_seconds,
        lambda: loop.resumed_at,
        partial(_report_peers, host, reporter, events),
    )
    serve_observers(base, reporter, events)
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
        rank_id=report.rank_id,
        secrets=secrets,
        store=store,
        rank=rank,
        phase=PhaseReport(host, reporter, events, rank, node.settings.memory.floor_mib << 20),
        follower=HeadFollower(base, node.plan.node, cluster.readers[0], events, node.followed.digest)
        if node.followed
        else None,
    )
    agent = equip(context)
    if node.peers and node.settings.supervise.power_command:
        from sparkd.agent.daemon.power import PowerWatch

        agent.run_aside("power", PowerWatch(agent).run)
    loop.endings.end_by(*endings(agent))
    return agent


def read_keys_beside(loop: MainLoop, host: Host, settings: Settings) -> tuple[bytes, ...]:
    """Read the cluster's keys beside the loop, since the file may lie on a share. A node alone has none.

    Raises as `join_cluster`, and BlockedError (exit 10) where the share hangs.
    """
    if len(settings.cluster.nodes) < 2:
        return ()
    path = settings.cluster.key_file
    hint = f"what holds {path}? look at: sudo dmesg"
    return beside_or_blocked(loop, partial(read_keys, host.files, path), 10.0, "reading the cluster's key", hint)


def equip(context: Context) -> Agent:
    """Add the objects that hold what one step of a run leaves for later ones."""
    agreed = Agreed(context.host, context.loop, context.plan, context.reporter)
    switching = Switching(context)
    return Agent(
        **asdict(context),
        agreed=agreed,
        admission=Admission(context),
        backoff=Backoff(context),
        differences=PlanDifferences(context, agreed),
        switching=switching,
        launch_row=LaunchRow(context, agreed),
        proving=ProvingPeriod(context, agreed, switching),
    )


def _report_peers(host: Host, reporter: Reporter, events: Events, peers: tuple[PeerStatus, ...]) -> None:
    """Report the other nodes, and this node's address outside the fabric. Log each change of contact."""
    previous_contacts = {peer.rank: peer.contact for peer in reporter.report.peers}
    reporter.update(peers=peers, lan_address=network.source_address(host.files) if peers else "")
    for peer in peers:
        if previous_contacts.get(peer.rank) not in (None, peer.contact):
            events.info("cluster.contact.changed", node=peer.name, contact=peer.contact.value, said=peer.said)


def serve_observers(base: Base, reporter: Reporter, events: Events) -> None:
    start_status_server(
        observe=base.settings.observe,
        files=base.host.files,
        published=lambda: reporter.published,
        keepalive_age=base.loop.keepalive_age,
        spawn=base.loop.spawn,
        events=events,
        history=PageHistory(partial(read_disk, base.host.files)),
    )


def report_sinks(base: Base) -> tuple[Sink, ...]:
    def to_file(published: Published) -> None:
        # A full /run ends no run: STATUS= and the journal have the same.
        with suppress(OSError):
            base.actions.write_run("report.json", published.text)

    def to_systemd(published: Published) -> None:
        base.notifier.status(status_line(published.report))

    return to_file, to_systemd, *([base.notify] if base.notify is not None else [])


def initial_status(node: NodeContext, host: Host, invocation: str) -> NodeReport:
    return replace(
        unplaced_status(node.role, host, invocation, phase=Phase.PREFLIGHT),
        rank=node.rank,
        address=node.plan.node.address if node.peers else "",
        recipe=node.recipe.name,
        awaits_agents_seconds=node.settings.supervise.agent_return_seconds,
    )


def unplaced_status(
    role: str, host: Host, invocation: str, message: str = "", phase: Phase = Phase.AWAITING_PEERS
) -> NodeReport:
    """The report of a node whose rank is not known yet."""
    process = read_process(host.files, "self")
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
        start_time=process.start_time if process else 0,
    )
