"""The look at what a plan would be started with now, docker or no docker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparkd.errors import SparkdError
from sparkd.host import boot_facts, docker, versions
from sparkd.host.weights import Weights
from sparkd.known_good.facts import Facts, own
from sparkd.launch import survey
from sparkd.launch.agreement import Seen, agreement

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.launch.plan import LaunchPlan


def look(host: Host, plan: LaunchPlan) -> Facts:
    """What can't be looked at is `unseen`. It may wait for docker, and for the disk of the model."""
    unseen: dict[str, str] = {}

    def tried(name: str, see: Callable[[], str]) -> str:
        try:
            return see()
        except SparkdError as error:
            unseen[name] = str(error)
            return ""

    weights = Weights(())
    try:
        weights = survey.model(host, plan)
    except SparkdError as error:
        unseen["weights"] = str(error)
    identity = ""
    if docker.running(host):
        identity = tried("image.identity", lambda: survey.image_identity(host, plan.image_to_run))
    else:
        unseen["image.identity"] = "docker is away"
    script = tried("script", lambda: survey.script(host, plan))
    values = agreement(plan, Seen(identity, weights, script)).values
    boot = boot_facts.read(host, (name for name, _ in plan.sysctls))
    return Facts({**values, **own(plan)}, versions.read(host), boot, unseen)
