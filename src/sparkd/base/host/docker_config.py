"""What this machine's docker is set to: its data folder, containers that outlive it, and access to the GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from sparkd.base.host import docker, processes
from sparkd.base.host.cgroups import Group
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.lib.text import parse_json, sanitize

if TYPE_CHECKING:
    from sparkd.base.host import Host
    from sparkd.base.host.files import Files

T = TypeVar("T")

DAEMON_JSON = "/etc/docker/daemon.json"
DATA_ROOT = "/var/lib/docker"
KEEP_CONTAINERS = (
    "sudo python3 -c 'import json, pathlib; "
    f'f = pathlib.Path("{DAEMON_JSON}"); f.parent.mkdir(exist_ok=True); n = f.with_suffix(".new"); '
    'd = json.loads(f.read_text()) if f.exists() else {}; d["live-restore"] = True; '
    "n.write_text(json.dumps(d, indent=4)); n.replace(f)' && sudo systemctl reload docker"
)
"""Turns live-restore on, without a restart, and leaves the file's other keys. One that is not valid stays as it is."""

RUNTIME = "the runtime nvidia"
HOOK = "nvidia-container-runtime-hook"
HOOK_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin", "/usr/local/nvidia/toolkit", "/snap/bin")
CDI_KIND = "nvidia.com/gpu"
SPEC_LIMIT_BYTES = 4 << 20
"""Read of a specification: its last line may be the kind, behind all files of the driver: nvidia-ctk sorts the keys."""
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
TAKEN_BY_HOOK = ("", "auto", "legacy")
"""Modes of the toolkit in which its hook does not refuse --gpus."""

_OF_THE_GPU = re.compile(rb"""\bkind["']?\s*:\s*["']?%s(?![\w./-])""" % re.escape(CDI_KIND.encode()))
"""The kind in JSON or YAML. management.nvidia.com/gpu of NVIDIA's Kubernetes operator is another kind."""


def read_data_root(host: Host) -> str:
    """Where dockerd keeps containers and images. A daemon.json that is not valid is ignored."""
    flags = _read_flags(host)
    path = _find_value(flags, "--data-root", _read_setting(host.files, flags, "data-root"))
    return path if isinstance(path, str) and path.startswith("/") else DATA_ROOT


def keeps_containers(host: Host) -> bool:
    """Whether dockerd was started with live-restore, by its arguments and its file. False where those can't be read.

    dockerd itself answers only after it has ended the containers that an earlier one left and it does not keep: 10 s.
    """
    flags = _read_flags(host)
    if "--live-restore" in flags or "--live-restore=true" in flags:
        return True
    return _read_setting(host.files, flags, "live-restore") is True


def find_other_pid_file(host: Host) -> str:
    """The file in which a system service's dockerd keeps its pid, if that is not docker's default; else empty.

    sparkd finds no such dockerd: a socket's name alone does not prove who listens, as a container's dockerd may.
    """
    for process in host.processes():
        with suppress(OSError, ValueError):
            details = host.details(process) if process.comm == "dockerd" else None
            if details and details.uid == 0 and _is_system_service(details.group):
                flags = host.argv(process)[1:]
                setting = _read_setting(host.files, flags, "pidfile")
                path = _find_value(flags, "--pidfile", _find_value(flags, "-p", setting))
                if isinstance(path, str) and path not in ("", docker.PID_FILE, f"/var{docker.PID_FILE}"):
                    return sanitize(path)
    return ""


def describe_other_pid_file(path: str) -> tuple[str, str]:
    """Why a dockerd with that pid file can't be used, and what helps."""
    reason = f"dockerd runs, and keeps its pid in {path}, while sparkd looks for it in {docker.PID_FILE}"
    if path.startswith("/var/snap/"):
        return reason, "sudo snap stop --disable docker && sudo apt install docker.io"
    return reason, f"remove pidfile from {DAEMON_JSON} and docker's unit, then: sudo systemctl restart docker"


def _is_system_service(group: Group) -> bool:
    return group.unit.endswith(".service") and not (group.manager_uid or group.container_id)


def _read_flags(host: Host) -> tuple[str, ...]:
    """Arguments of the running dockerd; none where none runs."""
    with suppress(OSError):
        pid = docker.daemon_pid(host)
        return processes.read_argv(host.files, int(pid))[1:] if pid else ()
    return ()


def _find_value(flags: tuple[str, ...], flag: str, default: T) -> str | T:
    """The value of `--flag value` or `--flag=value`."""
    joined = (word.removeprefix(f"{flag}=") for word in flags if word.startswith(f"{flag}="))
    separate = (following for word, following in pairwise(flags) if word == flag)
    return next(chain(joined, separate), default)


def _read_setting(files: Files, flags: tuple[str, ...], key: str) -> object:
    """A value of dockerd's file, read as dockerd does: a byte order mark is skipped. None without key or valid file."""
    with suppress(OSError, ValueError):
        match parse_json(
            files.text(_find_value(flags, "--config-file", DAEMON_JSON), limit=1 << 20).removeprefix("\ufeff")
        ):
            case dict(table):
                return table.get(key)
    return None


class Engine(Struct, frozen=True):
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


def read_engine(reader: DockerReader) -> Engine:
    """What this dockerd is. Raises DockerError."""
    match reader.version(), reader.info():
        case {"Version": str(version)}, {"Runtimes": dict(runtimes), **info}:
            names = tuple(sorted(sanitize(str(name), 40) for name in runtimes))
            folders = info.get("CDISpecDirs")
            cdi = tuple(map(str, folders)) if isinstance(folders, list) else ()
            return Engine(sanitize(version, 40), names, cdi, _may_keep_containers(info))
    raise DockerError("docker does not say its version and its runtimes")


def _may_keep_containers(info: Mapping[object, object]) -> bool:
    match info:
        case {"LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": "" | "inactive"}}:
            return True
    return False


def find_gpu_access(files: Files, engine: Engine) -> tuple[str, ...]:
    """Everything installed that gives a container the GPU: the runtime, the hook, CDI specifications. One is enough."""
    runtime = [RUNTIME] if "nvidia" in engine.runtimes else []
    hooks = [path for folder in HOOK_FOLDERS if files.exists(path := f"{folder}/{HOOK}")][:1]
    if hooks and _read_toolkit_mode(files) not in TAKEN_BY_HOOK:
        hooks = []
    return (*runtime, *hooks, *_find_specifications(files, engine.cdi_folders)[:1])


def choose_gpu_access(ways: tuple[str, ...]) -> GpuAccess:
    """The option that is known to work with `ways`, which `find_gpu_access` has returned.

    The hook comes first: machines ship with it. A runtime without a hook belongs to a toolkit that relies on CDI; a
    specification that docker reads itself works whatever the runtime's mode and version. Where nothing was found,
    docker reports what is missing.
    """
    if any(way.endswith(HOOK) for way in ways):
        return GpuAccess.GPUS
    if any(way != RUNTIME for way in ways):
        return GpuAccess.DEVICE
    return GpuAccess.RUNTIME if ways else GpuAccess.GPUS


def read_gpu_access(host: Host) -> GpuAccess:
    """How a container of this machine gets the GPU. Raises DockerError."""
    engine = docker.query(host, read_engine)
    return choose_gpu_access(find_gpu_access(host.files, engine) if engine else ())


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
            if path.endswith((".json", ".yaml", ".yml")) and _OF_THE_GPU.search(files.head(path, SPEC_LIMIT_BYTES)):
                specifications.append(path)
    return specifications
