"""`sparkd run`, `sparkd reload` and `sparkd sweep`: the commands that systemd's units run.

systemd runs `sweep` after every end of the unit (ExecStopPost=) with the invocation id of the agent that has just
ended. By hand it stops every container of sparkd's whose owner is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.base.lib.errors import AS_ROOT, BlockedError, ExitCode, SparkdError

if TYPE_CHECKING:
    from sparkd.base.lib.log import Events, ProcessLog

FLUSH_SECONDS = 5.0
"""Limit for journald to take the agent's last lines."""
STOP_FLUSH_SECONDS = 0.2
"""Limit after a stop where journald takes nothing: no line is left that a person needs, and systemd waits."""
ROLES = ("head", "worker")


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=ROLES, required=True, help="exit with 78 where this node has another role")
    parser.set_defaults(run=run_agent, as_root=("an agent must be root", "sudo systemctl start sparkd-head"))


def add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=ROLES, help="only containers of this role")
    parser.set_defaults(run=sweep_containers)


def add_reload(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=reload_agent, as_root=("only root may signal the agent", AS_ROOT))


def reload_agent(_args: argparse.Namespace) -> None:
    from sparkd.base.host import Host
    from sparkd.tools.node.reload import reload

    reload(Host(), print)


def run_agent(args: argparse.Namespace, root: Path = Path("/")) -> int:
    from sparkd.agent.daemon.bootstrap import build_agent
    from sparkd.agent.daemon.run import run
    from sparkd.base.lib.endings import StopRequested
    from sparkd.base.lib.journal_writer import Journal
    from sparkd.base.lib.log import ProcessLog, print_bug
    from sparkd.base.lib.main_loop import MainLoop
    from sparkd.base.lib.systemd import Notifier

    journal = Journal(sys.stdout.fileno())
    log = ProcessLog(journal.put)
    notifier = Notifier()
    code: int = ExitCode.BUG
    try:
        with MainLoop(notifier, os.environ) as loop:
            agent = build_agent(args.role, loop, notifier, journal, log, os.environ, root)
            threading.excepthook = partial(report_thread, agent.events)
            sys.excepthook = lambda _kind, error, _trace: print_bug(error, agent.redact)
            try:
                code = run(agent)
            finally:
                agent.actions.release()
    except StopRequested:
        code = ExitCode.GOOD  # while the node's place was awaited
    except SparkdError as error:
        code = _report_refusal(error, log)
    except OSError as error:  # the machine fails; where an engine is to be taken over, the guard gives it a minute
        hint = "look at: sudo dmesg; df -h; sparkd restarts, and tries it again"
        code = _report_refusal(BlockedError(str(error), hint), log)
    finally:
        journal.close(FLUSH_SECONDS, FLUSH_SECONDS if code else STOP_FLUSH_SECONDS)
    return code


def report_thread(events: Events, error: threading.ExceptHookArgs) -> None:
    """Log the error that ended a thread whose result nothing waits for."""
    name = error.thread.name if error.thread else ""
    events.error("agent.thread.failed", thread=name, reason=f"{error.exc_type.__name__}: {error.exc_value}")


def _report_refusal(error: SparkdError, log: ProcessLog) -> ExitCode:
    """Log why no agent runs: a wrong configuration, a wrong role, another owner."""
    from sparkd.base.lib.redaction import Redaction
    from sparkd.base.lib.systemd import Notifier

    redact = Redaction()
    Notifier().status(redact(str(error)))
    events = log.events(redact)
    for line in error.reason.splitlines():
        fields = {"code": int(error.code), "cause": error.cause.value, "action": error.action.value}
        events.error("agent.run.refused", **fields, reason=line, hint=error.hint)
    return error.code


def sweep_containers(args: argparse.Namespace) -> int:
    from sparkd.base.host import Host
    from sparkd.base.lib.systemd import invocation_id
    from sparkd.tools.node.sweep import end_orphans, is_left

    host, invocation = Host(), invocation_id(os.environ)
    if invocation and is_left(host, args.role, os.environ):
        print("the agent has crashed, and its engine serves: it is left to the next agent, or ends in a minute")
        return ExitCode.GOOD
    return end_orphans(host, invocation, args.role, print)
