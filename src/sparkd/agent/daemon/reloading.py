"""Reloads the agent for `systemctl reload`: its process executes the installed program, which takes the rank over.

Pid, start time, lock and watchdog stay, and the unit stays active. `sparkd reload` looks before whether anything may
keep the new program from that. A stop that is requested meanwhile is obeyed afterwards.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from sparkd.agent.daemon.context import Agent
from sparkd.base.lib import start_thread
from sparkd.base.lib.endings import Stage, StopRequested
from sparkd.base.lib.main_loop import SIGNALS
from sparkd.base.state.rank_record import read_rank

FLUSH_SECONDS = 5.0


class ReloadRequested(StopRequested):
    """Raised for SIGHUP while the rank serves."""


def reap_inherited() -> None:
    """Reap the children that the old program left, such as an `rm` of caches, as they end.

    Nothing else in the new program knows of them. To be called before it starts a child of its own.
    """
    with suppress(OSError):  # they stay zombies until this process ends
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            start_thread(threading.Thread(target=os.waitpid, args=(int(pid), 0), name="inherited", daemon=True))


def raise_if_requested(agent: Agent) -> None:
    """Raises ReloadRequested where a reload is requested, and the next program can take the rank over."""
    if not agent.loop.take_reload_request():
        return
    known_rank = read_rank(agent.host)
    if known_rank.record is None or known_rank.record.invocation != agent.owner.invocation or not known_rank.stays:
        reason = "no rank serves here that a guard has"
    elif not (Path(sys.argv[0]).is_absolute() and os.access(sys.argv[0], os.X_OK)):
        reason = f"{sys.argv[0]} can't be executed"
    else:
        raise ReloadRequested("SIGHUP")
    hint = f"nothing has changed; sudo systemctl restart sparkd-{agent.context.role} ends the engine, too"
    agent.events.warning("agent.reload.failed", reason=reason, hint=hint)


def reload(agent: Agent) -> NoReturn:
    """Execute the installed program. Raises RankEndedError where the rank has ended.

    Raises RuntimeError where the program can't be executed: the next agent takes the rank over, as after a crash.
    """
    agent.rank.raise_if_ended()
    agent.loop.endings.enter(Stage.END)
    agent.events.info("agent.reload.started", hint="")
    agent.loop.keepalive()
    agent.journal.close(FLUSH_SECONDS, FLUSH_SECONDS)
    # From here on signals wait for the new program. A stop that arrived just before is sent to it again. One that
    # another thread gets ends this process, and `sparkd sweep` its rank: the new program would not learn of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if agent.loop.endings.stop_requested:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    try:
        os.execve(sys.argv[0], sys.argv, {**os.environ, **agent.actions.hand_on()})  # noqa: S606  # the own program
    except OSError as error:  # an OSError would end the rank
        raise RuntimeError(f"{sys.argv[0]} can't be executed: {error.strerror}") from None
