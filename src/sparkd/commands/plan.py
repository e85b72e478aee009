"""`sparkd plan`: what would be launched on this node. Looks at the configuration alone; prints no secret."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from sparkd.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sparkd.known_good.rollback import Rollback
    from sparkd.launch.plan import LaunchPlan
    from sparkd.roles import NodeContext
    from sparkd.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--script", action="store_true", help="print the launch script alone")
    parser.add_argument("--rank", type=int, help="plan for this rank of cluster.nodes, as configured")


def run(args: argparse.Namespace) -> int:
    from sparkd import settings

    configured = settings.load(None, os.environ)
    node = _own(configured) if args.rank is None else None
    plan = _plan_of_rank(configured, args.rank) if node is None else node.plan
    if args.json:
        print(_as_json(plan))
    elif args.script:
        print(plan.script, end="")
    else:
        print(_described(plan, None if node is None else node.rollback))
    return ExitCode.GOOD


def _own(settings: Settings) -> NodeContext:
    from sparkd.host import Host
    from sparkd.roles import context

    return context(settings, None, Host())


def _plan_of_rank(settings: Settings, rank: int) -> LaunchPlan:
    from sparkd import roles
    from sparkd.launch.planner import make_plan
    from sparkd.recipes import load, lookup

    if not 0 <= rank < max(1, len(settings.cluster.nodes)):
        raise UsageError(f"there is no rank {rank}: cluster.nodes has {len(settings.cluster.nodes)} entries")
    recipe = load.load(settings.engine.recipe, lookup.folders()).recipe
    return make_plan(recipe, settings, roles.of_rank(settings, rank))


def _as_json(plan: LaunchPlan) -> str:
    import json

    from msgspec import to_builtins

    return json.dumps({**to_builtins(plan), "env": dict(plan.env)}, indent=2, ensure_ascii=False)


def _described(plan: LaunchPlan, rollback: Rollback | None) -> str:
    spec, node = plan.container, plan.node
    rows = [
        *([("rollback", rollback.finding.reason), ("", rollback.finding.hint)] if rollback else []),
        ("recipe", plan.recipe),
        ("digest", plan.digest),
        ("node", f"{node.address}: {plan.role}, rank {node.rank} of {node.cluster_size}"),
        ("image", f"{plan.image}, {plan.image_id}" if plan.image_id else plan.image),
        ("model", f"{plan.model_path}, served as {plan.served_name}"),
        ("endpoint", f"{plan.api_host} port {plan.api_port}"),
        ("container", f"gpus {spec.gpus}, ipc {spec.ipc}, network {spec.network}, privileged {_yes(spec.privileged)}"),
        *(("mount", f"{one.source} at {one.target}{' read-only' * one.read_only}") for one in spec.mounts),
        *(("cache", f"{one.name} at {one.target}") for one in plan.caches),
        *(("secret", f"{one.name} from {one.file}") for one in plan.secrets),
        ("memory", _memory(plan) + _limit(plan)),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in rows) + f"\n\n{plan.script}".rstrip("\n")


def _memory(plan: LaunchPlan) -> str:
    if plan.memory_bytes is not None:
        return f"{plan.memory_bytes / 2**30:.1f} GiB"
    share = plan.gpu_memory_utilization
    return "vLLM's default share of the GPU's memory" if share is None else f"{share:g} of the GPU's memory"


def _limit(plan: LaunchPlan) -> str:
    limit = plan.container.memory_limit_bytes
    return "" if limit is None else f"; the container's limit of {limit / 2**30:.1f} GiB does not bound the GPU's share"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
