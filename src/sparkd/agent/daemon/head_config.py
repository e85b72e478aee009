"""One configuration for all nodes: the head serves what it runs, and a worker that follows it runs the same."""

from collections.abc import Mapping
from functools import partial

from sparkd.agent.daemon.context import Agent, Context, beside_or_blocked
from sparkd.agent.daemon.head_follower import FETCH_SECONDS
from sparkd.base.cluster import head_key
from sparkd.base.lib.errors import BlockedError
from sparkd.base.state import shared_config
from sparkd.base.state.shared_config import overridden_keys
from sparkd.base.status.model import FindingReport


def share_config(agent: Agent) -> None:
    """On a head, serve its current configuration to its workers. On a worker, check the head as `check_head`, and keep
    the files that it has sent. Raises BlockedError, too, where they can't be kept or read.
    """
    check_head(agent)
    context, plan, files = agent.context, agent.plan, agent.host.files
    if context.followed and not agent.store.replace_head_files(context.followed.config.files.values()):
        reason, hint = agent.store.last_failure
        raise BlockedError(f"the files of the head can't be kept: {reason}", hint)
    if context.is_head and context.peers:
        make = partial(
            shared_config.make_shared, context.settings, context.recipe, plan.image_id, plan.user_script, files
        )
        hint = "what holds the files that it names? look at: sudo dmesg"  # such as a share: the script, and mounts
        shared = beside_or_blocked(agent.loop, make, FETCH_SECONDS, "reading what the workers get", hint)
        body = shared_config.dump(shared)
        agent.cluster.publish(shared_config.PATH, body)
        agent.reporter.update(config_digest=shared_config.digest_of(body))


def check_head(agent: Context) -> None:
    """Check the head that a worker follows. Raises OutdatedPlanError where it has another configuration, BlockedError
    where that is refused.
    """
    try:
        if agent.follower is not None:
            agent.follower.check()
            look_for_key(agent)
    except BlockedError:
        agent.reporter.update(plan_digest="")  # so that no node compares its plan with this outdated one
        raise


def look_for_key(agent: Context) -> None:
    """On a worker that follows its head, look for the head's key, also while the rank runs: a join needs no restart."""
    if agent.follower is not None:
        agent.follower.check_key()
        show_unproven(agent)


def show_unproven(agent: Context) -> None:
    """Report a finding while the head's configuration is not proven to be its own."""
    unproven = agent.follower.unproven if agent.follower is not None else None
    finding = FindingReport(head_key.FINDING, "warn", unproven.reason, unproven.hint) if unproven else None
    agent.reporter.replace_finding(head_key.FINDING, finding)


def report_followed(agent: Agent, origins: Mapping[str, str]) -> None:
    """On a worker that follows its head, report the document, and log own settings that have no effect.

    `origins`: the files that its own settings come from.
    """
    if (followed := agent.context.followed) is None:
        return
    agent.reporter.update(config_digest=followed.digest)
    agent.events.info(
        "cluster.config.followed",
        head=agent.plan.node.head_address,
        digest=followed.digest[:12],
        recipe=followed.config.recipe.name,
    )
    if keys := overridden_keys(origins):
        hint = f"take them out of {origins[keys[0]]}"
        agent.events.warning("cluster.config.overridden", keys=list(keys), reason="the head decides them", hint=hint)
    if followed.config.recipe.container.no_new_privileges is False and agent.context.recipe.container.keeps_rights:
        reason = "cluster.allow.privileged of this node is false: no program of the rank gains rights by setuid here"
        hint = "if it starts by sudo: cluster.allow.privileged = true in /etc/sparkd/sparkd.toml here; else nothing"
        keys_without_effect = ["container.no_new_privileges"]
        agent.events.warning("cluster.config.overridden", keys=keys_without_effect, reason=reason, hint=hint)
