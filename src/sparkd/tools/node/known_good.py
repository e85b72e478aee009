"""Differences of the configured plan from the last known good start, for `sparkd diff` and `capture`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host, docker, versions
from sparkd.base.host.weights import Manifest
from sparkd.base.lib.errors import ConfigError, SparkdError
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_utc
from sparkd.base.plan.agreement import make_agreement
from sparkd.base.plan.differences import format_table
from sparkd.base.plan.fingerprint import hash_user_script, read_image_identity, read_weights
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state import known_good
from sparkd.base.state.facts import Facts, find_differences, group_files, node_values
from sparkd.base.state.known_good import Entry

DIGITS = 12
"""Digits of a digest that a person sees."""


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


def configured_plan(config: Settings, host: Host) -> LaunchPlan | None:
    """The configured plan; None where the configuration makes none."""
    with suppress(ConfigError):
        return membership.make_context(config, host).plan
    return None
