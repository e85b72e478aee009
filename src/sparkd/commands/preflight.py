"""`sparkd preflight`: examine this node, mend what may be mended, say what blocks."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.commands import console
from sparkd.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sparkd.admission import Policy
    from sparkd.host import Host
    from sparkd.preflight.check import Finding
    from sparkd.preflight.render import Shown
    from sparkd.roles import NodeContext
    from sparkd.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only look: change nothing, say what would be changed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--role", choices=("head", "worker"), help="exit 78 where this node is not of this role")
    parser.add_argument(
        "--root", metavar="TREE", help="look at the machine whose files lie below TREE; implies --dry-run"
    )
    parser.add_argument("--explain", metavar="ID", help="say what a check looks at, and why")


def run(args: argparse.Namespace) -> int:
    if args.explain:
        print(_page(args.explain))
        return ExitCode.GOOD
    from sparkd import settings
    from sparkd.host import Host
    from sparkd.preflight import render
    from sparkd.roles import context

    host = Host(args.root or "/")
    config = settings.load(None, os.environ if host.live else {}, Path(host.files.root))
    node = context(config, args.role, host)
    if node.rollback is not None:
        print(f"sparkd: {node.rollback.finding.reason} ({node.rollback.finding.hint})", file=sys.stderr)
    shown = _only_look(node, config, host) if args.dry_run or args.root else _act(node, config, host)
    if args.json:
        sys.stdout.write(render.as_json(shown))
    else:
        console.show(render.parts(shown))
    return _code(shown)


def _page(check_id: str) -> str:
    from sparkd.nearest import did_you_mean
    from sparkd.preflight.catalogue import CHECKS, IDS

    for check in CHECKS:
        if check.id == check_id:
            return f"{check.id}\n\n{check.about.page}"
    raise UsageError(f"no check {check_id!r}{did_you_mean(check_id, IDS)}", f"checks: {', '.join(IDS)}")


def _only_look(node: NodeContext, config: Settings, host: Host) -> Shown:
    """No `Hands`, and nothing that could start a program, is so much as imported here."""
    from sparkd.preflight import hook_list
    from sparkd.preflight.catalogue import IDS
    from sparkd.preflight.examine import chosen, downgraded, examine
    from sparkd.preflight.render import Shown, intended

    wanted = config.preflight
    checks = chosen(node.checks(), wanted.skip, IDS)
    programs = hook_list.listed(host.files)
    findings = downgraded(examine(checks, host), wanted.downgrade, IDS)
    findings += tuple(hook.refusal for hook in programs if hook.problem)
    return Shown(
        node=host.name(),
        role=node.role,
        changes_nothing=True,
        findings=findings,
        fixes=intended(findings, wanted.allow_fixes),
        hooks=tuple(hook.path for hook in programs if not hook.problem),
    )


def _act(node: NodeContext, config: Settings, host: Host) -> Shown:
    """Raises BlockedError (10), which names the owner, where somebody else owns the node."""
    if os.geteuid() != 0:
        raise UsageError(
            "only root may mend this node", "sudo sparkd preflight, or only look: sparkd preflight --dry-run"
        )
    import uuid

    from sparkd import hooks
    from sparkd.admission import Ways, mend
    from sparkd.hands import Hands
    from sparkd.hands.lock import Owner
    from sparkd.preflight import hook_list
    from sparkd.preflight.render import Shown
    from sparkd.pulse import Pulse
    from sparkd.systemd import Notifier

    pulse = Pulse(Notifier(), {})

    def run_hooks() -> tuple[Finding, ...]:
        return hooks.run(hook_list.listed(host.files), pulse, hooks.environment(node.role, node.rank))

    def wait(seconds: float, _for: str) -> None:
        pulse.wait(seconds)

    ways = Ways(run_hooks, wait, pulse, _Silent(), show=lambda _findings: None)
    hands = Hands.take(host, pulse, Owner(os.getpid(), "sparkd preflight", uuid.uuid4().hex))
    try:
        admission = mend(node.checks, host, hands, _policy(config), ways)
    finally:
        hands.release()
    return Shown(host.name(), node.role, False, admission.findings, admission.fixes, admission.before)


def _policy(config: Settings) -> Policy:
    """A person waits: nothing is waited for on their behalf."""
    from sparkd.admission import Policy

    wanted = config.preflight
    return Policy(wanted.skip, wanted.downgrade, wanted.allow_fixes, wait_seconds=0)


class _Silent:
    """Events are for the journal; a person reads the table."""

    def info(self, event: str, **fields: object) -> None: ...
    def warning(self, event: str, **fields: object) -> None: ...
    def error(self, event: str, **fields: object) -> None: ...


def _code(shown: Shown) -> ExitCode:
    from sparkd.preflight.examine import blocking

    blocked = blocking(shown.findings)
    if not blocked:
        return ExitCode.GOOD
    return ExitCode.NEEDS_PERSON if blocked[0].verdict.needs_person else ExitCode.BLOCKED
