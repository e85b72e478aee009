"""`sparkd run`: be the node's agent until the rank ends or somebody asks to stop."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from sparkd.errors import ExitCode, SparkdError, UsageError

if TYPE_CHECKING:
    from sparkd.lib.journal import Journal
    from sparkd.lib.log import ProcessLog

FLUSH_SECONDS = 5.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=("head", "worker"), required=True, help="what this node is to be")


def run(args: argparse.Namespace) -> int:
    from sparkd.lib.journal import Journal
    from sparkd.lib.log import ProcessLog
    from sparkd.pulse import StopRequested

    if os.geteuid():
        raise UsageError("an agent must be root", "systemctl start sparkd-head")
    journal = Journal(sys.stdout.fileno())
    log = ProcessLog(journal.put)
    try:
        return _live(args.role, journal, log)
    except StopRequested:
        return ExitCode.GOOD  # while the node's place was awaited
    except SparkdError as error:
        _refuse(error, log)
        return error.code
    finally:
        journal.close(FLUSH_SECONDS)


def _live(role: str, journal: Journal, log: ProcessLog) -> ExitCode:
    from sparkd.life import live
    from sparkd.making import make_agent

    agent = make_agent(role, journal, log, os.environ)
    try:
        return live(agent)
    finally:
        agent.hands.release()


def _refuse(error: SparkdError, log: ProcessLog) -> None:
    """There is no agent yet: wrong configuration, wrong role, another owner."""
    from sparkd.lib.redact import Redactor
    from sparkd.systemd import Notifier

    Notifier().status(str(error))
    events = log.events(Redactor())
    for line in error.reason.splitlines():
        events.error("life.refused", code=int(error.code), reason=line, hint=error.hint)
