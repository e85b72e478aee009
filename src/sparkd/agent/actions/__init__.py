"""The machine, changed: files written, processes ended, containers started and stopped. Reading is in host.

Read this file first: code that changes something gets `Actions`, of which one process holds one at a time. Other
packages start programs only: operators' hooks (daemon/hooks), what reads the stacks of a hung rank (engine/stacks),
and the memory guard, which ends a rank where its agent can't.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, assert_never

from msgspec.structs import replace

from sparkd.agent.actions import compile_caches, files, orphans, page_cache, processes, readahead
from sparkd.agent.actions.container_bodies import ASSERT_SECONDS, program_body, require_room, write_hosts, write_script
from sparkd.agent.actions.owner_lock import acquire_lock, complete_account, remove_account
from sparkd.agent.actions.rank_process import Rank
from sparkd.agent.actions.readahead import READAHEAD_FILE, ReadaheadChange
from sparkd.agent.actions.segments import unlink_segment
from sparkd.agent.actions.shared_folders import refuse_shared
from sparkd.agent.preflight import fixes
from sparkd.agent.preflight.fixes import Applied
from sparkd.base.host import caches, disks, docker, gpu_access
from sparkd.base.host.owner import HANDED, Handed, NodeOwner
from sparkd.base.lib.dockerd.reader import SOCKET, DockerError
from sparkd.base.lib.errors import LaunchError
from sparkd.base.plan.script import SCRIPT_FILE
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.state.container_owner import Whose, whose
from sparkd.base.state.file import FOLDER, STACKS, Content, StateFile
from sparkd.base.state.rank_record import RANK_FILE, RankStage, load_rank, read_rank

if TYPE_CHECKING:
    from sparkd.agent.actions.dockerd import Containers
    from sparkd.base.host import Host
    from sparkd.base.host.shm import File
    from sparkd.base.lib.main_loop import MainLoop
    from sparkd.base.plan.model import LaunchPlan
    from sparkd.base.state.history import Past, Row
    from sparkd.base.state.launch_history import End

T = TypeVar("T")

RUN = "/run/sparkd"
ACT_SECONDS = 60.0
"""Limit for docker, sync(2) and compaction. An operation that takes longer hangs."""
LAUNCH_SECONDS = 300.0
"""Limit for docker to make and start a container: minutes on a machine that has just booted."""
WRITE_SECONDS, SYNC_SECONDS = 10.0, 30.0
"""Limits for a write to /run or /var/lib/sparkd, and for the sync of all disks before a reboot."""
DISK_SECONDS = 10.0
"""Limit for the disk of the model, which may be a file server."""


class Actions:
    """Held from `acquire` to `release`."""

    def __init__(self, host: Host, loop: MainLoop, owner: NodeOwner, lock_fd: int) -> None:
        self.owner = owner
        self._host = host
        self._run, self._state = Path(host.files.real(RUN)), Path(host.files.real(FOLDER))
        self._loop = loop
        self._lock_fd = lock_fd

    @classmethod
    def acquire(cls, host: Host, loop: MainLoop, owner: NodeOwner, handed: Handed | None = None) -> Actions:
        """Raises BlockedError (exit 10) naming another owner."""
        return cls(host, loop, owner, acquire_lock(host, owner, handed))

    def hand_on(self) -> dict[str, str]:
        """The variable for the program that replaces this one."""
        os.set_inheritable(self._lock_fd, True)
        return {HANDED: f"{self._lock_fd} {self.owner.invocation}"}

    def release(self) -> None:
        remove_account(self._host)
        os.close(self._lock_fd)

    @cached_property
    def containers(self) -> Containers:
        """Docker's engine. Use it only while dockerd runs: a call on its socket starts it."""
        from sparkd.agent.actions.dockerd import Containers

        return Containers(self._host.files.real(SOCKET))

    def _act(self, work: Callable[[], T], seconds: float, what: str) -> T:
        """Do it beside the main loop, because it may hang. Whatever ends the run waits for its end or its deadline."""
        return self._loop.beside(work, seconds, what, shielded=True)

    def apply(self, fix: fixes.Fix) -> Applied:
        """Make one change, if what it was judged on still holds."""
        match fix:
            case fixes.EndProcess():
                return self._act(partial(processes.end_process, fix), ACT_SECONDS, "a process")
            case fixes.RemoveContainer():
                return self._remove_orphan(fix)
            case fixes.UnlinkSegment():
                return self._act(partial(unlink_segment, fix, self._host), ACT_SECONDS, "a look at who uses it")
            case fixes.DropPageCache():
                # Fixed here, since an earlier sync is awaited first.
                drop = partial(page_cache.drop_page_cache, self._host, time.monotonic() + ACT_SECONDS)
                return self._act(drop, ACT_SECONDS, "sync")
            case fixes.CompactMemory():
                return self._act(partial(self.compact_memory, fix), ACT_SECONDS, "compaction")
            case _:
                assert_never(fix)

    def _remove_orphan(self, fix: fixes.RemoveContainer) -> Applied:
        facts, known = self._act(lambda: (self._host.docker(), read_rank(self._host)), ACT_SECONDS, "docker")
        if not facts.known:
            return Applied("failed", facts.error or "docker is not running")
        container = facts.container(fix.container_id)
        if container is None:
            return Applied("stale", "gone already")
        if not container.ours or whose(container, self.owner, known) is not Whose.ORPHAN:
            return Applied("stale", "it is not an orphan of sparkd")
        try:
            self._act(partial(orphans.end_orphan, self._host, self.containers, container), ACT_SECONDS, "docker")
        except LaunchError as error:
            return Applied("failed", str(error))
        return Applied("applied", "stopped and removed")

    def launch(self, plan: LaunchPlan, labels: dict[str, str], ray_token: str = "") -> Rank:
        """Write the script and start the rank's container. Raises LaunchError."""
        containers = self.containers
        script = self._private_file(SCRIPT_FILE)
        write_script(script, plan, ray_token)

        def start() -> Rank:
            if plan.hosts:
                write_hosts(self._host.files, script, plan.hosts)
            try:
                gpu = gpu_access.read_access(self._host) if plan.container.gpus == "all" else None
            except DockerError as error:
                hint = "look at: systemctl status docker"
                raise LaunchError(f"docker does not report its GPU support: {error}", hint) from None
            return containers.start(plan, script, labels, gpu)

        rank = self._act(start, LAUNCH_SECONDS, "docker")
        rank.watch(self._loop)
        return rank

    def _private_file(self, path: str) -> Path:
        """A file in a folder of root's below /run."""
        file = Path(self._host.files.real(path))
        refuse_shared(file.parent)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return file

    def require_run_room(self) -> None:
        """Prove that /run has room for a launch; then the account is there, too. Raises OSError."""
        folder = self._private_file(RANK_FILE.path).parent
        self._act(partial(require_room, folder), WRITE_SECONDS, "a write to /run")
        # Beside the loop also the look at this process, which the loop's thread may not do.
        self._act(partial(complete_account, self._host, self.owner), WRITE_SECONDS, "a write to /run")

    def write_private(self, path: str, text: str) -> None:
        """Write a file in /run for root alone; also called by the thread that reads the rank's log. Raises OSError."""
        files.write(self._private_file(path), text, 0o600, durable=False)

    def forget_rank(self) -> None:
        """Remove the record of a rank whose container is gone. Raises OSError."""
        self._act(partial(orphans.forget_rank, self._host), WRITE_SECONDS, "the record of the rank")

    def disown_rank(self) -> str:
        """Make a rank that this process does not take over nobody's, also where it was its own before a reload.

        A malformed record is renamed, since this process has the lock: no other one has a rank. Returns its fault.
        """
        fault = ""
        with suppress(OSError):  # then preflight blocks
            known = load_rank(self._host)
            if fault := known.error:
                path = Path(self._host.files.real(RANK_FILE.path))
                path.replace(path.with_name(f"{path.name}.broken"))
            elif known.record is not None and known.record.stage is RankStage.READY:
                record = replace(known.record, stage=RankStage.ENDING, invocation="")
                self.write_private(RANK_FILE.path, RANK_FILE.encode(record))
        return fault

    def check_asserts(
        self, plan: LaunchPlan, image_id: str, program: str, labels: dict[str, str], more_seconds: int = 0
    ) -> tuple[int, str]:
        """Exit code and log of the plan's assertions on an image, and of what takes `more_seconds` after them.

        Raises LaunchError, TimeoutError, StopRequested.
        """
        containers = self.containers
        # Under the rank's name, by which a sweep finds it.
        body, name = program_body(image_id, program, labels), plan.container_name
        work = partial(containers.run_program, body, name, ASSERT_SECONDS + more_seconds)
        return self._loop.beside(work, LAUNCH_SECONDS + more_seconds + ACT_SECONDS, "docker")

    def remove(self, rank: Rank) -> bool:
        """Remove an ended rank's container; without docker it stays, and the next preflight removes it."""

        def remove_container() -> bool:
            if not docker.running(self._host):
                return False
            self.containers.remove(rank.container_id)
            return True

        return self._act(remove_container, 15.0, "docker")

    def prune_caches(self, image_id: str) -> Iterator[tuple[str, str]]:
        """Remove caches of images not used for longest, one by one. Takes minutes. Raises OSError."""
        root, mounts = Path(self._host.files.real(caches.ROOT)), disks.read_mounts(self._host.files, "self")
        return compile_caches.prune_caches(image_id, (mount.target for mount in mounts), root)

    def keep_images(
        self, named: Sequence[str], pinned: Sequence[str], before: Collection[str]
    ) -> Iterator[tuple[str, bool]]:
        """`images.keep_images`, for a thread of its own; nothing while docker is away. Raises DockerError."""
        from sparkd.agent.actions import images

        if docker.running(self._host):
            yield from images.keep_images(named, pinned, before, self._host.files.real(SOCKET))

    def drop_page_cache(self) -> Applied:
        """Blocks for as long as the disks take: runs in a thread of its own."""
        return page_cache.drop_page_cache(self._host)

    def drop_file_cache(self, shard: File, should_continue: Callable[[], bool]) -> int:
        """Drop a shard's page cache while `should_continue` holds; returns its bytes. Raises OSError, ValueError."""
        return page_cache.drop_file_cache(self._host, shard, should_continue)

    def set_held(self, container_id: str, key: tuple[int, int], held: bool) -> bool:
        """Stop, or continue, the container's process of that id and start time. Returns whether it was there."""
        return processes.signal_process(signal.SIGSTOP if held else signal.SIGCONT, *key, container_id)

    def compact_memory(self, fix: fixes.CompactMemory) -> Applied:
        """Blocks for seconds: runs in a thread of its own. Raises OSError, ValueError where it cannot look."""
        return page_cache.compact_memory(self._host, fix)

    def lower_readahead(self, folder: str, kib: int) -> ReadaheadChange | None:
        """Lower the readahead of the disk of `folder`; None where nothing changes. Raises OSError, ValueError."""
        work = partial(readahead.lower_readahead, self._host, folder, kib, self._run / READAHEAD_FILE)
        return self._act(work, DISK_SECONDS, f"looking at the disk of {folder}")

    def restore_readahead(self) -> ReadaheadChange | None:
        """Restore it, also after an earlier agent; None where nothing was lowered. Raises OSError."""
        return readahead.restore_readahead(self._host, self._run / READAHEAD_FILE)

    def write_state(self, name: str, text: str, mode: int) -> None:
        """Write a file in /var/lib/sparkd that survives a power cut. Raises OSError."""
        # Beside the main loop: fsync waits for other programs' writes too.
        write = partial(files.write, self._state / name, text, mode, durable=True)
        self._act(write, WRITE_SECONDS, f"writing {name}")

    def replace_head_files(self, wanted: Mapping[str, bytes]) -> None:
        """Let HEAD_FILES have these by name, and no others. Raises OSError."""
        self._act(partial(files.replace_head_files, self._host.files, wanted), WRITE_SECONDS, f"writing {HEAD_FILES}")

    def write_stacks(self, name: str, text: Callable[[], str]) -> str:
        """Write a text, which is made beside the main loop, to a file for root alone; its path. Raises OSError."""
        return self._act(partial(files.write_stacks, self._host.files, name, text), WRITE_SECONDS, f"writing {STACKS}")

    def compare_and_swap(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        """Write a file that people's commands write too, as `files.compare_and_swap` does."""
        work = partial(files.compare_and_swap, self._host.files, file, before, after)
        return self._act(work, WRITE_SECONDS, f"writing {file.name}")

    def write_history_row(self, row: Row) -> bool:
        """Write it to the history; True where a broken file was set aside. Raises OSError."""
        from sparkd.agent.actions import history

        return history.write(self._host.files, row)

    def close_and_read_past(self, end: End | None, recipe: str, rank: int) -> tuple[Past, bool]:
        """Give the open launches this end where that can be written, and read the history; and as `write_history_row`.

        `end` None: they are under way. Raises OSError where it can't be read.
        """
        from sparkd.agent.actions import history

        return history.close_and_read_past(self._host.files, end, recipe, rank)

    def sync_disks(self) -> None:
        """Raises TimeoutError where they hang."""
        self._act(os.sync, SYNC_SECONDS, "sync")

    def reboot(self) -> str:
        """Have systemd reboot this machine; why it does not, or nothing. Raises OSError."""
        return self._act(processes.reboot, processes.REBOOT_SECONDS + WRITE_SECONDS, "systemctl reboot")

    def write_run(self, name: str, text: str) -> None:
        """Write a file in /run/sparkd that anybody may read. Raises OSError."""
        files.write(self._run / name, text, 0o644, durable=False)
