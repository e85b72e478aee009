"""The rank's container: its plan in docker's terms, and what is done to it. Reading is `host.docker`'s."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct

from sparkd.errors import LaunchError
from sparkd.hands import caches
from sparkd.host.docker_image import way_to_get
from sparkd.host.gpu_ways import CDI_KIND, Request
from sparkd.launch.ray import TOKEN_FILE, TOKEN_TARGET
from sparkd.launch.script import SCRIPT_TARGET, SECRETS_TARGET, USER_SCRIPT_TARGET
from sparkd.lib.dockerd.engine import DockerEngine
from sparkd.lib.dockerd.reader import MISSING, SOCKET, DockerError
from sparkd.lib.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkd.launch.plan import LaunchPlan

LOG_LIMITS = {"max-size": "20m", "max-file": "5"}
LAST_LINES = 200


class Started(Struct, frozen=True):
    container_id: str
    name: str
    pid: int
    """Of the container's init, in the host's namespace; 0 where it has ended already."""


class Containers:
    """Every method raises LaunchError."""

    def __init__(self, socket_path: str = SOCKET) -> None:
        self._engine = DockerEngine(socket_path)

    def image_id(self, ref: str) -> str:
        """Full id of a local image. sparkd pulls nothing at a start: an image that changes by itself is drift."""
        try:
            return self._engine.image_id(ref)
        except DockerError as error:
            if error.status == MISSING:
                raise LaunchError(f"image {ref} is not on this node", way_to_get(ref)) from None
            raise LaunchError(f"image {ref} can't be looked up: {error}", "look at: systemctl status docker") from None

    def start(
        self, plan: LaunchPlan, image_id: str, script: Path, labels: dict[str, str], gpu: Request | None
    ) -> Started:
        """Create and start the rank's container, under docker's default restart policy `no`."""
        name = f"sparkd-rank{plan.node.rank}"
        with _launch_error(f"container {name} can't be made"):
            container_id = self._engine.create(name, create_body(plan, image_id, script, labels, gpu))
        try:
            with _launch_error(f"container {name} can't be started"):
                self._engine.start(container_id)
                return Started(container_id, name, self._engine.pid(container_id))
        except LaunchError:
            self.remove(container_id)
            raise

    def pid(self, container_id: str) -> int:
        """Of the container's init; 0 where it has ended."""
        with _launch_error(f"container {container_id[:12]} can't be looked at"):
            return self._engine.pid(container_id)

    def last_words(self, container_id: str) -> str:
        """`: ` and the first line that a container wrote which ended at once; empty where it wrote none."""
        try:
            log = self._engine.log_tail(container_id, LAST_LINES)
        except DockerError:
            return ""
        lines = log.decode("utf-8", "replace").splitlines()
        return f": {sanitize(lines[0], 300)}" if lines else ""

    def stop(self, container_id: str, grace_seconds: int) -> None:
        """SIGTERM, grace, SIGKILL; gone is fine."""
        with _launch_error(f"container {container_id[:12]} can't be stopped"):
            self._engine.stop(container_id, grace_seconds)

    def remove(self, container_id: str) -> None:
        """Remove, killing it if it still runs; gone is fine."""
        with _launch_error(f"container {container_id[:12]} can't be removed"):
            self._engine.remove(container_id)


@contextmanager
def _launch_error(what: str) -> Iterator[None]:
    try:
        yield
    except DockerError as error:
        raise LaunchError(f"{what}: {error}") from None


def create_body(
    plan: LaunchPlan, image_id: str, script: Path, labels: dict[str, str], gpu: Request | None
) -> dict[str, object]:
    """The plan as docker's API has it: the body of POST /containers/create. The restart policy is its default, `no`."""
    wanted = plan.container
    runtime = gpu is Request.RUNTIME
    return {
        "Image": image_id,
        "Entrypoint": ["/bin/bash"],
        "Cmd": [SCRIPT_TARGET],
        "Labels": labels,
        "Env": ["NVIDIA_VISIBLE_DEVICES=all"] if runtime else [],
        "HostConfig": {
            "NetworkMode": wanted.network,
            "IpcMode": wanted.ipc,
            "Privileged": wanted.privileged,
            "Init": wanted.init,
            "ShmSize": wanted.shm_bytes or 0,
            "Memory": wanted.memory_limit_bytes or 0,
            "Ulimits": [{"Name": one.name, "Soft": one.soft, "Hard": one.hard} for one in wanted.ulimits],
            "Devices": [
                {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in wanted.devices
            ],
            "DeviceRequests": device_requests(gpu),
            "Runtime": "nvidia" if runtime else "",
            # A mount, unlike a volume, fails on a missing source instead of making an empty folder as root.
            "Mounts": [
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
                for source, target, read_only in _mounts(plan, image_id, script)
            ],
            "LogConfig": {"Type": "local", "Config": LOG_LIMITS},
        },
    }


def device_requests(gpu: Request | None) -> list[dict[str, object]]:
    match gpu:
        case Request.GPUS:
            return [{"Count": -1, "Capabilities": [["gpu"]]}]
        case Request.DEVICE:
            return [{"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}=all"]}]
        case Request.RUNTIME | None:
            return []
        case _:
            assert_never(gpu)


def _mounts(plan: LaunchPlan, image_id: str, script: Path) -> Iterator[tuple[str, str, bool]]:
    """Source, target, whether it is read-only."""
    yield str(script), SCRIPT_TARGET, True
    for mount in plan.container.mounts:
        yield mount.source, mount.target, mount.read_only
    for cache in plan.caches:
        yield str(caches.folder(image_id, cache.name)), cache.target, False
    for secret in plan.secrets:
        yield secret.file, f"{SECRETS_TARGET}/{secret.name}", True
    if plan.on_ray:
        yield str(script.with_name(TOKEN_FILE)), TOKEN_TARGET, True
    if plan.user_script:
        yield plan.user_script, USER_SCRIPT_TARGET, True
