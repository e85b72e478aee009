"""The checks of what the engine runs in and beside: docker, its image, its ports, and what others start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkd.preflight import image_inside
from sparkd.preflight.compile_cache import CompileCache
from sparkd.preflight.containers import StaleContainer
from sparkd.preflight.docker_engine import Docker
from sparkd.preflight.foreign_units import ForeignUnits
from sparkd.preflight.image import EngineImage
from sparkd.preflight.listeners import flag
from sparkd.preflight.ports import EVERY_IPV4, Ports, Wanted

if TYPE_CHECKING:
    from sparkd.preflight.check import AnyCheck
    from sparkd.roles import NodeContext


def of_docker(node: NodeContext) -> tuple[AnyCheck, ...]:
    plan = node.plan
    return (
        Docker(plan.container.gpus == "all"),
        EngineImage(plan.image_to_run, tuple(str(one) for one in plan.asserts), image_inside.launched(plan)),
        CompileCache(plan.image_to_run, plan.caches, compiles="--enforce-eager" not in plan.argv),
    )


def of_others(node: NodeContext) -> tuple[AnyCheck, ...]:
    """Who else may be in the rank's way."""
    return StaleContainer(f"sparkd-rank{node.rank}"), ForeignUnits(), Ports(_ports(node))


def _ports(node: NodeContext) -> tuple[Wanted, ...]:
    """A worker serves no API, and comes to the head's port of the rendezvous."""
    plan, settings = node.plan, node.settings
    several = plan.node.cluster_size > 1
    found = []
    if node.is_head:
        found.append(Wanted(plan.api_port, flag(plan.argv, "--host") or EVERY_IPV4, "the API", "args.port"))
    if node.is_head and several:
        found.append(Wanted(plan.master_port, "", "the rendezvous", "cluster.master_port"))
    if several:
        address, port = plan.node.address, settings.cluster.report_port
        found.append(Wanted(port, address, "the node's report", "cluster.report_port", agents=True))
    if settings.observe.address is not None:
        address, port = settings.observe.address
        found.append(Wanted(port, address, "the observers", "observe.listen", agents=True, vital=False))
    return tuple(found)
