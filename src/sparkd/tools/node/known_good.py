"""Differences of the configured plan from the last known good start, for `sparkd diff` and `capture`.

`sparkd rollback` is here, too: a switch to the plan of an earlier known good start, and its end.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host, docker, versions
from sparkd.base.host.weights import Manifest
from sparkd.base.lib.errors import AddressAwaitedError, ConfigError, SparkdError, UsageError
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_utc
from sparkd.base.plan.agreement import make_agreement
from sparkd.base.plan.differences import format_table
from sparkd.base.plan.fingerprint import hash_user_script, read_image_identity, read_weights
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state import known_good
from sparkd.base.state.facts import Facts, find_differences, group_files, node_values
from sparkd.base.state.known_good import Entry
from sparkd.base.state.switch import FILE, make_rollback
from sparkd.tools.node.switching import image_id, write_switch

DIGITS = 12
"""Digits of a digest that a person sees."""
LIST = "sudo sparkd rollback --list"


def read_known_good(host: Host) -> tuple[Entry, ...]:
    """Known good starts, the newest first. A fault of the file is printed to stderr. Raises OSError."""
    return known_good.read_known_good(host.files, lambda reason: print(f"sparkd: {reason}", file=sys.stderr))


def gather_facts(host: Host, plan: LaunchPlan) -> Facts:
    """Facts of a start of this plan now. May wait for docker and for the model's disk."""
    weights: Manifest = ()
    identity, script = "", ""
    unseen: dict[str, str] = {}

    @contextmanager
    def attempt(name: str) -> Iterator[None]:
        """Put the reason into `unseen` where this fact can't be read."""
        try:
            yield
        except SparkdError as error:
            unseen[name] = str(error)

    with attempt("weights"):
        weights = read_weights(host, plan)
    with attempt("image.identity"):
        if not docker.running(host):
            raise SparkdError("docker is away")
        identity = read_image_identity(host, plan)
    with attempt("script"):
        script = hash_user_script(host, plan)
    values = make_agreement(plan, identity, weights, script).values
    boot = versions.read_boot(host, (name for name, _ in plan.sysctls))
    return Facts({**values, **node_values(plan)}, versions.read_versions(host), boot, unseen)


def as_text(last: Entry, current: Facts) -> str:
    """Lines on what differs from the last known good start, and on what could not be compared."""
    plan = f"recipe {sanitize(last.name)}, plan {last.plan_digest[:DIGITS]}, {format_utc(last.until)}"
    rows, start = format_differences(last, current), sanitize(f"the last known good start ({plan})")
    not_compared = [f"not compared: {name}: {sanitize(reason, 300)}" for name, reason in current.unseen.items()]
    heading = f"since {start}:" if rows else f"nothing that sparkd knows of differs from {start}"
    return "\n".join([heading, *rows, *not_compared])


def format_differences(last: Entry, current: Facts) -> tuple[str, ...]:
    """Lines of a table; empty without a difference."""
    return format_table(group_files(find_differences(last.facts, current)), "then", "now")


def as_json(last: Entry | None, current: Facts | None) -> str:
    """The same as `as_text` as JSON; null and empty lists without a known good start or a plan."""
    differences = find_differences(last.facts, current) if last is not None and current is not None else ()
    document = {
        "schema": 1,
        "known_good": last
        and {
            "since": last.since,
            "until": last.until,
            "plan": last.plan_digest,
            "agreement": last.agreement_digest,
            "recipe": last.name,
            "image_id": last.image_id,
        },
        "differences": [
            {"name": difference.name, "then": difference.own or None, "now": difference.theirs or None}
            for difference in differences
        ],
        "not_compared": dict(current.unseen) if current else {},
    }
    return json.dumps(document, indent=2)


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
    replaces = membership.fingerprint_config(config, host)
    rollback = make_rollback(goal, replaces, goal.image_id if goal_image else "")
    if rollback is None or rollback.to is None:
        raise ConfigError(f"the plan {goal.plan_digest[:DIGITS]} can't be read by this version of sparkd", LIST)
    node = None
    with suppress(AddressAwaitedError):  # this node's place is not known yet
        node = membership.make_context(config, host, rollback.to)
    write_switch(FILE.read(host.files), rollback, host)
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


def configured_plan(config: Settings, host: Host) -> LaunchPlan | None:
    """The configured plan; None where the configuration makes none."""
    with suppress(ConfigError):
        return membership.make_context(config, host).plan
    return None


def _name_unit(config: Settings, host: Host) -> str:
    with suppress(ConfigError):
        return f"sparkd-{membership.find_place(config, host).role}"
    return "sparkd-head, or sparkd-worker where this node is one"
