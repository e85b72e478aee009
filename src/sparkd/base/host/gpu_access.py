"""How a container of this machine gets the GPU: by the runtime nvidia, the toolkit's hook, or a CDI specification."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.base.host import docker
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.base.host import Host
    from sparkd.base.host.files import Files

RUNTIME = "the runtime nvidia"
HOOK = "nvidia-container-runtime-hook"
HOOK_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin", "/usr/local/nvidia/toolkit", "/snap/bin")
CDI_KIND = "nvidia.com/gpu"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"

_GPU_KIND = re.compile(rb"""\bkind["']?\s*:\s*["']?%s(?![\w./-])""" % re.escape(CDI_KIND.encode()))
"""The kind in JSON or YAML. management.nvidia.com/gpu of NVIDIA's Kubernetes operator is another kind."""


class DockerEngine(Struct, frozen=True):
    version: str
    runtimes: tuple[str, ...]
    cdi_folders: tuple[str, ...]
    """Folders of CDI specifications; empty before Docker 25, which was the first to read them."""
    may_keep: bool
    """Whether its restart ends the containers, and live-restore would keep them. A node of a swarm can't have that."""


class GpuAccess(Enum):
    """How a container gets the GPU, as options of `docker run`."""

    GPUS = "--gpus all"
    DEVICE = f"--device {CDI_KIND}=all"
    RUNTIME = "--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=all"


def read_engine(reader: DockerReader) -> DockerEngine:
    """What this dockerd is. Raises DockerError."""
    match reader.version(), reader.info():
        case {"Version": str(version)}, {"Runtimes": dict(runtimes), **info}:
            names = tuple(sorted(sanitize(str(name), 40) for name in runtimes))
            folders = info.get("CDISpecDirs")
            cdi = tuple(map(str, folders)) if isinstance(folders, list) else ()
            return DockerEngine(sanitize(version, 40), names, cdi, _may_keep_containers(info))
    raise DockerError("docker does not say its version and its runtimes")


def _may_keep_containers(info: Mapping[object, object]) -> bool:
    match info:
        case {"LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": "" | "inactive"}}:
            return True
    return False


def find_ways(files: Files, engine: DockerEngine) -> tuple[str, ...]:
    """Everything installed that gives a container the GPU: the runtime, the hook, CDI specifications. One is enough."""
    runtime = [RUNTIME] if "nvidia" in engine.runtimes else []
    hooks = [path for folder in HOOK_FOLDERS if files.exists(path := f"{folder}/{HOOK}")][:1]
    if hooks and _read_toolkit_mode(files) not in ("", "auto", "legacy"):  # in others the hook refuses --gpus
        hooks = []
    return (*runtime, *hooks, *_find_specifications(files, engine.cdi_folders)[:1])


def choose_access(ways: tuple[str, ...]) -> GpuAccess:
    """The option that is known to work with what `find_ways` has returned.

    The hook comes first: machines ship with it. A runtime without a hook belongs to a toolkit that relies on CDI; a
    specification that docker reads itself works whatever the runtime's mode and version. Where nothing was found,
    docker reports what is missing.
    """
    if any(way.endswith(HOOK) for way in ways):
        return GpuAccess.GPUS
    if any(way != RUNTIME for way in ways):
        return GpuAccess.DEVICE
    return GpuAccess.RUNTIME if ways else GpuAccess.GPUS


def read_access(host: Host) -> GpuAccess:
    """How a container of this machine gets the GPU. Raises DockerError."""
    engine = docker.query(host, read_engine)
    return choose_access(find_ways(host.files, engine) if engine else ())


def _read_toolkit_mode(files: Files) -> str:
    import tomllib

    with suppress(OSError, ValueError, RecursionError):
        match tomllib.loads(files.text(TOOLKIT, limit=64 << 10)):
            case {"nvidia-container-runtime": {"mode": str(mode)}}:
                return mode
    return ""


def _find_specifications(files: Files, folders: tuple[str, ...]) -> list[str]:
    """CDI files of the GPU. What is unreadable (a link to nothing, a file that is being replaced) is left out."""
    paths: list[str] = []
    for folder in folders:
        with suppress(OSError):
            paths += [f"{folder}/{name}" for name in files.names(folder)]
    specifications = []
    for path in paths:
        with suppress(OSError):
            # nvidia-ctk sorts keys: the kind may be the last line, behind all files of the driver.
            if path.endswith((".json", ".yaml", ".yml")) and _GPU_KIND.search(files.head(path, 4 << 20)):
                specifications.append(path)
    return specifications
