"""`sparkd rollback`: a switch to the plan of an earlier known good start, and its end."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AddressAwaitedError, ConfigError, UsageError
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state.known_good import Entry
from sparkd.base.state.switch import FILE, make_rollback
from sparkd.tools.node.known_good import DIGITS, configured_plan, format_differences, gather_facts, read_known_good
from sparkd.tools.node.switching import fingerprint_replaced, image_id, write_switch

LIST = "sudo sparkd rollback --list"


def choose(entries: Sequence[Entry], prefix: str, configured: LaunchPlan | None, configured_image: str) -> Entry:
    """The newest entry whose digest begins with `prefix`, if possible another one than the configured plan.

    `configured`: None where the configuration makes no plan; `configured_image`: its image's id, empty where not known.
    An entry of the same plan with another image counts as another one. Raises UsageError.
    """
    if not entries:
        reason = "no start is known good on this node yet, so there is nothing to go back to"
        raise UsageError(reason, "another recipe: sudo sparkd use --list")
    matching = [entry for entry in entries if entry.plan_digest.startswith(prefix)]
    if not matching:
        raise UsageError(f"no plan that is known good begins with {prefix!r}", LIST)
    digest = configured.digest if configured else None
    others = [goal for goal in matching if goal.plan_digest != digest or configured_image not in ("", goal.image_id)]
    if not others and not prefix:
        hint = "`sparkd diff` shows what else differs"
        raise UsageError("what is configured is the last known good plan itself, and there is none before it", hint)
    return (others or matching)[0]


def roll_back(prefix: str, config: Settings, host: Host) -> Iterator[str]:
    """Put the plan of a known good start in force, and yield lines for the person. `prefix`: as in `choose`.

    Raises UsageError, ConfigError.
    """
    plan = configured_plan(config, host)
    configured_image = image_id(host, plan.image) if plan else None
    goal = choose(read_known_good(host), prefix, plan, configured_image or "")
    goal_image = image_id(host, goal.image_id)
    before = FILE.read(host.files)
    rollback = make_rollback(goal, fingerprint_replaced(before, config, host), goal.image_id if goal_image else "")
    if rollback is None or rollback.to is None:
        raise ConfigError(f"the plan {goal.plan_digest[:DIGITS]} can't be read by this version of sparkd", LIST)
    node = None
    with suppress(AddressAwaitedError):  # this node's place is not known yet
        node = membership.make_context(config, host, rollback.to)
    write_switch(before, rollback, host)
    yield f"{rollback.to.label} is in force from the next start on, until the configuration changes"
    if goal_image is None:
        yield "docker can't look up the recorded image: the one that has its name will run"
    elif not goal_image:
        yield f"the recorded image, {goal.image_id}, is not on this node any more: the one that has its name will run"
        if goal.image_digest:
            command = f"sudo sparkd rollback {goal.plan_digest[:DIGITS]}"
            yield f"to run the recorded one: sudo docker pull {goal.image_digest} && {command}"
    if node and (rows := format_differences(goal, gather_facts(host, node.plan))):
        yield "what still differs, and no rollback restores:"
        yield from rows
    if len(config.cluster.nodes) > 1:
        yield f"next: on each other node that follows no head: sudo sparkd rollback {goal.plan_digest[:DIGITS]}"
    yield f"next: sudo systemctl restart {_name_unit(config, host)}"


def end_rollback(config: Settings, host: Host) -> Iterator[str]:
    """Remove the switch, also one that can't be read, and yield lines for the person. Raises UsageError."""
    faults = list[str]()
    switch = FILE.read(host.files, faults.append)
    if switch is None and not faults:
        yield "no other plan is in force: what is configured holds"
        return
    write_switch(switch, None, host)
    yield "what is configured holds from the next start on"
    yield f"next: sudo systemctl restart {_name_unit(config, host)}"


def _name_unit(config: Settings, host: Host) -> str:
    with suppress(ConfigError):
        return f"sparkd-{membership.find_place(config, host).role}"
    return "sparkd-head, or sparkd-worker where this node is one"
