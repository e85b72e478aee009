"""`sparkd run`: run the node agent (started by systemd), until the rank ends or a stop is requested."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from sparkd.lib.errors import ExitCode, SparkdError, UsageError

if TYPE_CHECKING:
    from sparkd.lib.log import ProcessLog

FLUSH_SECONDS = 5.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=("head", "worker"), required=True, help="what this node is to be")


def run(args: argparse.Namespace) -> int:
    if os.geteuid():
        raise UsageError("an agent must be root", "systemctl start sparkd-head")
    from sparkd.agent.bootstrap import build_agent
    from sparkd.agent.run import run as run_to_end
    from sparkd.lib.log import ProcessLog
    from sparkd.lib.main_loop import StopRequested
    from sparkd.lib.systemd import Journal

    journal = Journal(sys.stdout.fileno())
    log = ProcessLog(journal.put)
    try:
        agent = build_agent(args.role, journal, log, os.environ)
        try:
            return run_to_end(agent)
        finally:
            agent.actions.release()
    except StopRequested:
        return ExitCode.GOOD  # while the node's place was awaited
    except SparkdError as error:
        _report_refusal(error, log)
        return error.code
    finally:
        journal.close(FLUSH_SECONDS)


def _report_refusal(error: SparkdError, log: ProcessLog) -> None:
    """There is no agent yet: wrong configuration, wrong role, another owner."""
    from sparkd.lib.systemd import Notifier
    from sparkd.lib.text import Redactor

    Notifier().status(str(error))
    events = log.events(Redactor())
    for line in error.reason.splitlines():
        events.error("agent.run.refused", code=int(error.code), reason=line, hint=error.hint)
