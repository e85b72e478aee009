"""`sparkd plan`: what would be launched on this node. Looks at the configuration alone; prints no secret."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from sparkd.lib.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sparkd.config import Settings
    from sparkd.plan.model import LaunchPlan
    from sparkd.recipes.schema import Container, Lines
    from sparkd.state.rollback import Rollback


def arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--script", action="store_true", help="print the launch script alone")
    parser.add_argument("--rank", type=int, help="plan for this rank of cluster.nodes, as configured")


def run(args: argparse.Namespace) -> int:
    from sparkd.cluster.membership import resolve_context
    from sparkd.config import load_settings
    from sparkd.host import Host

    configured = load_settings(os.environ)
    node = resolve_context(configured, None, Host()) if args.rank is None else None
    plan = _plan_of_rank(configured, args.rank) if node is None else node.plan
    if args.json:
        print(_as_json(plan))
    elif args.script:
        print(plan.script, end="")
    else:
        print(_described(plan, None if node is None else node.rollback))
    return ExitCode.GOOD


def _plan_of_rank(settings: Settings, rank: int) -> LaunchPlan:
    from sparkd.cluster import membership
    from sparkd.plan.build import make_plan
    from sparkd.recipes.loader import load_recipe, recipe_folders

    if not 0 <= rank < max(1, len(settings.cluster.nodes)):
        raise UsageError(f"there is no rank {rank}: cluster.nodes has {len(settings.cluster.nodes)} entries")
    recipe = load_recipe(settings.engine.recipe, recipe_folders()).recipe
    return make_plan(recipe, settings, membership.node_of_rank(settings, rank))


def _as_json(plan: LaunchPlan) -> str:
    import json

    from msgspec import to_builtins

    values = to_builtins(plan, enc_hook=_dump_model)
    return json.dumps({**values, "env": dict(plan.env)}, indent=2, ensure_ascii=False)


def _dump_model(value: Container | Lines) -> dict[str, object]:
    fields = value.model_dump()
    if "volumes" in fields:
        fields["ulimits"] = [{"name": name, **limit} for name, limit in fields["ulimits"].items()]
        fields["mounts"] = fields.pop("volumes")
    return fields


def _described(plan: LaunchPlan, rollback: Rollback | None) -> str:
    spec, node = plan.container, plan.node
    privileged = "yes" if spec.privileged else "no"
    rows = [
        *([("rollback", rollback.finding.reason), ("", rollback.finding.hint)] if rollback else []),
        ("recipe", plan.recipe),
        ("digest", plan.digest),
        ("node", f"{node.address}: {plan.role}, rank {node.rank} of {node.cluster_size}"),
        ("image", f"{plan.image}, {plan.image_id}" if plan.image_id else plan.image),
        ("model", f"{plan.model_path}, served as {plan.served_name}"),
        ("endpoint", f"{plan.api_host} port {plan.api_port}"),
        ("container", f"gpus {spec.gpus}, ipc {spec.ipc}, network {spec.network}, privileged {privileged}"),
        *(("mount", f"{one.source} at {one.target}{' read-only' * one.read_only}") for one in spec.volumes),
        *(("cache", f"{one.name} at {one.target}") for one in plan.caches),
        *(("secret", f"{one.name} from {one.file}") for one in plan.secrets),
        ("memory", _memory(plan)),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in rows) + f"\n\n{plan.script}".rstrip("\n")


def _memory(plan: LaunchPlan) -> str:
    share, limit = plan.gpu_memory_utilization, plan.container.memory_limit_bytes
    if plan.memory_bytes is not None:
        text = f"{plan.memory_bytes / 2**30:.1f} GiB"
    else:
        text = "vLLM's default share of the GPU's memory" if share is None else f"{share:g} of the GPU's memory"
    if limit is not None:
        text += f"; the container's limit of {limit / 2**30:.1f} GiB does not bound the GPU's share"
    return text
