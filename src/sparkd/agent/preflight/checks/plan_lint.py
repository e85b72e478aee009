"""Plan lint: reports flags and environment that are known to fail, before a load of half an hour does."""

from collections.abc import Mapping, Sequence
from errno import EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, combine_verdicts
from sparkd.base.host import Host, weights
from sparkd.base.host.files import Files
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.reach import find_reach
from sparkd.base.state import vllm_tables
from sparkd.base.vllm.command import API_SERVER, FirstValues, first_values, parse_command
from sparkd.base.vllm.flag import SHIPPED, FlagTable
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import ModelLimits, parse_limits
from sparkd.base.vllm.lint.script import Script, find_misplaced, parse_script
from sparkd.base.vllm.releases import known_release


class PlanFacts(Struct, frozen=True):
    flags: int
    """How many the engine gets."""
    model: ModelLimits
    own_command: bool
    """Whether engine.script starts an engine of its own, rather than the plan's."""
    _script: Script | None
    _resolved: Mapping[str, str]
    """Each path that the container gets, with its symlinks on this node resolved."""
    _vllm: FlagTable = SHIPPED
    """The flags that the image's vLLM knows."""


class PlanLint(Check[PlanFacts], frozen=True):
    plan: LaunchPlan
    id = "plan-lint"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> PlanFacts:
        script = _read_script(host.files, self.plan)
        own_command = script is not None and bool(script.serves) and not script.passes_arguments_on
        container, secrets = self.plan.container, (secret.file for secret in self.plan.secrets)
        sources = (volume.source for volume in container.volumes)
        mounted = _may_mount_vllm(self.plan)
        flag_table = vllm_tables.find_table(host, self.plan.image_to_run, *self.plan.release_names, mounted=mounted)
        return PlanFacts(
            flags=len(_build_launch(self.plan, script if own_command else None).flags),
            model=parse_limits(weights.read_config(host.files, self.plan.model_path)),
            own_command=own_command,
            _vllm=flag_table,
            _script=script,
            _resolved={path: host.files.resolved(path) for path in (*sources, *container.devices, *secrets)},
        )

    def judge(self, facts: PlanFacts) -> Verdict:
        node, script, port = self.plan.node, facts._script, self.plan.master_port
        issues = list[rules.Issue]()
        if script is not None:
            issues += find_misplaced(script, node.rank, node.cluster_size, node.head_address, port)
        launch = _build_launch(self.plan, script if facts.own_command else None)
        issues += rules.find_issues(replace(launch, model=facts.model, vllm=facts._vllm))
        secret_files = {f"secrets.{secret.name}": secret.file for secret in self.plan.secrets}
        issues += find_reach(self.plan.container, secret_files, lambda path: facts._resolved.get(path, path))
        problems = [Verdict(Level.BLOCK if issue.blocks else Level.WARN, issue.reason, issue.hint) for issue in issues]
        source = "engine.script" if facts.own_command else "the plan"
        good = f"nothing in the {facts.flags} flags of {source} is known to fail"
        return combine_verdicts(problems, f"{good}, {facts._vllm.judged_by}" if facts._vllm.image else good)


def is_doubtful(plan: LaunchPlan) -> bool:
    """Whether the image's own vLLM may judge the plan otherwise than the table that comes with sparkd.

    One of an unknown release may lack any flag. With a script, or one as entrypoint, it needn't be the one that serves,
    nor with a mount that may bring another.
    """
    release = known_release(*plan.release_names)
    has_script = plan.user_script or plan.entrypoint[-1] not in ("serve", API_SERVER)
    launch = replace(_build_launch(plan, None), vllm=release or SHIPPED)
    return not _may_mount_vllm(plan) and (not (release or has_script) or rules.is_doubtful(launch))


def _may_mount_vllm(plan: LaunchPlan) -> bool:
    return plan.container.may_bring_vllm(plan.entrypoint, dict(plan.env))


def _build_launch(plan: LaunchPlan, script: Script | None) -> Launch:
    """The engine that will run: the script's, or the plan's where that is None."""
    launch = Launch(
        flags=first_values(plan.argv),
        env=dict(plan.env),
        gpu=plan.container.gpus == "all",
        gpus=plan.gpus,
        nodes=plan.node.cluster_size,
        addresses=(plan.node.address, plan.node.head_address),
        pool_tokens=plan.kv_cache_tokens,
        given=parse_command(plan.argv),
        extra=plan.extra_flags,
        mounts=(*(volume.target for volume in plan.container.volumes), *(cache.target for cache in plan.caches)),
    )
    if script is None:
        return launch
    flags, env = _merge_flags(script.serves), {**launch.env, **script.env}
    return replace(launch, flags=flags, env=env, pool_tokens=None, given=())


def script_share(files: Files, plan: LaunchPlan) -> float | None:
    """Share of the GPU's memory of an engine that engine.script starts itself; None where the plan's share counts."""
    script = _read_script(files, plan)
    if script is None or not script.serves or script.passes_arguments_on:
        return None
    return _build_launch(plan, script).share("gpu-memory-utilization")


def _merge_flags(commands: Sequence[FirstValues]) -> FirstValues:
    """Flags of several commands, of which it is unknown which one runs: where they differ, the value is None."""
    names = dict.fromkeys(name for flags in commands for name in flags)
    values = {name: {flags.get(name) for flags in commands} for name in names}
    return {name: texts.pop() if len(texts) == 1 else None for name, texts in values.items()}


def _read_script(files: Files, plan: LaunchPlan) -> Script | None:
    """Parse engine.script; None where there is none to read: script-paths reports a missing one. Raises OSError."""
    if not plan.user_script:
        return None
    try:
        return parse_script(files.text(plan.user_script, 64 << 10), dict(plan.env))
    except OSError as error:
        if error.errno in (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP, EISDIR, ENXIO):
            return None
        raise
