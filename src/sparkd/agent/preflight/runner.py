"""The checks in the order in which they run; their findings, and which fixes these together allow."""

from collections.abc import Iterable, Sequence
from shlex import quote
from time import monotonic

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from sparkd.agent.preflight.check import MOST_NAMED, AnyCheck, Finding, Level, Verdict, unknown, warn
from sparkd.agent.preflight.checks.compile_cache import CompileCache
from sparkd.agent.preflight.checks.disk import DiskRoom
from sparkd.agent.preflight.checks.docker import Docker, EngineImage, StaleContainer
from sparkd.agent.preflight.checks.fabric import FabricAddress, FabricLink
from sparkd.agent.preflight.checks.foreign_units import ForeignUnits
from sparkd.agent.preflight.checks.free_memory import FragmentedMemory, PageCache, SwapOff
from sparkd.agent.preflight.checks.gpu import Gpu
from sparkd.agent.preflight.checks.kernel import Kernel, KernelSettings
from sparkd.agent.preflight.checks.kernel_log import KernelLog
from sparkd.agent.preflight.checks.last_boot import LastBoot
from sparkd.agent.preflight.checks.limits import Memlock, MemoryLimit, ShmSize
from sparkd.agent.preflight.checks.memory import ModelMemory, UnifiedMemory
from sparkd.agent.preflight.checks.memory_users import OtherTenants
from sparkd.agent.preflight.checks.paths import ScriptPaths
from sparkd.agent.preflight.checks.peer_clocks import PeerClocks
from sparkd.agent.preflight.checks.plan_lint import PlanLint
from sparkd.agent.preflight.checks.ports import Listeners, Ports
from sparkd.agent.preflight.checks.rdma import GidIndex, Rdma
from sparkd.agent.preflight.checks.shared_memory import RemoveIpc, SharedMemory
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.agent.preflight.checks.unaccounted_memory import UnaccountedMemory
from sparkd.agent.preflight.checks.weights import ModelWeights
from sparkd.agent.preflight.fixes import BY_START, ORDER, Fix, Identity, by_hand
from sparkd.base.config import Settings
from sparkd.base.config.settings import Preflight
from sparkd.base.host import CachedHost, Host
from sparkd.base.host.processes import OvergrownError
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import did_you_mean
from sparkd.base.plan.inputs import CheckInputs, MemorySample, PlanNeededError

CHECKS: tuple[type[AnyCheck], ...] = (
    ScriptPaths,
    PlanLint,
    ModelWeights,
    ModelMemory,
    DiskRoom,
    LastBoot,
    Kernel,
    KernelLog,
    KernelSettings,
    Gpu,
    Docker,
    EngineImage,
    CompileCache,
    StrayWorkers,
    StaleContainer,
    ForeignUnits,
    Ports,
    SharedMemory,
    ShmSize,
    RemoveIpc,
    Memlock,
    MemoryLimit,
    PageCache,
    FragmentedMemory,
    UnifiedMemory,
    OtherTenants,
    UnaccountedMemory,
    SwapOff,
    FabricAddress,
    FabricLink,
    Rdma,
    GidIndex,
    Listeners,
    PeerClocks,
)
IDS = tuple(check.id for check in CHECKS)
RETIRED_IDS = ("resolver",)
"""Ids of checks that are gone: a configuration that names one is still good."""


def build_checks(
    inputs: CheckInputs, memory_baseline: MemorySample | None = None, tried: frozenset[Identity] = frozenset()
) -> tuple[AnyCheck, ...]:
    """Build all checks. `memory_baseline`, `tried`: as in CheckInputs."""
    inputs = replace(inputs, memory_baseline=memory_baseline, tried=tried)
    return tuple(check.from_inputs(inputs) for check in CHECKS)


def build_unplanned(settings: Settings) -> dict[str, AnyCheck | None]:
    """The checks of a node without a plan, by id: None for those that need one."""

    def build(check: type[AnyCheck]) -> AnyCheck | None:
        try:
            return check.from_inputs(CheckInputs(None, settings))
        except PlanNeededError:
            return None

    return {check.id: build(check) for check in CHECKS}


def examine(checks: Iterable[AnyCheck], host: Host) -> tuple[Finding, ...]:
    """Run the checks. One that fails to look is UNKNOWN, with the error, or warns where it never blocks."""
    cached = host if isinstance(host, CachedHost) else CachedHost(host)
    return tuple(_examine(check, cached) for check in checks)


