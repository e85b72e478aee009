"""`sparkd preflight`: check this node, apply the fixes that are allowed, report what blocks."""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sparkd.cli import console
from sparkd.cluster.membership import NodeContext, check_inputs, resolve_context
from sparkd.config import Settings, load_settings
from sparkd.host import Host
from sparkd.host.owner import NodeOwner
from sparkd.lib import read_data
from sparkd.lib.errors import BlockedError, ConfigError, ExitCode, UsageError
from sparkd.lib.text import did_you_mean
from sparkd.preflight import render
from sparkd.preflight.check import Finding
from sparkd.preflight.fixes import FixState, stop_by_hand
from sparkd.preflight.hooks import list_hooks
from sparkd.preflight.registry import IDS, build_checks
from sparkd.preflight.render import Shown
from sparkd.preflight.runner import blocking, check_ids
from sparkd.status.model import Phase
from sparkd.tools.dry_run import look_without_plan, only_look

if TYPE_CHECKING:
    from sparkd.actions import Actions
    from sparkd.lib.main_loop import MainLoop


def add_preflight(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only look: change nothing, say what would be changed")
    parser.add_argument("--all", action="store_true", help="show every check, not only what is not ok")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--role", choices=("head", "worker"), help="exit 78 where this node is not of this role")
    parser.add_argument(
        "--root", metavar="TREE", help="look at the machine whose files lie below TREE; implies --dry-run"
    )
    parser.add_argument(
        "--fix", metavar="PID", type=int, help="end this process, which a hint names so: SIGTERM, then SIGKILL"
    )
    parser.add_argument("--explain", metavar="ID", help="say what a check looks at, and why")
    parser.set_defaults(run=preflight)


def preflight(args: argparse.Namespace) -> int:
    if args.explain:
        print(_page(args.explain))
        return ExitCode.GOOD
    if args.root and not Path(args.root).is_dir():
        raise UsageError(f"{args.root} is no folder", "--root takes the files of a machine, as a folder")
    if args.fix is not None and (args.dry_run or args.root):
        raise UsageError("--fix changes this node, a dry run does not", stop_by_hand(args.fix, ""))
    shown, code = _examine(args, Host(args.root or "/"))
    if args.json:
        sys.stdout.write(render.as_json(shown))
    else:
        console.show(render.parts(shown, every=args.all))
    return code


def _examine(args: argparse.Namespace, host: Host) -> tuple[Shown, ExitCode]:
    """Raises ConfigError where there is no plan, and more than a look is wanted; as `_own`."""
    acts = not (args.dry_run or args.root or args.fix is not None)
    config = Settings()
    try:
        config = load_settings(os.environ if host.live else {}, Path(host.files.root))
        check_ids(config.preflight)
        node = resolve_context(config, args.role, host)
    except ConfigError as error:
        if acts:
            raise
        look = partial(look_without_plan, error, args.role, config, host)
        return look() if args.fix is None else end_named(args.fix, look, host), error.code
    for one in node.switch.findings if node.switch is not None else ():
        print(f"sparkd: {one.reason}{f' ({one.hint})' * bool(one.hint)}", file=sys.stderr)
    look = partial(_act if acts else only_look, node, config, host)
    shown = look() if args.fix is None else end_named(args.fix, look, host)
    blocked = blocking(shown.findings)
    if not blocked:
        return shown, ExitCode.GOOD
    return shown, ExitCode.NEEDS_PERSON if blocked[0].verdict.needs_person else ExitCode.BLOCKED


def _page(check_id: str) -> str:
    if check_id not in IDS:
        raise UsageError(f"no check {check_id!r}{did_you_mean(check_id, IDS)}", f"checks: {', '.join(IDS)}")
    _, _, section = read_data("sparkd-checks.7.md").decode().partition(f"\n## {check_id}\n")
    page = section.partition("\n```text\n")[2].partition("\n```\n")[0]
    return f"{check_id}\n\n{page}"


def _own(host: Host, loop: MainLoop, option: str = "") -> Actions:
    """Raises BlockedError (10), which names the owner, where somebody else owns the node."""
    if os.geteuid() != 0:
        hint = f"sudo sparkd preflight{option}, or only look: sparkd preflight --dry-run"
        raise UsageError("only root may change this node", hint)
    from sparkd.actions import Actions

    return Actions.acquire(host, loop, NodeOwner(os.getpid(), "sparkd preflight", uuid.uuid4().hex))


def end_named(pid: int, look: Callable[[], Shown], host: Host) -> Shown:
    """End a process, with what descends from it, on a person's word, where a finding offers that. Raises as `_own`.

    A blocked agent keeps the lock, and launches nothing as long as that finding blocks.
    """
    from sparkd.actions.processes import end_process
    from sparkd.lib.main_loop import MainLoop
    from sparkd.lib.systemd import Notifier

    before = look()
    with MainLoop(Notifier(), {}) as loop, ExitStack() as owned:
        try:
            owned.callback(_own(host, loop, f" --fix {pid}").release)
        except BlockedError:
            if before.owner is None or before.owner.phase != Phase.BLOCKED.value:
                raise
        offers = [one for finding in before.findings for one in finding.verdict.offers]
        offer = next((one for one in offers if one[0].pid == pid), None)
        if offer is None:
            hint = "a hint names what may be ended like that: sparkd preflight --dry-run"
            raise UsageError(f"no finding offers to end pid {pid}", hint)
        if os.getpid() in (fix.pid for fix in offer):
            raise UsageError(f"this command descends from pid {pid}, and would end itself", "run it elsewhere")
        ended = [(fix, end_process(fix)) for fix in offer]
    states = tuple(FixState(fix, applied.state, applied.note) for fix, applied in ended)
    return replace(look(), changes_nothing=False, fixes=states, hooks=(), before=before.findings)


def _act(node: NodeContext, config: Settings, host: Host) -> Shown:
    """Raises as `_own`."""
    from sparkd.agent import hooks
    from sparkd.lib.log import events
    from sparkd.lib.main_loop import MainLoop
    from sparkd.lib.systemd import Notifier
    from sparkd.lib.text import Redactor
    from sparkd.preflight.gate import Gate, GateIO

    loop = MainLoop(Notifier(), {})

    def run_hooks() -> tuple[Finding, ...]:
        return hooks.run_hooks(list_hooks(host.files), loop.wait, hooks.hook_environment(node.role, node.rank))

    def wait(seconds: float, _for: str) -> None:
        loop.wait(seconds)

    silent = events(lambda _priority, _line: None, Redactor())  # events are for the journal; a person reads the table
    policy = config.preflight.model_copy(update={"wait_seconds": 0})  # a person waits instead
    actions = _own(host, loop)
    try:
        io = GateIO(actions.apply, run_hooks, wait, loop, silent, show=lambda _findings: None)
        admission = Gate(partial(build_checks, check_inputs(node)), host, policy, io).fix_and_recheck()
    finally:
        actions.release()
        loop.close()
    return Shown(host.name(), node.role, False, admission.findings, admission.fixes, admission.before)
