"""The choice of this node's plan from the command line: what prevents a plan, and the switch to it in the file."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from sparkd.agent.actions import files
from sparkd.agent.preflight.check import Finding
from sparkd.agent.preflight.runner import build_checks, by_policy, examine, uncleared, without_skipped
from sparkd.base.cluster import membership
from sparkd.base.cluster.membership import NodeContext, check_inputs
from sparkd.base.config import Settings
from sparkd.base.config.types import check_image
from sparkd.base.host import Host, docker, docker_image
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import AwaitedError, BlockedError, ConfigError, UsageError
from sparkd.base.lib.text import Table, sanitize
from sparkd.base.lib.times import utc_now
from sparkd.base.recipes.lookup import find_recipes, recipe_folders
from sparkd.base.state import known_good
from sparkd.base.state.switch import (
    CONFIGURED,
    FILE,
    MOST_BACK,
    Chosen,
    Stage,
    Switch,
    fingerprint_engine,
    label,
    make_rollback,
)
from sparkd.base.status.model import Phase, parse, read_living_report, read_report
from sparkd.tools.node.command_lock import usage_error
from sparkd.tools.node.inventory_comparison import Inventories, find_missing_elsewhere
from sparkd.tools.node.inventory_requests import request_inventories
from sparkd.tools.node.next_start import NextStart

BY_RECIPE = ("script-paths", "plan-lint", "weights", "image", "unified-memory")
"""Checks whose outcome a recipe decides."""


def image_id(host: Host, ref: str) -> str | None:
    """The id of an image on this node: empty where there is none; None where docker does not answer."""
    with suppress(DockerError):
        if docker.running(host):
            image = docker.query(host, lambda reader: docker_image.read_image(reader, ref))
            return image.id if image else ""
    return None


def write_switch(before: Switch | None, after: Switch | None, host: Host) -> None:
    """Write `after` in place of `before`, for the agent that runs or the next start.

    Raises UsageError where the file can't be written, or has something else than `before`.
    """
    with usage_error(f"{FILE.path} can't be changed", "df -h /var/lib/sparkd"):
        if not files.compare_and_swap(host.files, FILE, before, after):
            raise UsageError(f"{FILE.path} has changed meanwhile: nothing is changed", "run it again")


def refuse_worker(config: Settings, host: Host) -> None:
    """Raises UsageError on a node that is no head."""
    place = membership.find_place(config, host)
    if place.rank:
        hint = shlex.join(["sudo", "sparkd", *sys.argv[1:]])
        raise UsageError(
            f"this node is rank {place.rank}: the head chooses for all", f"on {place.head_address}: {hint}"
        )


def read_choice(host: Host) -> Switch | None:
    """The switch in the file, if any. Raises ConfigError where it can't be read: what is in force is unknown."""

    def refuse(reason: str) -> None:
        raise ConfigError(reason, "sudo sparkd rollback --end, then: sudo systemctl restart sparkd-head")

    return membership.load_switch(host, refuse)


def fingerprint_replaced(before: Switch | None, config: Settings, host: Host) -> str:
    """Fingerprint of the configuration that a new choice replaces. `before`: the switch in the file.

    One that can't be read now is not known to have changed: a choice must be possible where its recipe is away.
    """
    try:
        return membership.fingerprint_config(config, host)
    except AwaitedError:
        if before is None:
            note = f"once it can, {CONFIGURED} holds from the next start on"
            print(f"sparkd: the configured recipe can't be read now: {note}", file=sys.stderr)
        return before.replaces if before is not None else fingerprint_engine(config.engine, None)


def refuse_blocked(node: NodeContext, findings: Iterable[Finding], config: Settings, host: Host) -> None:
    """Raises BlockedError for these findings, and where other nodes lack something."""
    missing = [*explain_findings(findings), *find_missing_elsewhere(node, request_inventories(config, host))]
    if missing:
        raise BlockedError("\n".join(["nothing is changed:", *missing]))


