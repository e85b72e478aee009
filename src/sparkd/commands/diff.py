"""`sparkd diff`: what is configured and what is on this node now, against the last start that is known good."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from sparkd.errors import ExitCode

if TYPE_CHECKING:
    from sparkd.known_good.facts import Facts
    from sparkd.known_good.history import Entry


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = "What most likely matters comes first. The exit code is 0 whether anything differs or not."


def run(args: argparse.Namespace) -> int:
    from sparkd import roles, settings
    from sparkd.host import Host
    from sparkd.known_good import history
    from sparkd.known_good.look import look

    host, config = Host(), settings.load(None, os.environ)
    known = history.read(host.files)
    if not known:
        print(as_json(None, None) if args.json else none_yet(config.supervise.proven_seconds))
        return ExitCode.GOOD
    now = look(host, roles.configured(config, None, host).plan)
    if args.json:
        print(as_json(known[0], now))
        return ExitCode.GOOD
    rollback = roles.context(config, None, host).rollback
    if rollback is not None:
        print(f"{rollback.finding.reason}; compared is what is configured")
    print(as_text(known[0], now))
    return ExitCode.GOOD


def none_yet(proven_seconds: int) -> str:
    return (
        "no start is known good on this node yet: one that has served for "
        f"{proven_seconds} s (supervise.proven_seconds) becomes that"
    )


def as_text(last: Entry, now: Facts) -> str:
    from sparkd.known_good.facts import differences, gathered
    from sparkd.known_good.history import in_utc
    from sparkd.launch.agreement import table
    from sparkd.lib.text import sanitize

    then = f"the last known good start (recipe {sanitize(last.name)}, plan {last.plan[:12]}, {in_utc(last.until)})"
    found = gathered(differences(last.facts, now))
    rows = table(found, "then", "now")
    unseen = [f"not compared: {name}: {sanitize(why, 300)}" for name, why in now.unseen.items()]
    head = f"since {sanitize(then)}:" if rows else f"nothing that sparkd knows of differs from {sanitize(then)}"
    return "\n".join([head, *rows, *unseen])


def as_json(last: Entry | None, now: Facts | None) -> str:
    import json

    from sparkd.known_good.facts import differences

    found = differences(last.facts, now) if last is not None and now is not None else ()
    good = last and {
        "since": last.since,
        "until": last.until,
        "plan": last.plan,
        "agreement": last.agreement,
        "recipe": last.name,
        "image_id": last.image_id,
    }
    document = {
        "schema": 1,
        "known_good": good,
        "differences": [{"name": one.name, "then": one.own or None, "now": one.theirs or None} for one in found],
        "not_compared": dict(now.unseen) if now else {},
    }
    return json.dumps(document, indent=2, ensure_ascii=False)
