"""`sparkd plan`: print how a node's rank would be launched, this one's or another's. No secret is printed."""

import argparse
import os
from contextlib import suppress

from msgspec.structs import replace

from sparkd.agent.preflight.checks.docker import EngineImage
from sparkd.base.cluster import membership
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import counted, printable
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.compile_jobs import read_room
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.memory_sum import read_sum
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.additions import COMPILE_JOBS, HCAS, INTERFACE
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders
from sparkd.tools.node.plan_text import describe_plan, plan_as_json


def add_plan(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--script", action="store_true", help="print the launch script alone")
    parser.add_argument("--rank", type=int, help="plan for this rank of cluster.nodes, as configured")
    parser.set_defaults(run=show_plan)


def show_plan(args: argparse.Namespace) -> None:
    """Print a plan made from the configuration, and the memory that the sizes of the model's files come to."""
    configured, host = load_settings(os.environ), Host()
    context = membership.resolve_context(configured, None, host) if args.rank is None else None
    if context is None:
        plan, settings = _make_plan_of_rank(configured, args.rank), configured
    else:
        plan, settings = context.plan, context.settings
    memory_sum = compile_room = None  # left out of the text where they can't be read
    with suppress(OSError, ValueError):
        memory_sum = read_sum(plan, settings, host)
    if context is not None:
        with suppress(OSError, ValueError):
            compile_room = read_room(plan, settings, host, memory_sum)
            plan = membership.plan_to_launch(context, compile_room.jobs)
    if args.json:
        print(plan_as_json(plan))
    elif args.script:
        print(plan.script, end="")
    else:
        switch_findings = context.switch.findings if context and context.switch else ()
        missing_kernels = read_missing_kernels(CheckInputs(plan, settings), host)
        description = describe_plan(plan, switch_findings, memory_sum, compile_room, missing_kernels)
        text = f"{description}\n\n{plan.script}"
        print("\n".join(map(printable, text.rstrip("\n").split("\n"))))


def read_missing_kernels(inputs: CheckInputs, host: Host) -> str:
    """Version of FlashInfer of which the image has no prebuilt kernels; empty where it has, or was not checked here."""
    with suppress(OSError, ValueError):
        checked = EngineImage.from_inputs(inputs).probe(host).checked
        return checked.unbuilt if checked else ""
    return ""


def _make_plan_of_rank(settings: Settings, rank: int) -> LaunchPlan:
    """The plan of another node. Raises UsageError where `cluster.nodes` has no such rank."""
    recipe = None
    if settings.cluster.follow_head:
        context = membership.make_context(settings, Host())
        settings, recipe = context.settings, context.recipe
    if not 0 <= rank < max(1, len(settings.cluster.nodes)):
        raise UsageError(f"there is no rank {rank}: cluster.nodes names {counted(len(settings.cluster.nodes), 'node')}")
    recipe = recipe or load_recipe(settings.engine.recipe, recipe_folders()).recipe
    # What only that node knows stays as its placeholder.
    node = replace(membership.node_of_rank(settings, rank), compile_jobs=COMPILE_JOBS)
    if node.cluster_size > 1:
        node = replace(node, interface=node.interface or INTERFACE, hcas=node.hcas or (HCAS,))
    return make_plan(recipe, settings, node)
