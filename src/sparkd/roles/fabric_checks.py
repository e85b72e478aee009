"""The checks of what lies between the nodes, built from a node's plan and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkd.preflight import nccl_hcas
from sparkd.preflight.fabric_address import FabricAddress
from sparkd.preflight.fabric_link import FabricLink
from sparkd.preflight.gid import GidIndex
from sparkd.preflight.listeners import Listeners
from sparkd.preflight.peer_clock import PeerClocks
from sparkd.preflight.rdma import Rdma
from sparkd.preflight.resolver import Resolver

if TYPE_CHECKING:
    from sparkd.launch.plan import LaunchPlan
    from sparkd.preflight.check import AnyCheck
    from sparkd.roles import NodeContext


def build(node: NodeContext) -> tuple[AnyCheck, ...]:
    plan, settings = node.plan, node.settings
    here, spec, env = plan.node, plan.container, dict(plan.env)
    peers = tuple(peer.address for peer in node.peers)
    reaches_verbs = spec.privileged or any(device.startswith(nccl_hcas.VERBS) for device in spec.devices)
    no_rdma = _no_rdma(plan)
    return (
        FabricAddress(here.address, here.cluster_size, settings.fabric.interface),
        FabricLink(here.interface, peers, settings.cluster.report_port, settings.fabric.mtu, spec.gpus == "all"),
        Rdma(env, here.hcas, reaches_verbs, no_rdma),
        GidIndex(env, here.address, no_rdma),
        Resolver(peers),
        Listeners.of(plan),
        PeerClocks(here.cluster_size),
    )


def _no_rdma(plan: LaunchPlan) -> str:
    """Why the plan needs none; empty where it does."""
    if plan.node.cluster_size == 1:
        return "one node"
    if plan.container.gpus != "all":
        return "the plan uses no GPU"
    return nccl_hcas.by_tcp(dict(plan.env))
