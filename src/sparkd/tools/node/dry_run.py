"""Findings of preflight without any change: for a plan, for settings that may not be on disk yet, or without a plan."""

from sparkd.agent.preflight.check import Finding, Level, Verdict
from sparkd.agent.preflight.hooks import list_hooks
from sparkd.agent.preflight.runner import build_checks, build_unplanned, by_policy, examine, without_skipped
from sparkd.base.cluster.membership import NodeContext, check_inputs, resolve_context
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import ConfigError
from sparkd.base.status.model import parse, read_report
from sparkd.tools.node import render
from sparkd.tools.node.next_start import NextStart
from sparkd.tools.node.render import Owner, PreflightReport


def examine_settings(config: Settings, host: Host) -> PreflightReport:
    """A dry run with settings that may not be on disk yet, also with those that make no plan."""
    try:
        return examine_plan(resolve_context(config, None, host), config, host)
    except ConfigError as error:
        return examine_without_plan(error, None, config, host)


def examine_plan(node: NodeContext, config: Settings, host: Host) -> PreflightReport:
    """A dry run. Neither `Actions` nor anything that could start a program is imported here."""
    policy = config.preflight
    checks = without_skipped(build_checks(check_inputs(node)), policy.skip)
    host = NextStart(host)
    return _make_report(by_policy(examine(checks, host), policy), node.role, config, host)


def examine_without_plan(error: ConfigError, role: str | None, config: Settings, host: Host) -> PreflightReport:
    """A dry run of the checks that need no plan, since the configuration makes none. `error`: the reason."""
    fault = Verdict(Level.BLOCK, "; ".join(error.reason.splitlines()), error.hint)
    skipped = Verdict(Level.SKIPPED, "needs a plan, which the configuration does not give")
    unplanned, policy = build_unplanned(config), config.preflight
    checks = without_skipped([check for check in unplanned.values() if check is not None], policy.skip)
    unexamined = [name for name, check in unplanned.items() if check is None and name not in policy.skip]
    host = NextStart(host)
    findings = (
        Finding(render.CONFIGURATION, fault, {}, 0.0),
        *by_policy(examine(checks, host), policy),
        *(Finding(name, skipped, {}, 0.0) for name in unexamined),
    )
    return _make_report(findings, role or "no role yet", config, host)


def _make_report(findings: tuple[Finding, ...], role: str, config: Settings, host: NextStart) -> PreflightReport:
    programs = list_hooks(host.files)
    findings += tuple(hook.refusal for hook in programs if hook.problem)
    return PreflightReport(
        node=host.name(),
        role=role,
        changes_nothing=True,
        findings=findings,
        fixes=render.intended_fixes(findings, config.preflight.allow_fixes),
        hooks=tuple(hook.path for hook in programs if not hook.problem),
        owner=_describe_owner(host),
    )


def _describe_owner(host: NextStart) -> Owner | None:
    """The process that owns the node; None where there is none."""
    if (agent := host.agent) is None or not agent.pid:
        return None
    report = parse(read_report(host.files))
    phase = since = ""
    if report is not None and report.incarnation == agent.invocation:
        phase, since = report.phase.value, report.since
    return Owner(agent.pid, agent.command, phase, since, tuple(rank.name for rank in host.ranks))
