"""What preflight finds where it changes nothing: of a plan, of settings that may not be on disk yet, without a plan."""

from __future__ import annotations

from sparkd.agent.preflight.check import Finding, Level, Verdict
from sparkd.agent.preflight.hooks import list_hooks
from sparkd.agent.preflight.registry import build_checks, build_unplanned
from sparkd.agent.preflight.runner import chosen, downgraded, examine
from sparkd.base.cluster.membership import NodeContext, check_inputs, resolve_context
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import ConfigError
from sparkd.base.status.model import parse, read_report
from sparkd.tools.node import render
from sparkd.tools.node.next_start import NextStart
from sparkd.tools.node.render import Owner, Shown


def look_at(config: Settings, host: Host) -> Shown:
    """A dry run with settings that may not be on disk yet."""
    try:
        return only_look(resolve_context(config, None, host), config, host)
    except ConfigError as error:
        return look_without_plan(error, None, config, host)


def only_look(node: NodeContext, config: Settings, host: Host) -> Shown:
    """Neither `Actions` nor anything that could start a program is imported here."""
    wanted = config.preflight
    checks = chosen(build_checks(check_inputs(node)), wanted.skip)
    host = NextStart(host)
    return _shown(downgraded(examine(checks, host), wanted.downgrade), node.role, config, host)


def look_without_plan(error: ConfigError, role: str | None, config: Settings, host: Host) -> Shown:
    """What the checks find that need no plan, where the configuration makes none."""
    wrong = Verdict(Level.BLOCK, "; ".join(error.reason.splitlines()), error.hint)
    skipped = Verdict(Level.SKIPPED, "needs a plan, which the configuration does not give")
    unplanned, wanted = build_unplanned(config), config.preflight
    checks = chosen([one for one in unplanned.values() if one is not None], wanted.skip)
    left = [name for name, one in unplanned.items() if one is None and name not in wanted.skip]
    host = NextStart(host)
    findings = (
        Finding(render.CONFIGURATION, wrong, {}, 0.0),
        *downgraded(examine(checks, host), wanted.downgrade),
        *(Finding(name, skipped, {}, 0.0) for name in left),
    )
    return _shown(findings, role or "no role yet", config, host)


def _shown(findings: tuple[Finding, ...], role: str, config: Settings, host: NextStart) -> Shown:
    programs = list_hooks(host.files)
    findings += tuple(hook.refusal for hook in programs if hook.problem)
    return Shown(
        node=host.name(),
        role=role,
        changes_nothing=True,
        findings=findings,
        fixes=render.intended(findings, config.preflight.allow_fixes),
        hooks=tuple(hook.path for hook in programs if not hook.problem),
        owner=_owner(host),
    )


def _owner(host: NextStart) -> Owner | None:
    if (agent := host.agent) is None or not agent.pid:
        return None
    report = parse(read_report(host.files))
    own = report if report and report.incarnation == agent.invocation else None
    names = tuple(one.name for one in host.ranks)
    return Owner(agent.pid, agent.command, own.phase.value if own else "", own.since if own else "", names)
