"""`sparkd rollback`: the last plan that is known good takes the place of the configured one, until that changes.

It writes one file of state, which the next start reads: it ends nothing, and works while an agent loops or is down.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkd.errors import AddressAwaitedError, ConfigError, ExitCode, UsageError
from sparkd.lib.tables import Table

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.known_good.history import Entry
    from sparkd.known_good.rollback import Rollback
    from sparkd.launch.plan import LaunchPlan
    from sparkd.roles import NodeContext
    from sparkd.settings import Settings

HEADINGS = ("PLAN", "RECIPE", "KNOWN GOOD SINCE", "LAST PROVEN", "IMAGE", "")
DIGITS = 12
"""Of a digest, for a person to tell plans by."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", default="", help="how the digest of a plan begins, as --list shows it")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="print the plans that are known good, the last one first")
    form.add_argument("--end", action="store_true", help="let the configuration hold again from the next start on")


def run(args: argparse.Namespace) -> int:
    from sparkd import settings
    from sparkd.host import Host

    if args.plan and (args.list or args.end):
        raise UsageError("a plan is named to go back to it, without --list and --end")
    config, host = settings.load(None, os.environ), Host()
    if args.list:
        from sparkd.known_good import history

        print(listed(history.read(host.files), config, host))
        return ExitCode.GOOD
    if os.geteuid():
        raise UsageError("only root may choose what this node runs", "sudo sparkd rollback")
    for line in _ended(config, host) if args.end else _rolled_back(args.plan, config, host):
        print(line, flush=True)  # a look at a model's dead disk, further on, hides no line of what was done
    return ExitCode.GOOD


def listed(known: tuple[Entry, ...], config: Settings, host: Host) -> str:
    """One line a plan."""
    from sparkd.commands.diff import none_yet
    from sparkd.known_good.history import in_utc
    from sparkd.lib.text import sanitize

    if not known:
        return none_yet(config.supervise.proven_seconds)
    plan, back = _configured(config, host), _in_force(config, host)
    rows: list[tuple[str, ...]] = [HEADINGS]
    for one in known:
        marks = ["configured"] * (plan is not None and plan.digest == one.plan)
        marks += ["rolled back to"] * (back is not None and _is(one, back))
        cells = (
            one.plan[:DIGITS],
            one.name,
            in_utc(one.since),
            in_utc(one.until),
            one.image_id.removeprefix("sha256:")[:12],
        )
        rows.append((*(sanitize(cell, 80) for cell in cells), ", ".join(marks)))
    return str(Table(rows))


def _is(one: Entry, back: Rollback) -> bool:
    """Also once it has proven itself anew, at another time."""
    return back.plan == one.plan and back.image_id in ("", one.image_id)


def _rolled_back(wanted: str, config: Settings, host: Host) -> Iterator[str]:
    from sparkd import roles
    from sparkd.hands import STATE, files
    from sparkd.known_good import history, rollback
    from sparkd.known_good.choice import LIST, choose, image_id

    plan = _configured(config, host)
    present = image_id(host, plan.image) if plan else None
    entry = choose(history.read(host.files), wanted, plan, present or "")
    found = image_id(host, entry.image_id)
    back = rollback.to(entry, roles.fingerprint(config, host), entry.image_id if found else "")
    if back is None:
        raise ConfigError(f"the plan {entry.plan[:DIGITS]} can't be read by this version of sparkd", LIST)
    node = _node(back, config, host)
    try:
        files.write(STATE / rollback.FILE, rollback.dump(back), 0o644, durable=True)
    except OSError as error:
        raise UsageError(
            f"{rollback.PATH} can't be written: {error.strerror or error}", "df -h /var/lib/sparkd"
        ) from None
    yield f"{back.words} is in force from the next start on, until the configuration changes"
    if found is None:
        yield "docker can't be asked for the image of then: the one that has its name will run"
    elif not found:
        yield f"the image of then, {entry.image_id}, is not on this node any more: the one that has its name will run"
    if node is not None:
        yield from _not_brought_back(entry, node, host)
    if len(config.cluster.nodes) > 1:
        yield f"next: on each other node: sudo sparkd rollback {entry.plan[:DIGITS]}"
    yield f"next: systemctl restart {_unit(config, host)}"


def _node(back: Rollback, config: Settings, host: Host) -> NodeContext | None:
    """None where this node's place is not known yet. Raises ConfigError where the plan does not fit it."""
    from sparkd import roles

    try:
        return roles.rolled_back(back, config, None, host)
    except AddressAwaitedError:
        return None


def _not_brought_back(entry: Entry, node: NodeContext, host: Host) -> Iterator[str]:
    from sparkd.known_good.facts import differences, gathered
    from sparkd.known_good.look import look
    from sparkd.launch.agreement import table

    if rows := table(gathered(differences(entry.facts, look(host, node.plan))), "then", "now"):
        yield "what differs all the same, and no rollback brings back:"
        yield from rows


def _ended(config: Settings, host: Host) -> Iterator[str]:
    from sparkd.hands import STATE, files
    from sparkd.known_good import rollback

    try:
        removed = files.remove(STATE / rollback.FILE)
    except OSError as error:
        raise UsageError(f"{rollback.PATH} can't be removed: {error.strerror or error}") from None
    if not removed:
        yield "no rollback is in force: what is configured holds"
        return
    yield "what is configured holds from the next start on"
    yield f"next: systemctl restart {_unit(config, host)}"


def _configured(config: Settings, host: Host) -> LaunchPlan | None:
    """None where what is configured makes no plan."""
    from sparkd import roles

    try:
        return roles.configured(config, None, host).plan
    except ConfigError:
        return None


def _in_force(config: Settings, host: Host) -> Rollback | None:
    from sparkd import roles

    try:
        return roles.context(config, None, host).rollback
    except ConfigError:
        return None


def _unit(config: Settings, host: Host) -> str:
    from sparkd import roles

    try:
        return "sparkd-worker" if roles.place(config, host).rank else "sparkd-head"
    except ConfigError:
        return "sparkd-head, or sparkd-worker where this node is one"
