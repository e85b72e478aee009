"""`sparkd diff` and `sparkd rollback`: what differs from the last known good start, and the way back to one.

A rollback is one file of state, which the next start reads: it ends nothing, and works while an agent loops or is down.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from sparkd.cluster import membership
from sparkd.config import Settings, load_settings
from sparkd.host import Host
from sparkd.lib.errors import AddressAwaitedError, ConfigError, UsageError
from sparkd.lib.text import Table, sanitize
from sparkd.plan.model import LaunchPlan
from sparkd.state.known_good import Entry, format_utc
from sparkd.state.switch import FILE, make_rollback
from sparkd.tools.known_good import DIGITS, _differing, as_json, as_text, gather_facts, read_known_good
from sparkd.tools.switching import image_id, write_switch

HEADINGS = ("PLAN", "RECIPE", "KNOWN GOOD SINCE", "LAST PROVEN", "IMAGE", "")
LIST = "sparkd rollback --list"


def add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = "What most likely matters comes first. The exit code is 0 whether anything differs or not."
    parser.set_defaults(run=diff)


def add_rollback(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", default="", help="how the digest of a plan begins, as --list shows it")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="print the plans that are known good, the last one first")
    form.add_argument("--end", action="store_true", help="let the configuration hold again from the next start on")
    parser.set_defaults(run=rollback)


def diff(args: argparse.Namespace) -> None:
    host, config = Host(), load_settings(os.environ)
    known = read_known_good(host)
    if not known:
        print(as_json(None, None) if args.json else _none_yet(config))
        return
    now = gather_facts(host, membership.configured_context(config, host).plan)
    if args.json:
        print(as_json(known[0], now))
        return
    switch = membership.resolve_context(config, None, host).switch
    for one in switch.findings if switch is not None else ():
        print(f"{one.reason}; compared is what is configured")
    print(as_text(known[0], now))


def _none_yet(config: Settings) -> str:
    return (
        "no start is known good on this node yet: one that has served for "
        f"{config.supervise.proven_seconds} s (supervise.proven_seconds) becomes that"
    )


def rollback(args: argparse.Namespace) -> None:
    if args.plan and (args.list or args.end):
        raise UsageError("a plan is named to go back to it, without --list and --end")
    config, host = load_settings(os.environ), Host()
    if args.list:
        print(listed(read_known_good(host), config, host))
        return
    if os.geteuid():
        raise UsageError("only root may choose what this node runs", "sudo sparkd rollback")
    with suppress(AddressAwaitedError):
        if membership.follows_head(config, place := membership.find_place(config, host)):
            reason = f"this node runs what its head, {place.head_address}, decides (cluster.follow_head)"
            raise UsageError(reason, "sudo sparkd rollback there")
    for line in _end(config, host) if args.end else _roll_back(args.plan, config, host):
        print(line, flush=True)  # a look at a model's dead disk, further on, hides no line of what was done


def listed(known: Sequence[Entry], config: Settings, host: Host) -> str:
    """One line a plan."""
    if not known:
        return _none_yet(config)
    plan, back = _configured(config, host), None
    with suppress(ConfigError):
        switch = membership.resolve_context(config, None, host).switch
        back = switch.chosen if switch is not None else None
    rows: list[tuple[str, ...]] = [HEADINGS]
    for one in known:
        image = one.image_id.removeprefix("sha256:")[:DIGITS]
        cells = (one.plan[:DIGITS], one.name, format_utc(one.since), format_utc(one.until), image)
        marks = ["configured"] * (plan is not None and plan.digest == one.plan)
        if back is not None and back.plan == one.plan and back.image_id in ("", one.image_id):
            marks.append("rolled back to")  # also once it has proven itself again, at another time
        rows.append((*(sanitize(cell, 80) for cell in cells), ", ".join(marks)))
    return str(Table(rows))


def choose(known: Sequence[Entry], wanted: str, configured: LaunchPlan | None, image_id: str) -> Entry:
    """The newest entry other than `configured` whose digest begins with `wanted`. Raises UsageError.

    `configured`: None where the configuration makes no plan; `image_id`: of its image, empty where not known.
    """
    if not known:
        raise UsageError("no start is known good on this node yet, so there is nothing to go back to")
    named = [one for one in known if one.plan.startswith(wanted)]
    if not named:
        raise UsageError(f"no plan that is known good begins with {wanted!r}", LIST)
    digest = configured.digest if configured else None
    others = [one for one in named if one.plan != digest or image_id not in ("", one.image_id)]
    if not others and not wanted:
        hint = "`sparkd diff` shows what else differs"
        raise UsageError("what is configured is the last known good plan itself, and there is none before it", hint)
    return (others or named)[0]


def _roll_back(wanted: str, config: Settings, host: Host) -> Iterator[str]:
    plan = _configured(config, host)
    present = image_id(host, plan.image) if plan else None
    entry = choose(read_known_good(host), wanted, plan, present or "")
    found = image_id(host, entry.image_id)
    replaces = membership.fingerprint_config(config, host)
    back = make_rollback(entry, replaces, entry.image_id if found else "")
    if back is None or back.to is None:
        raise ConfigError(f"the plan {entry.plan[:DIGITS]} can't be read by this version of sparkd", LIST)
    node = None
    with suppress(AddressAwaitedError):  # this node's place is not known yet
        node = membership.chosen_context(back.to, config, host)
    write_switch(FILE.read(host.files), back, host)
    yield f"{back.to.label} is in force from the next start on, until the configuration changes"
    if found is None:
        yield "docker can't look up the recorded image: the one that has its name will run"
    elif not found:
        yield f"the recorded image, {entry.image_id}, is not on this node any more: the one that has its name will run"
    if node and (rows := _differing(entry, gather_facts(host, node.plan))):
        yield "what still differs, and no rollback restores:"
        yield from rows
    if len(config.cluster.nodes) > 1:
        yield f"next: on each other node that follows no head: sudo sparkd rollback {entry.plan[:DIGITS]}"
    yield f"next: systemctl restart {_unit(config, host)}"


def _end(config: Settings, host: Host) -> Iterator[str]:
    faults = list[str]()
    found = FILE.read(host.files, faults.append)
    if found is None and not faults:
        yield "no other plan is in force: what is configured holds"
        return
    write_switch(found, None, host)
    yield "what is configured holds from the next start on"
    yield f"next: systemctl restart {_unit(config, host)}"


def _configured(config: Settings, host: Host) -> LaunchPlan | None:
    """None where what is configured makes no plan."""
    with suppress(ConfigError):
        return membership.configured_context(config, host).plan
    return None


def _unit(config: Settings, host: Host) -> str:
    with suppress(ConfigError):
        return "sparkd-worker" if membership.find_place(config, host).rank else "sparkd-head"
    return "sparkd-head, or sparkd-worker where this node is one"
