"""Changes through dockerd: starts, stops and removes containers; saves an image to a file.

`base.host.docker` only reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from sparkd.agent.actions.compile_caches import make_cache_folder, remove_empty_kernels
from sparkd.agent.actions.files import sync_folder
from sparkd.agent.actions.processes import Rank
from sparkd.agent.actions.shared_folders import find_shared
from sparkd.base.host.docker_image import how_to_get
from sparkd.base.host.files import Files
from sparkd.base.host.gpu_access import CDI_KIND, GpuAccess
from sparkd.base.host.processes import read_process
from sparkd.base.lib.dockerd.client import SdkClient, docker_errors
from sparkd.base.lib.dockerd.reader import CONFLICT, MISSING, SOCKET, DockerError
from sparkd.base.lib.errors import BlockedError, Cause, LaunchError
from sparkd.base.lib.lock import try_lock
from sparkd.base.lib.text import GIB, sanitize
from sparkd.base.plan.script import (
    HOSTS_FILE,
    HOSTS_TARGET,
    RAY_TOKEN_FILE,
    SCRIPT_TARGET,
    SECRETS_TARGET,
    USER_SCRIPT_TARGET,
)
from sparkd.base.recipes.additions import RAY_TOKEN_TARGET

if TYPE_CHECKING:
    from sparkd.base.plan.model import LaunchPlan

TIMEOUT_SECONDS = 120.0
"""Limit for dockerd's answer to create and start: a first start after boot on a loaded machine takes tens of seconds.
"""
STREAM_SECONDS = 300.0
"""Limit for the beginning of an archive: dockerd gathers the layers of a large image first."""
CHUNK_BYTES = 4 << 20
LAST_LINES = 200
LESS: Mapping[str, object] = {
    # Capabilities of docker's default: with them a process in the node's network could sniff and forge packets, and
    # make devices, lines of the audit log and files with capabilities. RDMA needs none: its memory is locked by the
    # ulimit.
    "CapDrop": ["NET_RAW", "MKNOD", "AUDIT_WRITE", "SETFCAP", "SYS_CHROOT", "SETPCAP"],
    # Threads count. Room for a compile on 20 cores; a kernel of 64 bits gives up to 4,194,304 process ids.
    "PidsLimit": 65536,
}
"""What a rank that is not privileged lacks of docker's default rights."""
PROGRAM_BYTES = 8 * GIB
ASSERT_SECONDS = 300
"""Limit for all assertions of a recipe: an import of torch from a cold disk takes up to a minute."""
GPU_REQUESTS: Mapping[GpuAccess | None, Mapping[str, object]] = {
    None: {},
    GpuAccess.GPUS: {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]},
    # As `docker run` sends it: a request of driver cdi may have no count (moby, daemon/cdi.go).
    GpuAccess.DEVICE: {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}=all"]}]},
    GpuAccess.RUNTIME: {"Runtime": "nvidia"},
}
_VISIBLE = {None: ("NVIDIA_VISIBLE_DEVICES=void",), GpuAccess.RUNTIME: ("NVIDIA_VISIBLE_DEVICES=all",)}