def _examine(check: AnyCheck, host: Host) -> Finding:
    began = monotonic()
    facts: object = None
    try:
        facts, verdict = check.run(host)
    except Exception as error:  # whatever a check raises: it could not look, and that blocks
        reason = f"could not look: {type(error).__name__}: {error}"
        hint = "sudo sparkd preflight --dry-run; if it stays there, report it: sudo sparkd capture"
        if isinstance(error, OvergrownError):
            user = quote(error.user.removeprefix("uid "))
            reason, hint = f"could not look: {error.strerror}", f"end what makes them: ps -u {user}"
        judge = unknown if any(level.blocks for level in check.levels) else warn
        verdict = judge(" ".join(reason.split()), hint)
    return Finding(check.id, verdict, evidence(facts), round(monotonic() - began, 4))


def evidence(facts: object) -> dict[str, object]:
    """The public fields of a Struct of facts, as JSON has them."""
    if not isinstance(facts, Struct):
        return {}
    names = zip(facts.__struct_fields__, facts.__struct_encode_fields__, strict=True)
    values = ((key, getattr(facts, name)) for name, key in names if name[0] != "_")
    return {key: to_builtins(value, str_keys=True, enc_hook=str) for key, value in values}


def check_ids(policy: Preflight) -> None:
    """Judge the ids in the settings. Raises ConfigError with all those that no check has."""
    errors = [
        f"{key} names {name}, which is no check{did_you_mean(name, IDS)}"
        for key, names in (("preflight.skip", policy.skip), ("preflight.downgrade", policy.downgrade))
        for name in names
        if name not in (*IDS, *RETIRED_IDS)
    ]
    if errors:
        raise ConfigError("\n".join(errors), f"checks: {', '.join(IDS)}")


def without_skipped(checks: Sequence[AnyCheck], skip: Sequence[str]) -> tuple[AnyCheck, ...]:
    """The checks without those to skip."""
    return tuple(check for check in checks if check.id not in skip)


def by_policy(findings: Sequence[Finding], policy: Preflight) -> tuple[Finding, ...]:
    """The findings as the settings have them: those of preflight.downgrade warn where they would block, and the hint
    of a fix that is not allowed has the commands for a person.
    """
    return tuple(replace(finding, verdict=_judge_by_policy(finding, policy)) for finding in findings)


def _judge_by_policy(finding: Finding, policy: Preflight) -> Verdict:
    verdict = finding.verdict
    if verdict.hint.startswith(BY_START):
        descendants = {fix for offer in verdict.offers for fix in offer[1:]}
        left = [fix for fix in verdict.fixes if fix.kind not in policy.allow_fixes and fix not in descendants]
        commands = "; ".join(map(by_hand, left[:MOST_NAMED]))
        verdict = replace(verdict, hint=f"preflight.allow_fixes leaves it to a person: {commands}") if left else verdict
    if finding.id not in policy.downgrade or not verdict.level.blocks:
        return verdict
    # A warning's fixes are applied. Fixes that can't clear their finding must not be, and so are left out.
    return warn(verdict.reason, verdict.hint, verdict.fixes if verdict.clears else (), offers=verdict.offers)


def overall(findings: Iterable[Finding]) -> Level:
    """The worst level of all."""
    return min((finding.verdict.level for finding in findings), key=lambda level: level.severity, default=Level.OK)


def blocking(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that block: first those that need a person, then those that no fix clears."""
    blocked = (finding for finding in findings if finding.verdict.level.blocks)
    return tuple(sorted(blocked, key=lambda finding: (not finding.verdict.needs_person, finding.verdict.clears)))


def fixes_to_apply(findings: Sequence[Finding], allowed_kinds: Sequence[str]) -> tuple[Fix, ...]:
    """Every allowed fix, in the order in which to apply them; none unless they clear all that blocks."""
    if uncleared(findings, allowed_kinds):
        return ()
    return tuple(sorted(_list_allowed(findings, allowed_kinds), key=lambda fix: ORDER.index(type(fix))))


def uncleared(findings: Sequence[Finding], allowed_kinds: Sequence[str]) -> tuple[Finding, ...]:
    """The findings that block, and that no allowed fix clears."""
    freed_bytes = sum(fix.frees_bytes for fix in _list_allowed(findings, allowed_kinds))
    blocked = blocking(findings)
    return tuple(finding for finding in blocked if not _is_cleared(finding.verdict, allowed_kinds, freed_bytes))


def _list_allowed(findings: Sequence[Finding], kinds: Sequence[str]) -> dict[Fix, None]:
    return dict.fromkeys(fix for finding in findings for fix in finding.verdict.fixes if fix.kind in kinds)


def _is_cleared(verdict: Verdict, allowed_kinds: Sequence[str], freed_bytes: int) -> bool:
    if verdict.needs_person:
        return False
    if verdict.shortage_bytes:
        return freed_bytes >= verdict.shortage_bytes
    return verdict.clears and all(fix.kind in allowed_kinds for fix in verdict.fixes)
