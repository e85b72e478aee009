"""The ways in which this machine's docker gives a container the GPU, and which of them a container is made by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from sparkd.host import docker, docker_engine

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.docker_engine import Engine
    from sparkd.host.files import Files

RUNTIME = "the runtime nvidia"
HOOK = "nvidia-container-runtime-hook"
HOOK_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin", "/usr/local/nvidia/toolkit", "/snap/bin")
CDI_KIND = "nvidia.com/gpu"
SPEC_LIMIT_BYTES = 4 << 20
"""The kind may be a specification's last line (nvidia-ctk has sorted its keys), behind every file of the driver."""
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
TOOLKIT_LIMIT_BYTES = 64 << 10
TAKEN_BY_HOOK = ("", "auto", "legacy")
"""Modes of the toolkit in which its hook does not refuse --gpus."""

_OF_THE_GPU = re.compile(rb"""\bkind["']?\s*:\s*["']?%s(?![\w./-])""" % re.escape(CDI_KIND.encode()))
"""In JSON or YAML. management.nvidia.com/gpu, of NVIDIA's operator for Kubernetes, is another kind."""


class Request(Enum):
    """How a container asks for the GPU, in the words of `docker run`."""

    GPUS = "--gpus all"
    DEVICE = f"--device {CDI_KIND}=all"
    RUNTIME = "--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=all"


def read(files: Files, engine: Engine) -> tuple[str, ...]:
    """Every way that is installed. One is enough."""
    found = [RUNTIME] if "nvidia" in engine.runtimes else []
    hooks = (f"{folder}/{HOOK}" for folder in HOOK_FOLDERS)
    found += [path for path in hooks if files.exists(path) and _mode(files) in TAKEN_BY_HOOK][:1]
    return (*found, *list(_specifications(files, engine.cdi_folders))[:1])


def request(ways: tuple[str, ...]) -> Request:
    """The one that is known to work with these. Pure.

    The hook first: it is what machines come with. A runtime without a hook is one of a toolkit that relies on CDI, and
    where docker reads the specification itself, nothing depends on the runtime's own mode and version. Where nothing
    was seen, docker says what it lacks.
    """
    if any(way.endswith(HOOK) for way in ways):
        return Request.GPUS
    if any(way != RUNTIME for way in ways):
        return Request.DEVICE
    return Request.RUNTIME if ways else Request.GPUS


def of(host: Host) -> Request:
    """How a container of this machine asks for the GPU. Raises DockerUnreadableError."""
    engine = docker.asked(host, docker_engine.read)
    return request(read(host.files, engine) if engine else ())


def _mode(files: Files) -> str:
    """What its administrator has set the toolkit to; empty where that can't be told."""
    import tomllib

    with suppress(OSError, ValueError, RecursionError):
        match tomllib.loads(files.text(TOOLKIT, limit=TOOLKIT_LIMIT_BYTES)):
            case {"nvidia-container-runtime": {"mode": str(mode)}}:
                return mode
    return ""


def _specifications(files: Files, folders: tuple[str, ...]) -> Iterator[str]:
    """What can't be read (a link to nothing, a file that is being replaced) is no way, and takes none away."""
    for folder in folders:
        with suppress(OSError):
            paths = [f"{folder}/{name}" for name in files.names(folder) if name.endswith((".json", ".yaml", ".yml"))]
            yield from (path for path in paths if _is_of_the_gpu(files, path))


def _is_of_the_gpu(files: Files, path: str) -> bool:
    with suppress(OSError):
        return _OF_THE_GPU.search(files.head(path, SPEC_LIMIT_BYTES)) is not None
    return False