class Containers:
    """dockerd, for one thread at a time. It connects at the first call, and every method raises LaunchError."""

    def __init__(self, socket_path: str = SOCKET) -> None:
        self._call = SdkClient(socket_path, TIMEOUT_SECONDS).call

    def start(self, plan: LaunchPlan, script: Path, labels: dict[str, str], gpu: GpuAccess | None) -> Rank:
        """Create and start the rank's container, under docker's default restart policy `no`."""
        image_id = self._find_image_id(plan)
        name = f"sparkd-rank{plan.node.rank}"
        torn = sum(remove_empty_kernels(image_id, cache.name) for cache in plan.caches)
        body = create_body(plan, image_id, script, labels, gpu)
        container_id = self._create(body, name)
        with self._remove_on_error(container_id):
            with _as_launch_error(f"container {name} can't be started"):
                self._call(lambda api: api.start(container_id))
                rank = self._open_rank(container_id, name, image_id)
            if rank is None:
                raise LaunchError(
                    f"container {name} ended as soon as it was started{self._read_first_line(container_id)}"
                )
        rank.torn_kernels = torn
        return rank

    def run_program(self, body: Mapping[str, object], name: str, seconds: int) -> tuple[int, str]:
        """Run a container to its end and remove it. Returns its exit code and its log."""
        container_id = self._create(body, name)
        with self._remove_on_error(container_id), _as_launch_error(f"container {name} can't be run to its end"):
            self._call(lambda api: api.start(container_id))
            exit_status = self._call(lambda api: api.wait(container_id, timeout=seconds), seconds)
            log = self._call(lambda api: api.logs(container_id, tail=LAST_LINES))
        self.remove(container_id)
        return int(exit_status["StatusCode"]), log.decode("utf-8", "replace")

    @contextmanager
    def _remove_on_error(self, container_id: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(LaunchError):  # the next preflight, or check of a build, removes it
                self.remove(container_id)
            raise

    def _create(self, body: Mapping[str, object], name: str) -> str:
        with _as_launch_error(f"container {name} can't be made"):
            return self._call(lambda api: str(api.create_container_from_config(body, name)["Id"]))

    def _find_image_id(self, plan: LaunchPlan) -> str:
        """Full id of a local image. sparkd pulls nothing at a start: an image that changes by itself is drift."""
        ref = plan.image_to_run
        try:
            return self._call(lambda api: str(api.inspect_image(ref)["Id"]))
        except DockerError as error:
            if error.status == MISSING:
                reason = f"image {ref} is not on this node"
                raise LaunchError(reason, how_to_get(ref, plan.image_build), cause=Cause.IMAGE_MISSING) from None
            raise LaunchError(f"image {ref} can't be looked up: {error}", "look at: systemctl status docker") from None

    def _open_rank(self, container_id: str, name: str, image_id: str) -> Rank | None:
        """The rank, with a pidfd of the container's init; None where that has ended already."""
        pid, _ = self._read_state(container_id)
        if pid > 1:
            with suppress(ProcessLookupError), ExitStack() as cleanup:
                pidfd = os.pidfd_open(pid)
                cleanup.callback(os.close, pidfd)
                process = read_process(Files(), pid)
                # Read again with the pidfd open: if the pid is still the container's, so is the pidfd, for good.
                pid_again, started_at = self._read_state(container_id)
                if pid_again == pid:
                    cleanup.pop_all()
                    start_time = process.start_time if process is not None else 0
                    return Rank(container_id, name, image_id, pid, pidfd, start_time, started_at)
        return None

    def _read_state(self, container_id: str) -> tuple[int, str]:
        """The pid of its init in the host's namespace, 0 where that has ended; and when it was started."""
        state = self._call(lambda api: api.inspect_container(container_id)["State"])
        return int(state["Pid"]), str(state.get("StartedAt", ""))

    def _read_first_line(self, container_id: str) -> str:
        """The first line of a container's log after `: `; empty where there is none."""
        try:
            log = self._call(lambda api: api.logs(container_id, tail=LAST_LINES))
        except DockerError:
            return ""
        lines = log.decode("utf-8", "replace").splitlines()
        return f": {sanitize(lines[0], 300)}" if lines else ""

    def stop(self, container_id: str, grace_seconds: int) -> None:
        """Stop it by SIGTERM, grace, SIGKILL. One that is gone is no error."""
        with _as_launch_error(f"container {container_id[:12]} can't be stopped", MISSING):
            self._call(lambda api: api.stop(container_id, timeout=grace_seconds), TIMEOUT_SECONDS + grace_seconds)

    def remove(self, container_id: str) -> None:
        """Remove it, running or not. One that is gone, or that another call is removing, is no error.

        The volumes that docker makes of an image's VOLUME, a copy of its files for each container, go with it.
        """
        with _as_launch_error(f"container {container_id[:12]} can't be removed", MISSING, CONFLICT):
            self._call(lambda api: api.remove_container(container_id, v=True, force=True))


@contextmanager
def _as_launch_error(what: str, *harmless: int) -> Iterator[None]:
    """Raise LaunchError in place of DockerError. `harmless`: HTTP statuses that are no error."""
    try:
        yield
    except DockerError as error:
        if error.status not in harmless:
            raise LaunchError(f"{what}: {error}", "see why: sudo journalctl -u docker -e") from None


def create_body(
    plan: LaunchPlan, image_id: str, script: Path, labels: dict[str, str], gpu: GpuAccess | None
) -> dict[str, object]:
    """The body of POST /containers/create for a plan. The restart policy is docker's default, `no`."""
    container = plan.container
    return {
        "Image": image_id,
        "Entrypoint": ["/bin/bash"],
        "Cmd": [SCRIPT_TARGET],
        "Labels": labels,
        "Env": [*_VISIBLE.get(gpu, ())] if gpu else [],
        "HostConfig": {
            "NetworkMode": container.network,
            "IpcMode": container.ipc,
            "Privileged": container.privileged,
            "SecurityOpt": ["no-new-privileges"] if container.keeps_rights else [],
            **({} if container.privileged else LESS),
            "Init": container.init,
            "ShmSize": container.shm_size_bytes or 0,
            "Memory": container.memory_limit_bytes or 0,
            "Ulimits": [
                {"Name": name, "Soft": limit.soft, "Hard": limit.hard} for name, limit in container.limits.items()
            ],
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in container.devices
            ],
            # A mount, unlike a volume, fails on a missing source instead of making an empty folder as root.
            "Mounts": [
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
                for source, target, read_only in _list_mounts(plan, image_id, script)
            ],
            "LogConfig": {"Type": "local", "Config": {"max-size": "20m", "max-file": "5"}},
            **GPU_REQUESTS[gpu],
        },
    }