def load_chosen(name: str, span_seconds: int, config: Settings, host: Host) -> Chosen:
    """The recipe of that name as a plan for `span_seconds`; 0: without an end.

    Raises ConfigError; AwaitedError for a file that others may change.
    """
    engine = config.engine.model_copy(update={"recipe": name})
    return Chosen(membership.load_own_recipe(name, host).recipe, engine, until=time_after(span_seconds))


def time_after(seconds: int) -> str:
    """The time so many seconds from now: UTC, ISO 8601; empty for 0, which is no end."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds") if seconds else ""


def exchange_image(ref: str, span_seconds: int, config: Settings, host: Host) -> Chosen | None:
    """The plan in force with another image; None where that is the configured plan.

    Raises UsageError where `ref` is no image, BlockedError where the node could not go back, or is switching already.
    """
    try:
        check_image(ref)
    except ValueError as error:
        raise UsageError(f"--image {sanitize(ref, 60)}: {error}") from None
    current = membership.current_switch(config, host)
    if current is not None and current.stage is not Stage.IN_FORCE:
        raise BlockedError(f"this node is on the way to {label(current.chosen)}", "sparkd status")
    chosen = current.to if current is not None else None
    plan = membership.make_context(config, host, chosen).plan
    if not plan.image_id:
        _refuse_moved_name(plan.image, ref, host)
        if ref == plan.image:
            return chosen and replace(chosen, until=time_after(span_seconds))
    base = chosen or load_chosen(config.engine.recipe, 0, config, host)
    return Chosen(base.recipe, base.engine.model_copy(update={"image": ref}), until=time_after(span_seconds))


def _refuse_moved_name(name: str, ref: str, host: Host) -> None:
    """Raises BlockedError where the name of the image that runs is another image's now, as after a docker pull."""
    report, named = read_living_report(host.files), image_id(host, name)
    running = report.engine.image if report is not None else ""
    if not running or named in (running, None):
        return
    keep = f"sudo docker tag {name} {name}-new && " if named else ""
    wanted = f"{name}-new" if ref == name else ref
    reason = f"{name} is not the image that runs any more: there would be no way back to that"
    raise BlockedError(reason, f"{keep}sudo docker tag {running} {name}; then: sudo sparkd use --image {wanted}")


