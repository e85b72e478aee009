"""Makes the agent: settings, lock, role, plan, report, the other nodes: all that a life needs before its first step."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from sparkd import last_exit, load, proven, settings
from sparkd.agent import Agent
from sparkd.cluster import join, observe
from sparkd.errors import AddressAwaitedError, ConfigError
from sparkd.first_report import first_report, placeless_report
from sparkd.hands import STATE, Hands
from sparkd.hands.lock import Owner
from sparkd.host import Host
from sparkd.launch.plan import LaunchPlan
from sparkd.lib.event_loop import EventLoop
from sparkd.lib.journal import Journal
from sparkd.lib.log import Events, ProcessLog
from sparkd.lib.redact import Redactor
from sparkd.pulse import Pulse
from sparkd.report.node_report import NodeReport, dump, redacted
from sparkd.report.reporter import Reporter, Sink, status_line
from sparkd.roles import NodeContext, context
from sparkd.settings import Settings
from sparkd.systemd import Notifier, invocation_id

API_KEY = "VLLM_API_KEY"
SECRET_LIMIT_BYTES = 64 << 10
ADDRESS_POLL_SECONDS = 1.0


def make_agent(role: str, journal: Journal, log: ProcessLog, env: Mapping[str, str]) -> Agent:
    """Raises ConfigError (78) for what no restart can mend, BlockedError (10) where another owner holds the node.

    Waits for the node's address on the fabric, for as long as that takes; raises StopRequested.
    """
    config = settings.load(None, env)
    log.configure(as_json=config.log.format == "json", level=config.log.level)
    host = Host()
    log.bind(node=host.name())
    nothing = Redactor()
    events = log.events(nothing)
    notifier = Notifier()
    network = EventLoop(broken=lambda error: pulse.fail(error))
    pulse = Pulse(notifier, env, network, partial(_network_hangs, events))
    pulse.listen()
    network.start()
    invocation = invocation_id(env) or uuid.uuid4().hex
    node = _place(config, role, host)
    hands = Hands.take(host, pulse, Owner(os.getpid(), f"sparkd run --role {role}", invocation))

    def show(message: str) -> None:
        report = placeless_report(role, host, invocation, message)
        for sink in _sinks(hands, notifier, nothing):
            sink(report)

    node = node or _await_place(config, role, host, pulse, show, events)
    log.bind(rank=node.rank)
    secrets = read_secrets(node.plan)
    redact = Redactor(tuple(secrets.values()))
    events = log.events(redact)
    boot_id = host.files.text("/proc/sys/kernel/random/boot_id").strip()
    cluster = join(node, host, pulse, network, redact, events)
    first = first_report(node, host, invocation, last_exit.cause(STATE))
    reporter = Reporter(first, (*_sinks(hands, notifier, redact), *cluster.sinks))
    agent = Agent(
        settings=config,
        context=node,
        host=host,
        hands=hands,
        pulse=pulse,
        notifier=notifier,
        journal=journal,
        log=log,
        events=events,
        redact=redact,
        reporter=reporter,
        together=cluster.together,
        exchange=cluster.exchange,
        boot_id=boot_id,
        api_key=secrets.get(API_KEY),
    )
    # Before anything else can end this life: a crash that is not counted now would be forgotten.
    agent.remember(agent.launches().settle(boot_id))
    agent.record(lambda boots: boots.closed(boot_id))
    agent.keep(last_exit.FILE, last_exit.untold())
    load.restore(agent)
    proven.settle_rollback(agent)
    agent.together.show = agent.meet
    pulse.guard = agent.together.look
    observe(config.observe.address, lambda: redacted(reporter.report, redact), pulse, network, events)
    return agent


def _place(config: Settings, role: str, host: Host) -> NodeContext | None:
    """None while the address is not there. Asked before the lock: the unit of the wrong role touches nothing."""
    try:
        return context(config, role, host)
    except AddressAwaitedError:
        return None


def _await_place(
    config: Settings, role: str, host: Host, pulse: Pulse, show: Callable[[str], None], log: Events
) -> NodeContext:
    """The fabric may come up half a minute after the rest of the network, and the rank is told by its address."""
    told = ""
    while True:
        try:
            return context(config, role, host)
        except AddressAwaitedError as error:
            awaited = f"waiting for the fabric: {error.reason}"
        if awaited != told:
            told = awaited
            log.warning("life.address.awaited", reason=awaited, hint="ip -brief address")
            show(awaited)
        pulse.wait(ADDRESS_POLL_SECONDS)


def _network_hangs(events: Events, seconds: float) -> None:
    events.error("network.loop.hung", seconds=round(seconds), hint="systemd ends this agent and starts it again")


def _sinks(hands: Hands, notifier: Notifier, redact: Redactor) -> tuple[Sink, ...]:
    def to_file(report: NodeReport) -> None:
        # A full /run is no reason to end a life: STATUS= and the journal still tell.
        with suppress(OSError):
            hands.write_run("report.json", dump(redacted(report, redact)))

    def to_systemd(report: NodeReport) -> None:
        notifier.status(redact(status_line(report)))

    return to_file, to_systemd


def read_secrets(plan: LaunchPlan) -> dict[str, str]:
    """Content of the secret files: to keep it out of every line, and to ask an endpoint that wants a key."""
    found = {}
    for secret in plan.secrets:
        try:
            with Path(secret.file).open(encoding="utf-8", newline="") as file:
                # As the launch script's own reading: only line ends at the end are no part of it.
                found[secret.name] = file.read(SECRET_LIMIT_BYTES).rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
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