def program_body(
    image_id: str, program: str, labels: dict[str, str], gpu: GpuAccess | None = None
) -> dict[str, object]:
    """The body for bash in a container with less than a rank's: no network, no capabilities, a read-only root, and no
    GPU where `gpu` is None.

    HOME is writable, because libraries make caches there when they are imported. It is mounted with exec, which is not
    docker's default for a tmpfs, because some libraries compile there what they then load.
    """
    return {
        "Image": image_id,
        "Entrypoint": ["/bin/bash"],
        "Cmd": ["-c", program],
        "Labels": labels,
        # `void` keeps nvidia's runtime, if it is docker's default, from adding a GPU. --gpus sets it by itself.
        "Env": ["HOME=/tmp", *_VISIBLE.get(gpu, ())],
        "NetworkDisabled": True,
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "private",
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "size=268435456,exec"},  # noqa: S108  # the container's own
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 512,
            "Memory": PROGRAM_BYTES,
            "MemorySwap": PROGRAM_BYTES,
            "Init": True,
            "LogConfig": {"Type": "local", "Config": {"max-size": "1m", "max-file": "1", "compress": "false"}},
            **GPU_REQUESTS[gpu],
        },
    }


def _list_mounts(plan: LaunchPlan, image_id: str, script: Path) -> Iterator[tuple[str, str, bool]]:
    """Each mount's source, target, and whether it is read-only."""
    yield str(script), SCRIPT_TARGET, True
    for mount in plan.container.volumes:
        yield mount.source, mount.target, mount.read_only
    if plan.hosts and not any(normpath(mount.target) == HOSTS_TARGET for mount in plan.container.volumes):
        # Not HostConfig.ExtraHosts: with it, docker leaves out what the node's own file has, such as the node's name.
        yield str(script.with_name(HOSTS_FILE)), HOSTS_TARGET, True
    for cache in plan.caches:
        yield str(make_cache_folder(image_id, cache.name)), cache.target, False
    for secret in plan.secrets:
        yield secret.file, f"{SECRETS_TARGET}/{secret.name}", True
    if plan.on_ray:
        yield str(script.with_name(RAY_TOKEN_FILE)), RAY_TOKEN_TARGET, True
    if plan.user_script:
        yield plan.user_script, USER_SCRIPT_TARGET, True


@contextmanager
def lock_scratch(folder: Path) -> Iterator[None]:
    """Allow one copy at a time: two would write and remove the same file. Raises BlockedError."""
    if writable := find_shared(folder):
        raise BlockedError(
            f"others than root may write to {writable}, on the way to {folder}", "sudo -H sparkd image sync"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BlockedError(f"{folder}: {error.strerror}", f"ls -ld {folder}") from None
    try:
        # The lock is on the folder itself: a lock file would be left behind. On NFS no folder can be locked.
        with suppress(OSError):
            if not try_lock(fd):
                raise BlockedError("another `sparkd image sync` is under way here", "let it end first")
        yield
    finally:
        os.close(fd)


def save(ref: str, file: Path, received: Callable[[int], None]) -> None:
    """Save an image for `docker load`, whole or not at all. `received` gets each piece's size. Raises BlockedError."""
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as archive:
            for piece in read_archive(ref):
                archive.write(piece)
                received(len(piece))
            archive.flush()
            os.fsync(archive.fileno())
        part.replace(file)
        sync_folder(file.parent)
    except (DockerError, OSError) as error:
        reason = f"{ref} can't be written to {file}: {sanitize(str(error))}"
        raise BlockedError(reason, f"df -h {file.parent}") from None
    finally:
        part.unlink(missing_ok=True)


def read_archive(ref: str, socket_path: str = SOCKET) -> Iterator[bytes]:
    """An image's archive, as `docker load` reads it, in pieces. Raises DockerError."""
    client = SdkClient(socket_path, STREAM_SECONDS)
    client.call(lambda api: api.inspect_image(ref))  # finds the API version, which a stream can't, and a missing image
    with docker_errors(STREAM_SECONDS):
        yield from client.call(lambda api: api.get_image(ref, chunk_size=CHUNK_BYTES))
