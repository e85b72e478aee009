"""What this machine's dockerd is set to: its data folder, containers that outlive it, and the file with its pid."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeVar

from sparkd.base.host import docker, processes
from sparkd.base.host.cgroups import Group
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


def read_data_root(host: Host) -> str:
    """Where dockerd keeps containers and images. A daemon.json that is not valid is ignored."""
    flags = _read_flags(host)
    path = _find_value(flags, "--data-root", _read_setting(host.files, flags, "data-root"))
    return path if isinstance(path, str) and path.startswith("/") else DATA_ROOT


def keeps_containers(host: Host) -> bool:
    """Whether dockerd was started with live-restore, by its arguments and its file. False where those can't be read.

    It is not queried: without live-restore it answers only once it has ended the containers of the one before (10 s).
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
    path = _find_value(flags, "--config-file", DAEMON_JSON)
    with suppress(OSError, ValueError):
        match parse_json(files.text(path, limit=1 << 20).removeprefix("\ufeff")):
            case dict(table):
                return table.get(key)
    return None
