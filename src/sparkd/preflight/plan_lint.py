"""Plan lint: flags and environment that are known to fail, told before half an hour is spent on them."""

from __future__ import annotations

from collections.abc import Sequence
from errno import EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from sparkd.host import model_config
from sparkd.lint import flag_words, rules, words
from sparkd.lint import script as scripts
from sparkd.lint.launch import Launch
from sparkd.lint.model import ModelLimits, limits
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.problems import Problem, verdict

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files
    from sparkd.launch.plan import LaunchPlan

SCRIPT_LIMIT_BYTES = 64 << 10
NO_SCRIPT = (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP, EISDIR, ENXIO)


class PlanFacts(Struct, frozen=True):
    flags: int
    """Of the engine that is judged."""
    model: ModelLimits
    own_command: bool
    """Whether engine.script starts an engine of its own, rather than the one that the plan says."""
    _script: scripts.Script | None


class PlanLint(Check[PlanFacts], frozen=True):
    """Nothing in the plan is known to fail."""

    plan: LaunchPlan
    id: ClassVar[str] = "plan-lint"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK),
        reads="the plan's flags and environment; engine.script; config.json of the model",
        source=f"{rules.ECHO}; measured on vLLM 0.32; its page names each rule's own",
        page=f"""\
vLLM reads its flags after a minute of imports, and some of them fail only when the weights are loaded. This check
holds the plan against what is known to fail; `sparkd recipe check` holds recipes against the same rules.

Where engine.script starts a `vllm serve` of its own, its words count and the plan's do not. A script that ends with
exec "$@" starts the plan's command. What a variable of the shell gives is not known, and not judged.

{rules.described()}

Of engine.script, these block: a worker's `vllm serve` without --headless, --headless on the head, and --node-rank,
--nnodes, --master-addr or --master-port that are not this node's.

Where a rule does not fit your build of vLLM, preflight.downgrade = ["plan-lint"] makes it warn.""",
    )

    def probe(self, host: Host) -> PlanFacts:
        script = _script(host.files, self.plan)
        own = script is not None and bool(script.serves) and not script.passes_on
        return PlanFacts(
            flags=len(_launch(self.plan, script if own else None).flags),
            model=limits(model_config.read(host.files, self.plan.model_path)),
            own_command=own,
            _script=script,
        )

    def judge(self, facts: PlanFacts) -> Verdict:
        found = [*_misplaced(self.plan, facts._script)]
        launch = _launch(self.plan, facts._script if facts.own_command else None)
        found += rules.issues(replace(launch, model=facts.model))
        problems = [Problem(Level.BLOCK if one.blocks else Level.WARN, one.reason, one.hint) for one in found]
        whose = "engine.script" if facts.own_command else "the plan"
        return verdict(problems, f"nothing in the {facts.flags} flags of {whose} is known to fail")


def _launch(plan: LaunchPlan, script: scripts.Script | None) -> Launch:
    """The engine that will run: the script's where it starts its own, else the plan's."""
    kept = (
        *(cache.target for cache in plan.caches),
        *(mount.target for mount in plan.container.mounts if not mount.read_only),
    )
    launch = Launch(
        flags=words.flags(plan.argv),
        env=dict(plan.env),
        gpu=plan.container.gpus == "all",
        kept=kept,
        pool_tokens=plan.kv_cache_tokens,
        given=flag_words.given(plan.argv),
        extra=plan.extra_flags,
    )
    if script is None:
        return launch
    return replace(launch, flags=_common(script.serves), env={**launch.env, **script.env}, pool_tokens=None, given=())


def _common(commands: Sequence[words.Flags]) -> words.Flags:
    """Of several commands, which one runs is not known: where they differ, nor is the value."""
    names = dict.fromkeys(name for flags in commands for name in flags)
    said = {name: {flags.get(name) for flags in commands} for name in names}
    return {name: values.pop() if len(values) == 1 else None for name, values in said.items()}


def _misplaced(plan: LaunchPlan, script: scripts.Script | None) -> tuple[rules.Issue, ...]:
    if script is None:
        return ()
    node = plan.node
    return tuple(
        scripts.misplaced(script, scripts.Place(node.rank, node.cluster_size, node.head_address, plan.master_port))
    )


def _script(files: Files, plan: LaunchPlan) -> scripts.Script | None:
    """None where there is none to read: that it is missing is told elsewhere."""
    if not plan.user_script:
        return None
    try:
        return scripts.read(files.text(plan.user_script, SCRIPT_LIMIT_BYTES)).told_by(dict(plan.env))
    except OSError as error:
        if error.errno in NO_SCRIPT:
            return None
        raise
