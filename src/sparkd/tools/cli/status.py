"""`sparkd status`: what the nodes are doing, from this node's report; needs neither root nor a running agent."""

import argparse
import json
import os
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import AwaitedError, ConfigError, ExitCode, SparkdError, UsageError
from sparkd.base.lib.text import Parts, parse_json, sanitize
from sparkd.base.status.model import PATH, REPORT_SCHEMA, NodeReport, Phase, agent_running, parse, read_report
from sparkd.base.status.view import AFTER_REFUSAL, TEXT_LIMIT, View
from sparkd.tools.cli import console
from sparkd.tools.node.status_text import render

WATCH_SECONDS, UNIT_SECONDS = 1.0, 5.0
UNREADABLE = (
    f"{PATH} is no report that this version can read",
    "next: sudo systemctl try-restart sparkd-head sparkd-worker   # ends the engine",
)


def add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as it stands")
    parser.add_argument(
        "--watch", action="store_true", help="follow it on a live screen, drawn where it changes, until interrupted"
    )
    parser.epilog = "exit codes, of this node: 0 serving, 20 on the way, 21 down"
    parser.set_defaults(run=show_status)


def show_status(args: argparse.Namespace) -> int:
    files, on_terminal = Files(), console.on_terminal() and not args.json
    if args.watch and on_terminal:
        return watch(files)
    previous: Parts = ()
    while True:
        shown, code = render_report(files, as_json=args.json, on_terminal=on_terminal)
        if shown != previous:
            console.show(previous := shown)
        if not args.watch:
            return code
        time.sleep(WATCH_SECONDS)


def watch(files: Files) -> int:
    """Show a live screen until it is interrupted; its last state stays on the terminal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the terminal stays on the other screen
    shown, code = render_report(files, on_terminal=True)
    try:
        with console.Screen() as live:
            while True:
                live.show(shown)
                time.sleep(WATCH_SECONDS)
                shown, code = render_report(files, on_terminal=True)
    except KeyboardInterrupt:
        console.show(shown)
    return code


def render_report(files: Files, *, as_json: bool = False, on_terminal: bool = False) -> tuple[Parts, ExitCode]:
    """The parts that `status` prints, and its exit code."""
    text = read_report(files)
    report = parse(text)
    alive = report is not None and agent_running(files, report)
    code = exit_code(report, alive=alive)
    if as_json:
        with suppress(ValueError):  # another version's is printed, too
            parse_json(text)
            return [text.strip()], code
        reason, todo = map(str, UNREADABLE if text.strip() else _describe_idle(files))
        error = {"code": code, "cause": "", "reason": reason, "hint": todo.removeprefix("next: ")}
        return [json.dumps({"schema": REPORT_SCHEMA, "error": error})], code
    if report is None:
        return UNREADABLE if text else _describe_idle(files), code
    served = describe_served(files, report) if alive else ""
    unit, said = ("", "") if alive else _read_unit(files, report.role, time.monotonic() // UNIT_SECONDS)
    return render(report, View(datetime.now(UTC), alive, unit, said), served, whole=not on_terminal), code


@lru_cache(1)
def _read_unit(files: Files, role: str, _moment: float) -> tuple[str, str]:
    """The answer of `read_unit` for the unit of a role, which a tree of files does not have. It starts a process."""
    from sparkd.base.lib.systemd import read_unit

    return read_unit(f"sparkd-{role}") if files.root == "/" else ("", "")


def describe_served(files: Files, report: NodeReport) -> str:
    """URL and model: those that a running agent reports, else those of the configuration."""
    if report.head and (engine := report.head.engine).url:
        return f"{sanitize(engine.url)}  model {sanitize(engine.model)}"
    return describe_endpoint(files, report.plan_digest)


@lru_cache(1)
def describe_endpoint(files: Files, _plan_digest: str) -> str:
    """URL and model that the configuration gives; empty where it is wrong, or this user can't read it.

    `_plan_digest` is a part of the cache's key: another plan may have another endpoint.
    """
    from sparkd.base.cluster.endpoint import find_url
    from sparkd.base.cluster.membership import resolve_context
    from sparkd.base.config import load_settings

    with suppress(SparkdError, OSError, ValueError):
        host = Host(files.root)
        plan = resolve_context(load_settings(os.environ, Path(files.root)), None, host).plan
        return f"{find_url(plan, host)[0]}  model {sanitize(plan.served_name)}"
    return ""


def _describe_idle(files: Files) -> Parts:
    """The state of a node whose agent has not run since boot, and what to do."""
    from sparkd.base.cluster.membership import current_switch, find_place, resolve_context
    from sparkd.base.config import load_settings
    from sparkd.base.host.units import enabled_services
    from sparkd.base.recipes.lookup import NOT_SET_UP, SET_UP_HINT

    try:
        config, host = load_settings(os.environ, Path(files.root)), Host(files.root)
        has_plan = config.engine.recipe or config.cluster.follow_head
        if not has_plan and current_switch(config, host) is None:
            return [NOT_SET_UP, f"next: {SET_UP_HINT}"]
        rank, is_placed, boot = int(config.cluster.follow_head), False, ""  # it may not know its place yet
        with suppress(AwaitedError, UsageError, OSError):  # the agent waits for it, or root alone may read it
            rank, is_placed = find_place(config, host).rank, True
            resolve_context(config, None, host)
        role = "worker" if rank else "head"
        start = f"sudo systemctl start sparkd-{role}"
        unit, said = _read_unit(files, role, time.monotonic() // UNIT_SECONDS)
        if unit == "failed" and said:
            return [f"not running: {sanitize(said, TEXT_LIMIT)}", f"next: {AFTER_REFUSAL}; then: {start}"]
        with suppress(OSError):
            if is_placed and f"sparkd-{role}.service" not in enabled_services(files):
                boot = f"; to have each boot start it, too: sudo systemctl enable sparkd-{role}"
        return ["not running: sparkd has not run since boot", f"next: {start}{boot}"]
    except ConfigError as error:
        if os.geteuid() and "ermission denied" in error.reason:
            return ["not running: this user may not read the configuration", "next: sudo sparkd status"]
    return ["not running: the configuration is wrong", "next: sparkd config check"]


def exit_code(report: NodeReport | None, *, alive: bool) -> ExitCode:
    if report is None or not alive or report.phase in (Phase.BLOCKED, Phase.STOPPED, Phase.FAILED):
        return ExitCode.DOWN
    return ExitCode.GOOD if report.phase in (Phase.SERVING, Phase.DEGRADED) else ExitCode.ON_THE_WAY
