"""`sparkd run` and `sparkd sweep`: what the units start.

systemd runs `sweep` after every end of the unit (ExecStopPost=) with the invocation id of the agent that has just
ended. By hand it stops every container of sparkd's whose owner is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from sparkd.lib.errors import ExitCode, LaunchError, SparkdError

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.docker import ContainerFacts
    from sparkd.host.owner import NodeOwner
    from sparkd.lib.log import Events, ProcessLog
    from sparkd.state.rank_record import KnownRank

FLUSH_SECONDS = 5.0
STOP_FLUSH_SECONDS = 0.3
"""For a journald that takes nothing, after a stop: no line says then what a person must do, and systemd waits."""
ROLES = ("head", "worker")


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=ROLES, required=True, help="what this node is to be")
    parser.set_defaults(run=run_agent, as_root=("an agent must be root", "systemctl start sparkd-head"))


def add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=ROLES, help="only containers of this role")
    parser.set_defaults(run=sweep)


def run_agent(args: argparse.Namespace) -> int:
    from sparkd.agent.bootstrap import build_agent
    from sparkd.agent.run import run
    from sparkd.lib.endings import StopRequested
    from sparkd.lib.log import ProcessLog
    from sparkd.lib.main_loop import MainLoop
    from sparkd.lib.systemd import Journal, Notifier

    journal = Journal(sys.stdout.fileno())
    log = ProcessLog(journal.put)
    notifier = Notifier()
    code: int = ExitCode.BUG
    try:
        with MainLoop(notifier, os.environ) as loop:
            agent = build_agent(args.role, loop, notifier, journal, log, os.environ)
            threading.excepthook = partial(report_thread, agent.events)
            try:
                code = run(agent)
            finally:
                agent.actions.release()
    except StopRequested:
        code = ExitCode.GOOD  # while the node's place was awaited
    except SparkdError as error:
        _report_refusal(error, log)
        code = error.code
    finally:
        journal.close(FLUSH_SECONDS, FLUSH_SECONDS if code else STOP_FLUSH_SECONDS)
    return code


def report_thread(events: Events, error: threading.ExceptHookArgs) -> None:
    """What ended a thread whose result nothing waits for."""
    name = error.thread.name if error.thread else ""
    events.error("agent.thread.failed", thread=name, reason=f"{error.exc_type.__name__}: {error.exc_value}")


def _report_refusal(error: SparkdError, log: ProcessLog) -> None:
    """There is no agent yet: wrong configuration, wrong role, another owner."""
    from sparkd.lib.systemd import Notifier
    from sparkd.lib.text import Redactor

    Notifier().status(str(error))
    events = log.events(Redactor())
    for line in error.reason.splitlines():
        events.error("agent.run.refused", code=int(error.code), cause=error.cause.value, reason=line, hint=error.hint)


def sweep(args: argparse.Namespace) -> int:
    from sparkd.host import Host, docker
    from sparkd.lib.systemd import invocation_id
    from sparkd.state.rank_record import RECORD_HINT, Whose, read_rank, whose

    host = Host()
    if not docker.running(host):
        # A query would start dockerd; the next preflight removes what is left.
        print("docker is not running: nothing swept", file=sys.stderr)
        return ExitCode.GOOD
    facts = host.docker()
    if facts.error:
        raise LaunchError(f"docker can't list its containers: {facts.error}", "systemctl status docker")
    # The owner is read after the containers: the agent of a listed container holds the lock already, or is gone.
    try:
        owner = host.owner()
    except OSError as error:
        reason = f"nothing swept, whose the containers are is unknown: {error.strerror}"
        raise LaunchError(reason, "the next preflight removes what is left over") from None
    known = read_rank(host)
    orphans = find_orphans(facts.containers, owner, known, invocation_id(os.environ), args.role)
    code = _end(host, orphans) if orphans else ExitCode.GOOD
    unknown = [one for one in facts.containers if one.ours and whose(one, owner, known) is Whose.UNKNOWN]
    if unknown and known.error:
        raise LaunchError(f"{unknown[0].name} is left alone: {known.error}", RECORD_HINT)
    return code


def find_orphans(
    containers: tuple[ContainerFacts, ...],
    owner: NodeOwner | None,
    known: KnownRank,
    invocation: str,
    role: str | None,
) -> tuple[ContainerFacts, ...]:
    """Those whose agent is gone: the agent of `invocation`; where it is empty, any but the owner."""
    from sparkd.host.docker import LABEL
    from sparkd.state.rank_record import Whose, whose

    return tuple(
        one
        for one in containers
        if one.ours
        and (role is None or one.label(f"{LABEL}role") == role)
        and whose(one, owner, known) is Whose.ORPHAN
        and (not invocation or known.holder(one) == invocation)
    )


def _end(host: Host, orphans: tuple[ContainerFacts, ...]) -> int:
    from sparkd.actions.dockerd import Containers
    from sparkd.actions.processes import end_orphan

    containers = Containers()
    code = ExitCode.GOOD
    for one in orphans:
        try:
            end_orphan(host, containers, one)
            print(f"stopped and removed container {one.name} ({one.id[:12]}): its agent is gone")
        except LaunchError as error:
            print(f"sparkd: {error}", file=sys.stderr)
            code = ExitCode.LAUNCH_FAILED
    return code
