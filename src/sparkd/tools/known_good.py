"""What differs from the last known good start, for `sparkd diff`, `rollback` and `capture`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sparkd.host import Host, docker, versions
from sparkd.host.weights import Weights
from sparkd.lib.errors import SparkdError
from sparkd.lib.text import sanitize
from sparkd.plan.agreement import format_table, make_agreement
from sparkd.plan.fingerprint import hash_user_script, read_image_identity, read_weights
from sparkd.plan.model import LaunchPlan
from sparkd.state import known_good
from sparkd.state.known_good import Entry, Facts, find_differences, format_utc, group_files, node_values

DIGITS = 12
"""Of a digest, where a person reads it."""


def read_known_good(host: Host) -> tuple[Entry, ...]:
    return known_good.read_known_good(host.files, lambda reason: print(f"sparkd: {reason}", file=sys.stderr))


def gather_facts(host: Host, plan: LaunchPlan) -> Facts:
    """What the plan would start with now. May wait for docker and for the model's disk."""
    weights, identity, script = Weights(()), "", ""
    unseen: dict[str, str] = {}

    @contextmanager
    def attempt(name: str) -> Iterator[None]:
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


def as_text(last: Entry, now: Facts) -> str:
    plan = f"recipe {sanitize(last.name)}, plan {last.plan[:DIGITS]}, {format_utc(last.until)}"
    rows, then = _differing(last, now), sanitize(f"the last known good start ({plan})")
    unseen = [f"not compared: {name}: {sanitize(why, 300)}" for name, why in now.unseen.items()]
    head = f"since {then}:" if rows else f"nothing that sparkd knows of differs from {then}"
    return "\n".join([head, *rows, *unseen])


def _differing(last: Entry, now: Facts) -> tuple[str, ...]:
    return format_table(group_files(find_differences(last.facts, now)), "then", "now")


def as_json(last: Entry | None, now: Facts | None) -> str:
    found = find_differences(last.facts, now) if last is not None and now is not None else ()
    keys = ("since", "until", "plan", "agreement", "recipe", "image_id")
    document = {
        "schema": 1,
        "known_good": last and {key: last.name if key == "recipe" else getattr(last, key) for key in keys},
        "differences": [{"name": one.name, "then": one.own or None, "now": one.theirs or None} for one in found],
        "not_compared": dict(now.unseen) if now else {},
    }
    return json.dumps(document, indent=2, ensure_ascii=False)
