"""Makes the agent: settings, role, plan, lock, report, all that a life needs before its first step."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sparkd import settings
from sparkd.agent import LAST_EXIT_FILE, Agent, new_report
from sparkd.errors import ConfigError
from sparkd.hands import STATE, Hands
from sparkd.hands.lock import Owner
from sparkd.host import Host
from sparkd.journal import Journal
from sparkd.launch.plan import LaunchPlan
from sparkd.log import Redactor, events
from sparkd.pulse import Pulse
from sparkd.report.node_report import NodeReport, dump, redacted
from sparkd.report.reporter import Reporter, status_line
from sparkd.roles import context
from sparkd.systemd import Notifier, invocation_id

API_KEY = "VLLM_API_KEY"
SECRET_LIMIT_BYTES = 64 << 10


def make_agent(role: str, journal: Journal, env: Mapping[str, str]) -> Agent:
    """Raises ConfigError (78) for what no restart can mend, BlockedError (10) where another owner holds the node."""
    config = settings.load(None, env)
    host = Host()
    node = context(config, role, host)
    secrets = read_secrets(node.plan)
    redact = Redactor(tuple(secrets.values()))
    notifier = Notifier()
    pulse = Pulse(notifier, env)
    pulse.listen()
    invocation = invocation_id(env) or uuid.uuid4().hex
    hands = Hands.take(host, pulse, Owner(os.getpid(), f"sparkd run --role {role}", invocation))
    boot_id = host.files.text("/proc/sys/kernel/random/boot_id").strip()
    agent = Agent(
        settings=config,
        context=node,
        host=host,
        hands=hands,
        pulse=pulse,
        notifier=notifier,
        journal=journal,
        events=events(lambda priority, text: journal.put(priority, text, keep=True), redact),
        redact=redact,
        reporter=_reporter(new_report(node, host, invocation, last_cause(STATE)), hands, notifier, redact),
        boot_id=boot_id,
        api_key=secrets.get(API_KEY),
    )
    # Before anything else can end this life: a crash that is not counted now would be forgotten.
    agent.remember(agent.launches().settle(boot_id))
    return agent


def _reporter(first: NodeReport, hands: Hands, notifier: Notifier, redact: Redactor) -> Reporter:
    def to_file(report: NodeReport) -> None:
        # A full /run is no reason to end a life: STATUS= and the journal still tell.
        with suppress(OSError):
            hands.write_run("report.json", dump(redacted(report, redact)))

    def to_systemd(report: NodeReport) -> None:
        notifier.status(redact(status_line(report)))

    return Reporter(first, (to_file, to_systemd))


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


def last_cause(state: Path) -> str:
    """Why the life before ended, from last-exit.json; empty where it says nothing."""
    try:
        match json.loads(_text(state / LAST_EXIT_FILE)):
            case {"schema": 1, "code": int(code), "reason": str(reason)}:
                return f"{reason} (exit {code})"
    except ValueError:
        pass
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
