"""The dockerd that a rank runs under. It ends at its start what ran under the one before, unless live-restore is on.

It gives each container 10 s between SIGTERM and SIGKILL, and a headless vLLM takes 12 s to heed the first: a rank that
its dockerd has left is better ended at once, for the engine is lost all the same.

Only workers look. A head's rank that serves heeds that SIGTERM within 0.6 s, and one that still loads is killed within
those 10 s: its pidfd tells, and the engine's end then names docker.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from sparkd.host import Host, docker
from sparkd.lib.dockerd.reader import DockerUnreadableError


class Daemon(Struct, frozen=True):
    """`pid` is empty where docker did not say whose it is: then nothing is known of its containers' end."""

    pid: str = ""
    live_restore: bool = False

    @property
    def takes_ranks_along(self) -> bool:
        return bool(self.pid) and not self.live_restore


def of(host: Host) -> Daemon:
    """The living one. It may wait for docker, for ten seconds at most."""
    with suppress(OSError, DockerUnreadableError):
        pid = docker.daemon_pid(host)
        kept = docker.asked(host, docker.live_restore)
        if kept is not None:
            return Daemon(pid, kept)
    return Daemon()


def left(daemon: Daemon, host: Host) -> bool:
    """Whether another dockerd has taken its place, and ends what ran under it."""
    with suppress(OSError):
        return daemon.takes_ranks_along and docker.daemon_pid(host) not in ("", daemon.pid)
    return False
