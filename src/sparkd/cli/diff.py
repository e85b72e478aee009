"""`sparkd diff`: compare the configuration and this node with the last known good start."""

from __future__ import annotations

import argparse
import json
import os
import sys

from sparkd.cluster import membership
from sparkd.config import load_settings
from sparkd.host import Host, docker, versions
from sparkd.host.weights import Weights
from sparkd.lib.errors import ExitCode, SparkdError
from sparkd.lib.text import sanitize
from sparkd.plan.agreement import format_table, make_agreement
from sparkd.plan.fingerprint import hash_user_script, read_image_identity, read_weights
from sparkd.plan.model import LaunchPlan
from sparkd.state import known_good as history
from sparkd.state.known_good import Entry, Facts, find_differences, format_utc, group_files, node_values


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = "What most likely matters comes first. The exit code is 0 whether anything differs or not."


def run(args: argparse.Namespace) -> int:
    host, config = Host(), load_settings(os.environ)
    known = known_good(host)
    if not known:
        print(as_json(None, None) if args.json else none_yet(config.supervise.proven_seconds))
        return ExitCode.GOOD
    now = gather_facts(host, membership.configured_context(config, host).plan)
    if args.json:
        print(as_json(known[0], now))
        return ExitCode.GOOD
    rollback = membership.resolve_context(config, None, host).rollback
    if rollback is not None:
        print(f"{rollback.finding.reason}; compared is what is configured")
    print(as_text(known[0], now))
    return ExitCode.GOOD


def known_good(host: Host) -> tuple[Entry, ...]:
    return history.read_known_good(host.files, lambda reason: print(f"sparkd: {reason}", file=sys.stderr))


def none_yet(proven_seconds: int) -> str:
    return (
        "no start is known good on this node yet: one that has served for "
        f"{proven_seconds} s (supervise.proven_seconds) becomes that"
    )


def gather_facts(host: Host, plan: LaunchPlan) -> Facts:
    """What the plan would start with now. May wait for docker and for the model's disk."""
    weights, identity, script, unseen = Weights(()), "", "", {}
    try:
        weights = read_weights(host, plan)
    except SparkdError as error:
        unseen["weights"] = str(error)
    try:
        if docker.running(host):
            identity = read_image_identity(host, plan.image_to_run)
        else:
            unseen["image.identity"] = "docker is away"
    except SparkdError as error:
        unseen["image.identity"] = str(error)
    try:
        script = hash_user_script(host, plan)
    except SparkdError as error:
        unseen["script"] = str(error)
    values = make_agreement(plan, identity, weights, script).values
    boot = versions.read_boot(host, (name for name, _ in plan.sysctls))
    return Facts({**values, **node_values(plan)}, versions.read_versions(host), boot, unseen)


def as_text(last: Entry, now: Facts) -> str:
    then = f"the last known good start (recipe {sanitize(last.name)}, plan {last.plan[:12]}, {format_utc(last.until)})"
    rows = format_table(group_files(find_differences(last.facts, now)), "then", "now")
    unseen = [f"not compared: {name}: {sanitize(why, 300)}" for name, why in now.unseen.items()]
    head = f"since {sanitize(then)}:" if rows else f"nothing that sparkd knows of differs from {sanitize(then)}"
    return "\n".join([head, *rows, *unseen])


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
