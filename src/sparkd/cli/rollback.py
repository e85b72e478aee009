"""`sparkd rollback`: run a known good plan in place of the configured one, until the configuration changes.

It writes one file of state, which the next start reads: it ends nothing, and works while an agent loops or is down.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sparkd.actions import files
from sparkd.cli.diff import gather_facts, known_good, none_yet
from sparkd.cluster import membership
from sparkd.config import Settings, load_settings
from sparkd.host import Host, docker, docker_image
from sparkd.lib.dockerd.reader import DockerError
from sparkd.lib.errors import AddressAwaitedError, ConfigError, ExitCode, UsageError
from sparkd.lib.text import Table, sanitize
from sparkd.plan.agreement import format_table
from sparkd.plan.model import LaunchPlan
from sparkd.state import rollback
from sparkd.state.known_good import Entry, find_differences, format_utc, group_files
from sparkd.state.rollback import FILE

HEADINGS = ("PLAN", "RECIPE", "KNOWN GOOD SINCE", "LAST PROVEN", "IMAGE", "")
DIGITS = 12
"""Of a digest, where a person reads it."""
LIST = "sparkd rollback --list"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", default="", help="how the digest of a plan begins, as --list shows it")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="print the plans that are known good, the last one first")
    form.add_argument("--end", action="store_true", help="let the configuration hold again from the next start on")


def run(args: argparse.Namespace) -> int:
    if args.plan and (args.list or args.end):
        raise UsageError("a plan is named to go back to it, without --list and --end")
    config, host = load_settings(os.environ), Host()
    if args.list:
        print(listed(known_good(host), config, host))
        return ExitCode.GOOD
    if os.geteuid():
        raise UsageError("only root may choose what this node runs", "sudo sparkd rollback")
    for line in _ended(config, host) if args.end else _rolled_back(args.plan, config, host):
        print(line, flush=True)  # a look at a model's dead disk, further on, hides no line of what was done
    return ExitCode.GOOD


def listed(known: Sequence[Entry], config: Settings, host: Host) -> str:
    """One line a plan."""
    if not known:
        return none_yet(config.supervise.proven_seconds)
    plan, back = _configured(config, host), None
    with suppress(ConfigError):
        back = membership.resolve_context(config, None, host).rollback
    rows: list[tuple[str, ...]] = [HEADINGS]
    for one in known:
        image = one.image_id.removeprefix("sha256:")[:12]
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
        raise UsageError(
            "what is configured is the last known good plan itself, and there is none before it",
            "`sparkd diff` shows what else differs",
        )
    return (others or named)[0]


def image_id(host: Host, ref: str) -> str | None:
    """Of an image on this node: empty where there is none; None where docker does not answer."""
    with suppress(DockerError):
        if docker.running(host):
            found = docker.query(host, lambda reader: docker_image.read_image(reader, ref))
            return found.id if found else ""
    return None


def _rolled_back(wanted: str, config: Settings, host: Host) -> Iterator[str]:
    plan = _configured(config, host)
    present = image_id(host, plan.image) if plan else None
    entry = choose(known_good(host), wanted, plan, present or "")
    found = image_id(host, entry.image_id)
    back = rollback.make_rollback(entry, membership.fingerprint_config(config, host), entry.image_id if found else "")
    if back is None:
        raise ConfigError(f"the plan {entry.plan[:DIGITS]} can't be read by this version of sparkd", LIST)
    node = None
    with suppress(AddressAwaitedError):  # this node's place is not known yet
        node = membership.rolled_back_context(back, config, host)
    with files.usage_error(f"{FILE.path} can't be written", "df -h /var/lib/sparkd"):
        files.write(Path(FILE.path), FILE.encode(back), FILE.mode, durable=True)
    yield f"{back.label} is in force from the next start on, until the configuration changes"
    if found is None:
        yield "docker can't look up the recorded image: the one that has its name will run"
    elif not found:
        yield f"the recorded image, {entry.image_id}, is not on this node any more: the one that has its name will run"
    found_now = find_differences(entry.facts, gather_facts(host, node.plan)) if node else ()
    if rows := format_table(group_files(found_now), "then", "now"):
        yield "what still differs, and no rollback restores:"
        yield from rows
    if len(config.cluster.nodes) > 1:
        yield f"next: on each other node: sudo sparkd rollback {entry.plan[:DIGITS]}"
    yield f"next: systemctl restart {_unit(config, host)}"


def _ended(config: Settings, host: Host) -> Iterator[str]:
    with files.usage_error(f"{FILE.path} can't be removed", ""):
        removed = files.remove(Path(FILE.path))
    if removed:
        yield "what is configured holds from the next start on"
        yield f"next: systemctl restart {_unit(config, host)}"
    else:
        yield "no rollback is in force: what is configured holds"


def _configured(config: Settings, host: Host) -> LaunchPlan | None:
    """None where what is configured makes no plan."""
    with suppress(ConfigError):
        return membership.configured_context(config, host).plan
    return None


def _unit(config: Settings, host: Host) -> str:
    with suppress(ConfigError):
        return "sparkd-worker" if membership.find_place(config, host).rank else "sparkd-head"
    return "sparkd-head, or sparkd-worker where this node is one"
