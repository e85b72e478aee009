"""`sparkd preflight`: check this node, apply the fixes that are allowed, report what blocks."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sparkd.agent.preflight.fixes import stop_by_hand
from sparkd.agent.preflight.runner import IDS, blocking, check_ids
from sparkd.base.cluster.membership import resolve_context
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import AS_ROOT, ConfigError, ExitCode, UsageError
from sparkd.base.lib.text import did_you_mean, reflow
from sparkd.tools.cli import console
from sparkd.tools.node import render
from sparkd.tools.node.dry_run import examine_plan, examine_without_plan
from sparkd.tools.node.render import PreflightReport


def add_preflight(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only look: change nothing, say what would be changed")
    parser.add_argument("--all", action="store_true", help="show every check, not only what is not ok")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--role", choices=("head", "worker"), help="exit with 78 where this node has another role")
    parser.add_argument(
        "--root", metavar="TREE", help="look at the machine whose files lie below TREE; implies --dry-run"
    )
    parser.add_argument(
        "--fix",
        metavar="PID",
        dest="end_pid",
        type=int,
        help="end this process, which the hint of a finding names: SIGTERM, then SIGKILL",
    )
    parser.add_argument(
        "--deep", action="store_true", help="run no check, but load the GPU for 13 s and compare its speed"
    )
    parser.add_argument(
        "--explain", metavar="ID", nargs="?", const="", help="say what a check looks at, and why; or list the checks"
    )
    parser.set_defaults(run=preflight)


def preflight(args: argparse.Namespace) -> int:
    if args.explain is not None:
        print(_render_page(args.explain))
        return ExitCode.GOOD
    if args.root and not Path(args.root).is_dir():
        raise UsageError(f"{args.root} is no folder", "--root takes the files of a machine, as a folder")
    if args.end_pid is not None and (args.dry_run or args.root):
        raise UsageError("--fix changes this node, a dry run does not", stop_by_hand(args.end_pid, ""))
    host = Host(args.root or "/")
    report, code = _load_gpu(args, host) if args.deep else _examine(args, host)
    if args.json:
        sys.stdout.write(render.as_json(report))
    else:
        console.show(render.parts(report, every=args.all or args.deep))
    return code


def _load_gpu(args: argparse.Namespace, host: Host) -> tuple[PreflightReport, ExitCode]:
    """Judge the GPU under load. Raises ConfigError where there is no plan, and as `measure_gpu`."""
    # A dry run imports nothing that could change the node; these start a container.
    from sparkd.tools.measure.gpu import measure_gpu
    from sparkd.tools.measure.interrupts import catch_ends

    if args.dry_run or args.root or args.end_pid is not None:
        raise UsageError("--deep loads the GPU of this node, and does nothing else", "sudo sparkd preflight --deep")
    if os.geteuid() != 0:
        raise UsageError("only root may load the GPU", AS_ROOT)
    catch_ends()  # Else the container would outlive this process.
    context = resolve_context(load_settings(os.environ), args.role, host)
    findings = tuple(measure_gpu(context, host))
    report = PreflightReport(node=host.name(), role=context.role, changes_nothing=False, findings=findings, fixes=())
    return report, _choose_code(report)


def _examine(args: argparse.Namespace, host: Host) -> tuple[PreflightReport, ExitCode]:
    """Run the checks, with fixes if these are allowed.

    Without a plan, a mere look checks what needs none; raises ConfigError where fixes may be applied. Else raises as
    `tools.node.fixing`.
    """
    may_fix = not (args.dry_run or args.root or args.end_pid is not None)
    config = Settings()
    try:
        config = load_settings(os.environ if host.live else {}, Path(host.files.root))
        check_ids(config.preflight)
        context = resolve_context(config, args.role, host)
    except ConfigError as error:
        if may_fix:
            raise
        look = partial(examine_without_plan, error, args.role, config, host)
        return _end_and_look(args.end_pid, look, host), error.code
    for finding in context.switch.findings if context.switch is not None else ():
        hint = f" ({finding.hint})" if finding.hint else ""
        print(f"sparkd: {finding.reason}{hint}", file=sys.stderr)
    if may_fix:
        # Where nothing is changed, nothing is imported that could.
        from sparkd.tools.node.fixing import fix_node

        report = fix_node(context, config, host)
    else:
        report = _end_and_look(args.end_pid, partial(examine_plan, context, config, host), host)
    return report, _choose_code(report)


def _choose_code(report: PreflightReport) -> ExitCode:
    blocked = blocking(report.findings)
    if not blocked:
        return ExitCode.GOOD
    return ExitCode.NEEDS_PERSON if blocked[0].verdict.needs_person else ExitCode.BLOCKED


def _end_and_look(pid: int | None, look: Callable[[], PreflightReport], host: Host) -> PreflightReport:
    """End the process `pid`, unless that is None; then look."""
    if pid is None:
        return look()
    # A mere look imports nothing that could end a process.
    from sparkd.tools.node.fixing import end_named

    return end_named(pid, look, host)


def _render_page(check_id: str) -> str:
    """The manual's text about a check; the list of checks where the id is empty."""
    if not check_id:
        return "\n".join((*IDS, "", "next: sparkd preflight --explain ID"))
    if check_id not in IDS:
        raise UsageError(f"no check {check_id!r}{did_you_mean(check_id, IDS)}", f"checks: {', '.join(IDS)}")
    _, _, section = read_data("sparkd-checks.7.md").decode().partition(f"\n## {check_id}\n")
    page = section.partition("\n```text\n")[2].partition("\n```\n")[0]
    return f"{check_id}\n\n{reflow(page, shutil.get_terminal_size().columns)}"
