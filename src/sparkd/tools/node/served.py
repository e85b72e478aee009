"""The endpoint of this node, for commands that send requests. That it is sparkd's engine is proven before any."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sparkd.agent.actions.rank_process import Rank
from sparkd.agent.engine.api_owner import ApiOwner
from sparkd.base.cluster import membership
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.host.docker import LABEL, ContainerFacts
from sparkd.base.lib import log
from sparkd.base.lib.errors import AS_ROOT, BlockedError, EngineEndedError, UsageError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.plan.fingerprint import read_secrets
from sparkd.base.status.model import IN_SERVICE, NodeReport, read_living_report
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.args import API_KEY
from sparkd.base.vllm.capabilities import Capabilities
from sparkd.base.vllm.smoke import Round, run_rounds
from sparkd.base.vllm.streaming import StreamError
from sparkd.tools.node.endpoint import context_tokens

CONNECTIONS = 8
"""Connections for a smoke test, which sends six requests at once."""


class Served(NamedTuple):
    """An endpoint that serves, with its node, the agent's report, and the rank that answers on it."""

    node: NodeContext
    report: NodeReport
    rank: Rank
    endpoint: Endpoint


@contextmanager
def open_endpoint(connections: int) -> Iterator[Served]:
    """Open the endpoint for a command, with at most so many connections.

    Raises UsageError for other users than root, BlockedError where nothing serves, EngineEndedError where a request of
    the command fails.
    """
    if os.geteuid():
        # Only root sees which process answers on the port, and can read the key.
        raise UsageError("only root can prove which process answers", AS_ROOT)
    host = Host()
    node = membership.resolve_context(load_settings(os.environ), None, host)
    plan, report = node.plan, read_living_report(host.files)
    if node.rank:
        hint = f"on {plan.node.head_address}: {shlex.join(['sudo', 'sparkd', *sys.argv[1:]])}"
        raise BlockedError(f"this node is rank {node.rank}: the head has the endpoint", hint)
    if report is None:
        raise BlockedError("no agent runs on this node", "sudo systemctl start sparkd-head")
    if report.phase not in IN_SERVICE:
        raise BlockedError(f"the endpoint does not serve: {report.phase.value}", "sparkd status")
    container = find_container(host, report)
    if container.label(f"{LABEL}plan") != plan.digest:
        reason = "the configuration has changed since this engine was started"
        raise BlockedError(reason, "sudo systemctl restart sparkd-head")
    secrets = read_secrets(host.files, plan)
    events = log.events(lambda _, line: print(line, file=sys.stderr), Redaction(secrets.values()))
    ended_error = BlockedError("the engine has just ended", "sparkd status")
    try:
        pidfd = os.pidfd_open(container.pid)
    except ProcessLookupError:
        raise ended_error from None
    try:
        if find_container(host, report).pid != container.pid:  # if it still runs, the pidfd is its
            raise ended_error
        rank = Rank(container.id, container.name, container.image_id, container.pid, pidfd)
        admit = ApiOwner(host, rank, events, plan.api_host, plan.api_port).admit
        key = secrets.get(API_KEY)
        endpoint = Endpoint(plan.api_host, plan.api_port, plan.served_name, key, admit, connections)
        yield Served(node, report, rank, endpoint)
    except (HttpError, StreamError) as error:
        raise EngineEndedError(f"the endpoint did not answer: {error}", "sparkd status") from None
    finally:
        os.close(pidfd)


def find_container(host: Host, report: NodeReport) -> ContainerFacts:
    """The engine's container that the agent reports. Raises BlockedError where it does not run."""
    facts = host.docker()
    if facts.error:
        raise BlockedError(f"docker can't describe the engine's container: {facts.error}", "systemctl status docker")
    container = facts.container(report.engine.container_id)
    if container is None or not container.ours or container.pid <= 1:
        raise BlockedError("docker has no running container of the engine", "sparkd status")
    return container


async def run_smoke(served: Served, show: Callable[[Round], object] = lambda _: None) -> list[Round]:
    """Run the smoke test, and return its rounds; `show` gets each one once it is over. Raises HttpError."""
    plan, recipe, rounds = served.node.plan, served.node.recipe, []
    tokens, random_weights = context_tokens(plan, Host()), recipe.model.random_weights
    capabilities = Capabilities.from_argv(plan.argv, recipe.expect, tokens, random_weights=random_weights)
    async for round_ in run_rounds(served.endpoint, capabilities, 60.0):
        rounds.append(round_)
        show(round_)
    return rounds
