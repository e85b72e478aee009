"""Plan lint: flags and environment that are known to fail, reported before a load of half an hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from errno import EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, verdict
from sparkd.base.host import Host, weights
from sparkd.base.host.files import Files
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.reach import find_reach
from sparkd.base.state import vllm_tables
from sparkd.base.vllm.flag import SHIPPED, FirstValues, FlagTable, first_values, parse_flags
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint import script as scripts
from sparkd.base.vllm.lint.model import ModelLimits, parse_limits
from sparkd.base.vllm.lint.predicates import Launch
from sparkd.base.vllm.releases import find_release

SCRIPT_LIMIT_BYTES = 64 << 10


class PlanFacts(Struct, frozen=True):
    flags: int
    model: ModelLimits
    own_command: bool
    """Whether engine.script starts an engine of its own, rather than the plan's."""
    _script: scripts.Script | None
    _resolved: Mapping[str, str]
    """What the node's symlinks make of each path that the container gets."""
    _vllm: FlagTable = SHIPPED


class PlanLint(Check[PlanFacts], frozen=True):
    plan: LaunchPlan
    id = "plan-lint"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> PlanFacts:
        script = _script(host.files, self.plan)
        own = script is not None and bool(script.serves) and not script.passes_on
        vllm = vllm_tables.find_table(host, self.plan.image_to_run)
        return PlanFacts(
            flags=len(_launch(self.plan, script if own else None).flags),
            model=parse_limits(weights.read_config(host.files, self.plan.model_path)),
            own_command=own,
            _vllm=vllm,
            _script=script,
            _resolved={path: host.files.resolved(path) for path in self._given},
        )

    @property
    def _given(self) -> tuple[str, ...]:
        container = self.plan.container
        secrets = (secret.file for secret in self.plan.secrets)
        return (*(volume.source for volume in container.volumes), *container.devices, *secrets)

    def judge(self, facts: PlanFacts) -> Verdict:
        node, script = self.plan.node, facts._script
        place = (node.rank, node.cluster_size, node.head_address, self.plan.master_port)
        issues = list(scripts.find_misplaced(script, *place)) if script is not None else []
        launch = _launch(self.plan, script if facts.own_command else None)
        issues += rules.find_issues(replace(launch, model=facts.model, vllm=facts._vllm))
        read = {f"secrets.{secret.name}": secret.file for secret in self.plan.secrets}
        issues += find_reach(self.plan.container, read, lambda path: facts._resolved.get(path, path))
        problems = [Verdict(Level.BLOCK if issue.blocks else Level.WARN, issue.reason, issue.hint) for issue in issues]
        whose = "engine.script" if facts.own_command else "the plan"
        good = f"nothing in the {facts.flags} flags of {whose} is known to fail"
        return verdict(problems, f"{good}, {facts._vllm.judge}" if facts._vllm.image else good)


def is_doubtful(plan: LaunchPlan) -> bool:
    """Whether the image's own vLLM may judge the plan otherwise than the table that comes with sparkd."""
    return rules.is_doubtful(replace(_launch(plan, None), vllm=find_release(plan.image)))


def _launch(plan: LaunchPlan, script: scripts.Script | None) -> Launch:
    """The engine that will run: the script's where it starts its own, else the plan's."""
    launch = Launch(
        flags=first_values(plan.argv),
        env=dict(plan.env),
        gpu=plan.container.gpus == "all",
        gpus=plan.gpus,
        nodes=plan.node.cluster_size,
        addresses=(plan.node.address, plan.node.head_address),
        pool_tokens=plan.kv_cache_tokens,
        given=parse_flags(plan.argv),
        extra=plan.extra_flags,
    )
    if script is None:
        return launch
    return replace(launch, flags=_common(script.serves), env={**launch.env, **script.env}, pool_tokens=None, given=())


def script_share(files: Files, plan: LaunchPlan) -> float | None:
    """Share of the GPU's memory of an engine that engine.script starts itself; None where the plan's share counts."""
    script = _script(files, plan)
    if script is None or not script.serves or script.passes_on:
        return None
    return _launch(plan, script).share("gpu-memory-utilization")


def _common(commands: Sequence[FirstValues]) -> FirstValues:
    """Which of several commands runs is unknown: where they differ, the value is None."""
    names = dict.fromkeys(name for flags in commands for name in flags)
    values = {name: {flags.get(name) for flags in commands} for name in names}
    return {name: texts.pop() if len(texts) == 1 else None for name, texts in values.items()}


def _script(files: Files, plan: LaunchPlan) -> scripts.Script | None:
    """The parsed script; None where there is none to read: script-paths reports a missing one."""
    if not plan.user_script:
        return None
    try:
        return scripts.parse_script(files.text(plan.user_script, SCRIPT_LIMIT_BYTES), dict(plan.env))
    except OSError as error:
        if error.errno in (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP, EISDIR, ENXIO):
            return None
        raise