def findings_of(node: NodeContext, host: Host, config: Settings, ids: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """Findings that prevent the plan on this node and that no allowed fix clears. `ids`: checks to run; empty: all."""
    checks = without_skipped(build_checks(check_inputs(node)), config.preflight.skip)
    selected = [check for check in checks if not ids or check.id in ids]
    findings = examine(selected, host if isinstance(host, NextStart) else NextStart(host))
    return uncleared(by_policy(findings, config.preflight), config.preflight.allow_fixes)


def explain_findings(findings: Iterable[Finding]) -> Iterator[str]:
    """A line for each finding."""
    for finding in findings:
        yield f"{finding.id}: {finding.verdict.reason}{f' ({finding.verdict.hint})' * bool(finding.verdict.hint)}"


def choose_recipe(name: str, span_seconds: int, config: Settings, host: Host) -> Chosen | None:
    """The recipe of that name as in `load_chosen`; None where it is the configured one, without an end."""
    return None if name == config.engine.recipe and not span_seconds else load_chosen(name, span_seconds, config, host)


def make_switch(
    to: Chosen | None, drain_seconds: int, before: Switch | None, config: Settings, host: Host
) -> Switch | None:
    """The switch to a plan, or with None to the configured one; None where that is in force already.

    `before`: the switch in the file. Raises ConfigError, BlockedError where the node can't go there.
    """
    replaces = fingerprint_replaced(before, config, host)
    current = before if before is not None and before.replaces == replaces else None  # else the configuration holds
    node = membership.make_context(config, host, to)
    if current is None and to is None:
        return None
    if current and current.stage is Stage.IN_FORCE and current.to is not None and current.to.is_same_plan(to):
        return None if current.to == to else replace(current, to=to)
    refuse_blocked(node, findings_of(node, host, config), config, host)
    back = plans_before(current, config, host)[:MOST_BACK]
    return Switch(replaces, Stage.DRAINING, to, back, 0, drain_seconds, utc_now())


def plans_before(current: Switch | None, config: Settings, host: Host) -> tuple[Chosen, ...]:
    """Plans to go back to: the plan in force and those before it, the latest first; or the last known good plan.

    The latter where the plan in force neither serves nor is known good.
    """
    plans = current.plans if current is not None else ()
    report, known_plans = parse(read_report(host.files)), known_good.read_known_good(host.files)
    if not known_plans or (report is not None and report.phase in (Phase.SERVING, Phase.DEGRADED)):
        return plans
    with suppress(ConfigError):
        plan = membership.make_context(config, host, plans[0] if plans else None).plan
        if any(entry.plan_digest == plan.digest for entry in known_plans):
            return plans
    last_good = known_plans[0]
    rollback = make_rollback(last_good, "", last_good.image_id if image_id(host, last_good.image_id) else "")
    return (rollback.to,) if rollback is not None and rollback.to is not None else plans


def list_usable(config: Settings, host: Host) -> Table:
    """A line for each recipe: whether it could be used now, or why not."""
    current = membership.current_switch(config, host)
    next_start, nodes = NextStart(host), request_inventories(config, host)
    chosen = current.chosen if current is not None else None
    in_use = chosen.engine.recipe if chosen is not None else config.engine.recipe
    in_use_text = "in force" if current is None or current.stage is Stage.IN_FORCE else "on the way"
    rows = [("RECIPE", "NOW", "")]
    recipes = find_recipes(recipe_folders(Path(host.files.root)))
    in_use = next((name for name, path in recipes.items() if str(path) == in_use), in_use)
    for recipe in (*recipes, *([in_use] if in_use.startswith("/") else [])):
        reason = _find_obstacle(recipe, config, next_start, nodes)
        rows.append((recipe, in_use_text if recipe == in_use else "no" if reason else "yes", sanitize(reason)))
    return Table(rows, heading=True)


def _find_obstacle(name: str, config: Settings, host: Host, nodes: Inventories) -> str:
    """Why a recipe can't be used; empty where it can."""
    try:
        node = membership.make_context(config, host, load_chosen(name, 0, config, host))
    except ConfigError as error:
        return error.reason.splitlines()[0].partition("; chosen for")[0]
    findings = findings_of(node, host, config, BY_RECIPE)
    own_fault = f"{findings[0].id}: {findings[0].verdict.reason}" if findings else ""
    return own_fault or next(find_missing_elsewhere(node, nodes), "")


def describe_outcome(switch: Switch, ref: str, configured_recipe: str) -> Iterator[str]:
    """Lines on what is in force, and the way back. `ref`: the new image; empty where the recipe was changed."""
    choice, previous = switch.to, switch.before
    yield f"{label(choice)} is in force"
    if choice is None or not ref:
        return
    if previous is not None and previous.recipe == choice.recipe and not previous.proven:
        yield f"back to the image before: sudo sparkd use --image {previous.engine.image or previous.recipe.image.ref}"
    else:
        yield f"back to {label(None)}: sudo sparkd use --end"
    yield "to keep it for good, in sparkd.toml under [engine], in place of its lines of these names:"
    if choice.engine.recipe != configured_recipe:
        yield f"recipe = {json.dumps(choice.engine.recipe, ensure_ascii=False)}"
    yield f'image = "{ref}"'


def go_back(host: Host, is_own: Callable[[Switch], bool]) -> Chosen | None:
    """End the caller's plan as the end of its time would. A plan that somebody else has chosen stays.

    Returns the plan that is to run, None for the configured one. Raises UsageError.
    """
    while (choice := read_choice(host)) and is_own(choice) and choice.stage is not Stage.RETURNING:
        with usage_error(f"{FILE.path} can't be changed", "sudo sparkd use --end"):
            # Writes nothing where the agent has just changed the file: the loop reads it again.
            files.compare_and_swap(host.files, FILE, choice, replace(choice, stage=Stage.RETURNING))
    return choice.chosen if choice else None
