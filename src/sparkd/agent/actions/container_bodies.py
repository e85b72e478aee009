"""What docker creates a container from: bodies of its requests, and the files that a launch writes for the rank's.

A body is of a rank's container, or of one that runs a program with fewer rights.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from posixpath import normpath

from sparkd.agent.actions import files
from sparkd.agent.actions.compile_caches import make_cache_folder
from sparkd.base.host.files import Files
from sparkd.base.host.gpu_access import CDI_KIND, GpuAccess
from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.text import GIB
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.plan.script import (
    HOSTS_FILE,
    HOSTS_TARGET,
    RAY_TOKEN_FILE,
    SCRIPT_TARGET,
    SECRETS_TARGET,
    USER_SCRIPT_TARGET,
)
from sparkd.base.recipes.additions import RAY_TOKEN_TARGET

DROPPED_RIGHTS: Mapping[str, object] = {
    # Capabilities of docker's default: with them a process in the node's network could sniff and forge packets, and
    # make devices, lines of the audit log and files with capabilities. RDMA needs none: its memory is locked by the
    # ulimit.
    "CapDrop": ["NET_RAW", "MKNOD", "AUDIT_WRITE", "SETFCAP", "SYS_CHROOT", "SETPCAP"],
    # Threads count. Room for a compile on 20 cores; a kernel of 64 bits gives up to 4,194,304 process ids.
    "PidsLimit": 65536,
}
"""Rights of docker's default that a rank loses unless it is privileged."""
PROGRAM_BYTES = 8 * GIB
"""Memory of a container that runs a program, without swap."""
ASSERT_SECONDS = 300
"""Limit for all assertions of a recipe: an import of torch from a cold disk takes up to a minute."""
ROOM_BYTES = 1 << 20
"""Room for the files of a launch in /run: its script, plan and record have some 100 KB."""
HOSTS_LIMIT_BYTES = 64 << 20
"""Largest size of the node's own /etc/hosts: long lists of blocked names have some 10 MB."""
GPU_REQUESTS: Mapping[GpuAccess | None, Mapping[str, object]] = {
    None: {},
    GpuAccess.GPUS: {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]},
    # As `docker run` sends it: a request of driver cdi may have no count (moby, daemon/cdi.go).
    GpuAccess.DEVICE: {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}=all"]}]},
    GpuAccess.RUNTIME: {"Runtime": "nvidia"},
}
_VISIBLE = {None: ("NVIDIA_VISIBLE_DEVICES=void",), GpuAccess.RUNTIME: ("NVIDIA_VISIBLE_DEVICES=all",)}


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
            **({} if container.privileged else DROPPED_RIGHTS),
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


def require_room(folder: Path) -> None:
    """Prove that the folder, in /run, takes the files of a launch. Raises OSError."""
    proof = folder / "room"
    try:
        with proof.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, ROOM_BYTES)
    finally:
        with suppress(OSError):
            proof.unlink()


def write_script(script: Path, plan: LaunchPlan, ray_token: str) -> None:
    """Write the launch script, and beside it the token where the plan's ranks run on Ray.

    A container's user may be another than root, and reads the script; the token is for root alone. Raises OSError,
    SharedFolderError.
    """
    files.write(script, plan.script, 0o644, durable=False)
    if plan.on_ray:
        files.write(script.with_name(RAY_TOKEN_FILE), ray_token, 0o600, durable=False)


def write_hosts(host_files: Files, script: Path, names: Iterable[tuple[str, str]]) -> None:
    """Write /etc/hosts of the container beside the script: the node's own, as docker gives it to a container in the
    node's network, and these pairs of address and name.

    Raises LaunchError where the node's own can't be read; OSError.
    """
    node_content = b""
    try:
        with suppress(FileNotFoundError):
            node_content = host_files.bytes(HOSTS_TARGET, HOSTS_LIMIT_BYTES)
    except OSError as error:
        raise LaunchError(f"{HOSTS_TARGET} can't be read: {error.strerror}", f"ls -lL {HOSTS_TARGET}") from None
    line_end = b"" if not node_content or node_content.endswith(b"\n") else b"\n"
    added = "".join(f"{address} {name}\n" for address, name in names)
    files.write(script.with_name(HOSTS_FILE), node_content + line_end + added.encode(), 0o644, durable=False)
