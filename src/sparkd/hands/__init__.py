"""The machine, changed: the only code that writes, kills, starts and stops.

Whoever would act takes `Hands`, and there is one holder at a time. What was not given Hands cannot change anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from sparkd.errors import LaunchError
from sparkd.hands import caches, files, lock, orphans, page_cache, processes, readahead
from sparkd.hands import segments as shm_segments
from sparkd.hands.applied import Applied
from sparkd.hands.caches import Pruned
from sparkd.hands.lock import Owner
from sparkd.hands.rank import Rank
from sparkd.host import docker, gpu_ways, mounts
from sparkd.launch import ray
from sparkd.lib.dockerd.reader import DockerUnreadableError
from sparkd.preflight.fixes import DropPageCache, EndProcess, Fix, RemoveContainer, UnlinkSegment

if TYPE_CHECKING:
    from sparkd.hands.container import Containers
    from sparkd.host import Host
    from sparkd.host.shards import Shard
    from sparkd.launch.plan import LaunchPlan
    from sparkd.pulse import Pulse

RUN = Path("/run/sparkd")
STATE = Path("/var/lib/sparkd")
ACT_SECONDS = 60.0
"""For docker, or the disks (sync), to do what is asked. Longer, and something hangs that no waiting mends."""
LAUNCH_SECONDS = 300.0
"""For docker to make and start a container: minutes on a machine that has just booted."""
REMOVE_SECONDS = 15.0
WRITE_SECONDS = 10.0


class Hands:
    """Held from `take` to `release`."""

    def __init__(self, host: Host, pulse: Pulse, owner: Owner, lock_fd: int) -> None:
        self.owner = owner
        self._host = host
        self._pulse = pulse
        self._lock_fd = lock_fd

    @classmethod
    def take(cls, host: Host, pulse: Pulse, owner: Owner) -> Hands:
        """Raises BlockedError (exit 10) that names who holds them."""
        return cls(host, pulse, owner, lock.take(lock.LOCK_PATH, owner))

    def release(self) -> None:
        os.close(self._lock_fd)

    @cached_property
    def containers(self) -> Containers:
        """Docker's engine. Use it only while dockerd runs: a call on its socket starts it."""
        from sparkd.hands.container import Containers

        return Containers()

    def apply(self, fix: Fix) -> Applied:
        """Make one change, if what it was judged on still holds."""
        match fix:
            case EndProcess():
                return processes.end(fix, self._pulse)
            case RemoveContainer():
                return self._remove_stale(fix)
            case UnlinkSegment():
                return shm_segments.unlink(fix, self._host)
            case DropPageCache():
                return self._pulse.beside(lambda: page_cache.drop(self._host), ACT_SECONDS, "sync")
            case _:
                assert_never(fix)

    def _remove_stale(self, fix: RemoveContainer) -> Applied:
        facts = self._pulse.beside(self._host.docker, ACT_SECONDS, "docker")
        if not facts.known:
            return Applied("failed", facts.error or "docker is not running")
        found = facts.container(fix.container_id)
        if found is None:
            return Applied("stale", "gone already")
        if not found.ours or found.invocation == self.owner.invocation:
            return Applied("stale", "it is not an orphan of sparkd")
        try:
            containers = self.containers
            self._pulse.beside(lambda: orphans.end(self._host, containers, found), ACT_SECONDS, "docker")
        except LaunchError as error:
            return Applied("failed", str(error))
        return Applied("applied", "stopped and removed")

    def launch(self, plan: LaunchPlan, labels: dict[str, str], ray_token: str = "") -> Rank:
        """Write the script and start the rank's container. Raises LaunchError."""
        containers = self.containers
        script = RUN / "launch.sh"
        files.write(script, plan.script, 0o644, durable=False)
        if plan.on_ray:
            files.write(RUN / ray.TOKEN_FILE, ray_token, 0o600, durable=False)
        return self._pulse.beside(lambda: self._start(plan, script, labels, containers), LAUNCH_SECONDS, "docker")

    def _start(self, plan: LaunchPlan, script: Path, labels: dict[str, str], containers: Containers) -> Rank:
        image_id = containers.image_id(plan.image_to_run)
        started = containers.start(
            plan, image_id, script, labels, self._gpu() if plan.container.gpus == "all" else None
        )
        try:
            pidfd = os.pidfd_open(started.pid) if started.pid > 1 else -1
        except ProcessLookupError:
            pidfd = -1
        # Asked again with the pidfd in hand: the pid is still the container's, so the pidfd is, for good.
        if pidfd < 0 or containers.pid(started.container_id) != started.pid:
            if pidfd >= 0:
                os.close(pidfd)
            said = containers.last_words(started.container_id)
            containers.remove(started.container_id)
            raise LaunchError(f"container {started.name} ended as soon as it was started{said}")
        return Rank(started.container_id, started.name, image_id, started.pid, pidfd)

    def _gpu(self) -> gpu_ways.Request:
        try:
            return gpu_ways.of(self._host)
        except DockerUnreadableError as error:
            raise LaunchError(f"docker can't be asked for its way to the GPU: {error}") from None

    def remove(self, rank: Rank) -> None:
        """Remove an ended rank's container; without docker it stays, and the next preflight removes it."""
        if docker.running(self._host):
            containers = self.containers
            self._pulse.beside(lambda: containers.remove(rank.container_id), REMOVE_SECONDS, "docker")

    def prune_caches(self, image_id: str) -> Iterator[Pruned]:
        """Remove caches of images not used for longest, one by one. Takes minutes. Raises OSError."""
        mounted = (one.target for one in mounts.table(self._host.files, "self"))
        return caches.prune(image_id, mounted)

    def give_back(self, shard: Shard, still: Callable[[], bool]) -> int:
        """Drop a shard's page cache for as long as `still`; gives how much. Raises OSError, ValueError."""
        return page_cache.give_back(self._host, shard, still)

    def lower_readahead(self, folder: str, kib: int) -> readahead.Change | None:
        """Of the disk that holds a folder; None where nothing changes. Raises OSError, ValueError."""
        return readahead.lower(self._host, folder, kib, RUN / readahead.FILE)

    def restore_readahead(self) -> readahead.Change | None:
        """Give back what was taken, by an earlier agent too; None where nothing was. Raises OSError."""
        return readahead.restore(self._host, RUN / readahead.FILE)

    def write_state(self, name: str, text: str) -> None:
        """A file in /var/lib/sparkd that survives a power cut. Raises OSError."""
        # Beside the main loop: fsync waits for other programs' writes too.
        self._pulse.beside(
            lambda: files.write(STATE / name, text, 0o644, durable=True), WRITE_SECONDS, f"writing {name}"
        )

    def remove_state(self, name: str) -> bool:
        """Whether there was one; it stays away also after a power cut. Raises OSError."""
        return self._pulse.beside(lambda: files.remove(STATE / name), WRITE_SECONDS, f"removing {name}")

    def write_run(self, name: str, text: str) -> None:
        """A file in /run/sparkd that anybody may read. Raises OSError."""
        files.write(RUN / name, text, 0o644, durable=False)
