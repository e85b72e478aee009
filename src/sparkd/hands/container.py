"""Containers, changed. The only home of the docker SDK."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit
from msgspec import Struct

from sparkd.errors import LaunchError
from sparkd.hands import caches
from sparkd.host.docker import SOCKET
from sparkd.host.docker_image import way_to_get
from sparkd.host.gpu_ways import CDI_KIND, Request
from sparkd.host.harmless import harmless
from sparkd.launch.ray import TOKEN_FILE, TOKEN_TARGET
from sparkd.launch.script import SCRIPT_TARGET, SECRETS_TARGET, USER_SCRIPT_TARGET

if TYPE_CHECKING:
    from sparkd.launch.plan import LaunchPlan

TIMEOUT_SECONDS = 120
"""Docker's own answer to create and start: a first start after boot on a loaded machine takes tens of seconds."""
LOG_LIMITS = {"max-size": "20m", "max-file": "5"}
FAILED = (DockerException, OSError)
"""What the SDK raises. A connection refused or timed out comes as requests' own errors, which are OSErrors."""


class Started(Struct, frozen=True):
    container_id: str
    name: str
    pid: int
    """Of the container's init, in the host's namespace; 0 where it has ended already."""


class Containers:
    """Docker's engine, for acting. Reading is `host.docker`'s."""

    def __init__(self) -> None:
        try:
            self._docker = docker.DockerClient(base_url=f"unix://{SOCKET}", timeout=TIMEOUT_SECONDS)
        except FAILED as error:
            raise LaunchError(f"docker does not answer: {error}", "look at: systemctl status docker") from None

    def image_id(self, ref: str) -> str:
        """Full id of a local image. sparkd pulls nothing at a start: an image that changes by itself is drift."""
        try:
            return str(self._docker.images.get(ref).id)
        except ImageNotFound:
            raise LaunchError(f"image {ref} is not on this node", way_to_get(ref)) from None
        except FAILED as error:
            raise LaunchError(f"image {ref} can't be looked up: {_reason(error)}") from None

    def start(
        self, plan: LaunchPlan, image_id: str, script: Path, labels: dict[str, str], gpu: Request | None
    ) -> Started:
        """Create and start the rank's container, under docker's default restart policy `no`. Raises LaunchError."""
        name = f"sparkd-rank{plan.node.rank}"
        try:
            container = self._docker.containers.create(
                image_id,
                command=[SCRIPT_TARGET],
                entrypoint=["/bin/bash"],
                name=name,
                labels=labels,
                network_mode=plan.container.network,
                ipc_mode=plan.container.ipc,
                privileged=plan.container.privileged,
                init=plan.container.init,
                shm_size=plan.container.shm_bytes,
                mem_limit=plan.container.memory_limit_bytes,
                ulimits=[Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in plan.container.ulimits],
                devices=[f"{path}:{path}:rwm" for path in plan.container.devices],
                device_requests=device_requests(gpu),
                runtime="nvidia" if gpu is Request.RUNTIME else None,
                environment={"NVIDIA_VISIBLE_DEVICES": "all"} if gpu is Request.RUNTIME else None,
                mounts=_mounts(plan, image_id, script),
                log_config=LogConfig(type="local", config=LOG_LIMITS),
                # Proxies of root's docker configuration would be in the container and not in the plan.
                use_config_proxy=False,
                detach=True,
            )
        except FAILED as error:
            raise LaunchError(f"container {name} can't be made: {_reason(error)}") from None
        try:
            container.start()
            container.reload()
        except FAILED as error:
            self.remove(str(container.id))
            raise LaunchError(f"container {name} can't be started: {_reason(error)}") from None
        return Started(str(container.id), name, int(container.attrs["State"]["Pid"]))

    def pid(self, container_id: str) -> int:
        """Of the container's init; 0 where it has ended."""
        try:
            return int(self._docker.containers.get(container_id).attrs["State"]["Pid"])
        except FAILED as error:
            raise LaunchError(f"container {container_id[:12]} can't be looked at: {_reason(error)}") from None

    def last_words(self, container_id: str) -> str:
        """`: ` and the first line that a container wrote which ended at once; empty where it wrote none."""
        try:
            log = self._docker.containers.get(container_id).logs(tail=200)
        except FAILED:
            return ""
        lines = log.decode("utf-8", "replace").splitlines()
        return f": {harmless(lines[0], 300)}" if lines else ""

    def stop(self, container_id: str, grace_seconds: int) -> None:
        """SIGTERM, grace, SIGKILL; gone is fine."""
        try:
            self._docker.containers.get(container_id).stop(timeout=grace_seconds)
        except NotFound:
            return
        except FAILED as error:
            raise LaunchError(f"container {container_id[:12]} can't be stopped: {_reason(error)}") from None

    def remove(self, container_id: str) -> None:
        """Remove, killing it if it still runs; gone is fine."""
        try:
            # Not by way of containers.get: docker can't describe each container that it can remove.
            self._docker.api.remove_container(container_id, force=True)
        except NotFound:
            return
        except FAILED as error:
            if not (isinstance(error, APIError) and error.status_code == 409):  # another removal is under way
                raise LaunchError(f"container {container_id[:12]} can't be removed: {_reason(error)}") from None


def device_requests(gpu: Request | None) -> list[DeviceRequest]:
    match gpu:
        case Request.GPUS:
            return [DeviceRequest(count=-1, capabilities=[["gpu"]])]
        case Request.DEVICE:
            return [DeviceRequest(driver="cdi", device_ids=[f"{CDI_KIND}=all"])]
        case Request.RUNTIME | None:
            return []
        case _:
            assert_never(gpu)


def _mounts(plan: LaunchPlan, image_id: str, script: Path) -> list[Mount]:
    bind = [(str(script), SCRIPT_TARGET, True)]
    bind += [(mount.source, mount.target, mount.read_only) for mount in plan.container.mounts]
    bind += [(str(caches.folder(image_id, cache.name)), cache.target, False) for cache in plan.caches]
    bind += [(secret.file, f"{SECRETS_TARGET}/{secret.name}", True) for secret in plan.secrets]
    if plan.on_ray:
        bind.append((str(script.with_name(TOKEN_FILE)), TOKEN_TARGET, True))
    if plan.user_script:
        bind.append((plan.user_script, USER_SCRIPT_TARGET, True))
    # A mount, unlike a volume, fails on a missing source instead of making an empty folder as root.
    return [Mount(target=target, source=source, type="bind", read_only=read_only) for source, target, read_only in bind]


def _reason(error: Exception) -> str:
    text = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
    return " ".join(str(text).split())
