"""Builds the agent before its first step: settings, node lock, plan, report, connections to the other nodes."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import asdict, replace

from sparkd import __version__
from sparkd.actions import Actions
from sparkd.agent.blocked import stamp_configuration
from sparkd.agent.deps import Base, Deps
from sparkd.agent.startup import restore_readahead
from sparkd.cluster import membership
from sparkd.cluster.membership import NodeContext, resolve_context
from sparkd.cluster.monitor import PeerMonitor
from sparkd.cluster.service import join_cluster, start_status_server
from sparkd.config import load_settings
from sparkd.host import Host
from sparkd.host.owner import NodeOwner
from sparkd.host.processes import read_process
from sparkd.lib.errors import AddressAwaitedError, AwaitedError, ConfigError, ExitCode, OutdatedPlanError
from sparkd.lib.event_loop import EventLoop
from sparkd.lib.log import Events, ProcessLog
from sparkd.lib.main_loop import MainLoop
from sparkd.lib.systemd import Journal, Notifier, invocation_id
from sparkd.lib.text import Redactor
from sparkd.plan.model import LaunchPlan
from sparkd.state import launch_history
from sparkd.state.known_good import ROLLBACK_FILE, ROLLBACK_HINT
from sparkd.status.model import NodeReport, PeerStatus, Phase, dump, redacted, utc_now
from sparkd.status.publisher import Reporter, Sink, status_line

API_KEY = "VLLM_API_KEY"
SECRET_LIMIT_BYTES = 64 << 10
AWAITED_POLL_SECONDS = 1.0
UNKNOWN_RANK = -1
HOLDS = "what is configured holds"


def build_agent(role: str, journal: Journal, log: ProcessLog, env: Mapping[str, str], root: Path = Path("/")) -> Deps:
    """Waits for the node's fabric address, and for files that the configuration names, without a deadline.

    Raises ConfigError (78) where no restart helps, BlockedError (10) where another owner has the node or the
    configuration changes meanwhile, StopRequested.
    """
    configured_at = stamp_configuration(root)
    config = load_settings(env, root)
    log.configure(as_json=config.log.format == "json", level=config.log.level)
    host = Host(root)
    log.bind(node=host.name())
    events = log.events(Redactor())
    notifier = Notifier()

    def on_hang(seconds: float) -> None:
        events.error("agent.network.hung", seconds=round(seconds), hint="systemd restarts this agent")

    network = EventLoop(broken=lambda error: loop.fail(error))
    loop = MainLoop(notifier, env, network, on_hang)
    loop.listen()
    network.start()
    place = None
    with suppress(AwaitedError):  # before the lock: a unit of the wrong role changes nothing
        place = resolve_context(config, role, host)
    owner = NodeOwner(os.getpid(), f"sparkd run --role {role}", invocation_id(env) or uuid.uuid4().hex)
    actions = Actions.acquire(host, loop, owner)
    base = Base(config, host, actions, loop, network, notifier, journal, log, configured_at)
    agent = _await_agent(base, role, place, events)
    # First of all: a crash before this would not be counted.
    agent.record_start()
    restore_readahead(agent)
    settle_rollback(agent)
    return agent


def settle_rollback(agent: Deps) -> None:
    """Log that a rollback is in force; remove one that is over."""
    back = agent.context.rollback
    if back is not None:
        agent.events.warning("rollback.plan.applied", plan=back.plan[:12], recipe=back.recipe.name, hint=ROLLBACK_HINT)
        return
    back = ROLLBACK_FILE.read(agent.host.files)
    if back is not None and back.replaces == membership.fingerprint_config(agent.context.configured, agent.host):
        return  # chosen after this process made its plan: for the next process
    if agent.remove_state(ROLLBACK_FILE.name):
        if back is not None:
            agent.events.info("rollback.plan.removed", reason=f"the configuration has changed: {HOLDS}", hint="")
        else:
            reason = f"{ROLLBACK_FILE.path} can't be read: {HOLDS}"
            agent.events.warning("rollback.plan.removed", reason=reason, hint="sparkd rollback --list")


def assemble(base: Base, node: NodeContext, owner_uid: int = 0) -> Deps:
    """The agent in its place: serving its report and reading the other nodes. `owner_uid`: of the key file."""
    host, actions, loop = base.host, base.actions, base.loop
    base.log.bind(rank=node.rank)
    secrets = read_secrets(node.plan)
    redact = Redactor(tuple(secrets.values()))
    events = base.log.events(redact)
    cluster = join_cluster(node, host, loop.wake, base.network, redact, events, owner_uid)
    first = initial_status(node, host, actions.owner.invocation)
    if (last := launch_history.read_history(host.files).last_cause) is not None:
        hint = "" if last.code == ExitCode.PEER_LOST else last.hint  # the other node has what is to be done
        first = replace(first, last_cause=str(last), last_cause_code=last.cause, last_hint=hint)
    reporter = Reporter(first, (*_sinks(actions, base.notifier, redact), *cluster.sinks))
    monitor = PeerMonitor(
        cluster.readers,
        loop.submit,
        node.settings.supervise.peer_timeout_seconds,
        partial(_report_peers, reporter, events),
    )
    loop.add_check(monitor.check)

    def report() -> NodeReport:
        return redacted(reporter.report, redact)

    start_status_server(base.settings.observe.address, report, loop.keepalive_age, base.network, events)
    return Deps(
        **asdict(base),
        context=node,
        events=events,
        redact=redact,
        reporter=reporter,
        monitor=monitor,
        cluster=cluster,
        boot_id=host.files.text("/proc/sys/kernel/random/boot_id").strip(),
        api_key=secrets.get(API_KEY),
    )


def _report_peers(reporter: Reporter, events: Events, peers: tuple[PeerStatus, ...]) -> None:
    """Put the other nodes into the report, and log each change of contact."""
    before = {one.rank: one.contact for one in reporter.report.peers}
    reporter.update(peers=peers)
    for one in peers:
        if before.get(one.rank) not in (None, one.contact):
            events.info("cluster.contact.changed", node=one.name, contact=one.contact.value, said=one.said)


def _await_agent(base: Base, role: str, place: NodeContext | None, events: Events) -> Deps:
    """The rank depends on the fabric address, which may come up half a minute after the rest of the network.

    Files that the configuration names may be on a mount that is late.
    """
    reported = ""
    sinks = _sinks(base.actions, base.notifier, Redactor())
    while True:
        try:
            place = place or resolve_context(base.settings, role, base.host)
            return assemble(base, place)
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
            for sink in sinks:
                sink(report)
        base.loop.wait(AWAITED_POLL_SECONDS)
        if stamp_configuration(base.host.files.root) != base.configured_at:
            raise OutdatedPlanError("the configuration has changed", "sparkd restarts with it")


def _sinks(actions: Actions, notifier: Notifier, redact: Redactor) -> tuple[Sink, ...]:
    def to_file(report: NodeReport) -> None:
        # A full /run ends no run: STATUS= and the journal have the same.
        with suppress(OSError):
            actions.write_run("report.json", dump(redacted(report, redact)))

    def to_systemd(report: NodeReport) -> None:
        notifier.status(redact(status_line(report)))

    return to_file, to_systemd


def initial_status(node: NodeContext, host: Host, invocation: str) -> NodeReport:
    address = node.plan.node.address if node.peers else ""
    unplaced = unplaced_status(node.role, host, invocation)
    return replace(unplaced, rank=node.rank, phase=Phase.PREFLIGHT, address=address)


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


def read_secrets(plan: LaunchPlan) -> dict[str, str]:
    """Contents of the secret files, for redaction and for the endpoint's key. Raises ConfigError."""
    found = {}
    for secret in plan.secrets:
        try:
            with Path(secret.file).open(encoding="utf-8", newline="") as file:
                # As in the launch script: only trailing line ends are dropped.
                found[secret.name] = file.read(SECRET_LIMIT_BYTES).rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            wrong = AwaitedError if isinstance(error, FileNotFoundError) else ConfigError
            raise wrong(
                f"secret {secret.name} can't be read from {secret.file}: {error}",
                "write it there, readable by root alone",
            ) from None
    key = found.get(API_KEY, "x")
    if not (key.isascii() and key.isprintable() and key.strip() == key):
        raise ConfigError(
            f"the key in the file of {API_KEY} holds blanks at its ends, or characters that no HTTP header can carry",
            "write the key alone, on one line",
        )
    return found
