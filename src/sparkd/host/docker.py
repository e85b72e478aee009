"""This machine's docker: whether it runs, its containers, and what identifies an image.

systemd holds /run/docker.sock while dockerd is down, and a single GET on it would start the daemon. dockerd writes
/run/docker.pid for as long as it runs, so that file and /proc decide whether there is anybody to ask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from sparkd.host.docker_facts import AWAY, ContainerFacts, DockerFacts
from sparkd.host.recorded import FOLDER
from sparkd.lib.dockerd import reader as dockerd
from sparkd.lib.dockerd.reader import FAILED, DockerReader, DockerUnreadableError, ImageReader

if TYPE_CHECKING:
    from sparkd.host import Host

CONFIG_KEYS = (
    *("User", "Env", "Entrypoint", "Cmd", "WorkingDir", "StopSignal", "Healthcheck", "Shell"),
    *("Volumes", "ExposedPorts", "Labels", "OnBuild"),
)
"""What the OCI image specification and docker's own extension of it know of an image's Config. Other keys are filled
in by some versions of docker and left out by others (Hostname, AttachStdin, Tty, Image: gone with API 1.52)."""
PID_FILE = "/run/docker.pid"
SOCKETS = ("/run/docker.sock", "/var/run/docker.sock")
LISTENING = "00010000"

T = TypeVar("T")


def reader(host: Host) -> DockerReader:
    """Of this machine's docker, for one thread. Read only while it is `running`, and close it."""
    if host.live:
        return dockerd.connect()
    return dockerd.recorded(lambda name: host.files.bytes(f"{FOLDER}/docker{name}"))


def running(host: Host) -> bool:
    """Whether a dockerd lives and listens on its socket.

    A dockerd that shuts down stops listening first and keeps its pid file to the last, while systemd still holds the
    socket: whoever asked then would start the next dockerd.
    """
    try:
        pid = daemon_pid(host)
        return bool(pid) and _listens(host, pid)
    except PermissionError:
        return True  # not root: only the pid file can be read, and nothing can be asked anyway
    except OSError:
        return False


def daemon_pid(host: Host) -> str:
    """Of the dockerd that lives, from its first moment on; empty where there is none. Raises OSError."""
    pid = host.files.text(PID_FILE, limit=32).strip()
    lives = pid.isdigit() and host.files.text(f"/proc/{pid}/comm", limit=64).strip() == "dockerd"
    return pid if lives else ""


def _listens(host: Host, pid: str) -> bool:
    """Whether the process has a listening socket of docker's open, by /proc/net/unix (proc(5), SO_ACCEPTCON)."""
    rows = (line.split() for line in host.files.text("/proc/net/unix", limit=16 << 20).splitlines())
    sockets = {f"socket:[{row[6]}]" for row in rows if len(row) > 7 and row[3] == LISTENING and row[7] in SOCKETS}
    return any(target in sockets for _, target in host.files.links(f"/proc/{pid}/fd"))


def read(host: Host) -> DockerFacts:
    """All containers of this node, running or not. Raises DockerUnreadableError."""
    return asked(host, _containers) or AWAY


def asked(host: Host, question: Callable[[DockerReader], T]) -> T | None:
    """The answer to a question about this machine's docker; None where it is away. Raises DockerUnreadableError."""
    if not running(host):
        return None
    with closing(host.docker_reader()) as docker:
        return question(docker)


def _containers(docker: DockerReader) -> DockerFacts:
    listed = docker.containers()
    if not isinstance(listed, list):
        raise DockerUnreadableError("the container list is no list")
    found = (_container(docker, entry) for entry in listed)
    return DockerFacts(running=True, containers=tuple(one for one in found if one is not None))


def _container(docker: DockerReader, entry: object) -> ContainerFacts | None:
    """None for one that was removed since it was listed. The list itself lacks pid and restart policy."""
    match entry:
        case {"Id": str(full_id)}:
            pass
        case _:
            raise DockerUnreadableError("an entry of the container list has no id")
    try:
        detail = docker.container(full_id)
    except DockerUnreadableError as error:
        if error.status != FAILED or (listed := _as_listed(entry)) is None:
            raise
        return listed
    match detail:
        case None:
            return None
        case {
            "Name": str(name),
            "Image": str(image_id),
            "Config": {"Labels": dict() | None as labels},
            "State": {"Running": bool(running), "Pid": int(pid)},
            "HostConfig": {"RestartPolicy": {"Name": str(policy)}},
        }:
            pairs = sorted((str(key), str(value)) for key, value in (labels or {}).items())
            image, words = _started_from(detail)
            return ContainerFacts(
                full_id, name.removeprefix("/"), tuple(pairs), running, pid, image_id, policy or "no", image, words
            )
        case _:
            raise DockerUnreadableError(f"the description of container {full_id[:12]} is not as docker's")


def _as_listed(entry: object) -> ContainerFacts | None:
    """A container that does not run, by the list alone; None where the list does not say that.

    Since Docker 29.4 one that a power cut has left without its layer stays in the list, and can be removed; asked for
    its description, docker says "RWLayer of container ... is unexpectedly nil", each time.
    """
    match entry:
        case {
            "Id": str(full_id),
            "Names": [str(name), *_],
            "ImageID": str(image_id),
            "Labels": dict() | None as labels,
            "State": "created" | "exited" | "dead",
        }:
            pairs = sorted((str(key), str(value)) for key, value in (labels or {}).items())
            return ContainerFacts(full_id, name.removeprefix("/"), tuple(pairs), False, 0, image_id, "no")
        case _:
            return None


def _started_from(detail: object) -> tuple[str, tuple[str, ...]]:
    """Name of its image, and its command; empty where docker does not say."""
    match detail:
        case {"Config": {"Image": str(image)}, "Path": str(program), "Args": [*words]}:
            return image, (program, *(str(word) for word in words))
        case _:
            return "", ()


def image_identity(docker: ImageReader, ref: str) -> str | None:
    """SHA-256 of an image's layers and configuration, None where there is no such image.

    Equal on all nodes that have the image, while ids are not: docker's classic store calls an image by the digest of
    its config, containerd's by that of its manifest. Layers are told by their content unpacked, in both. Empty values
    count as none, for versions of docker differ in which they name. Raises DockerUnreadableError.
    """
    match docker.image(ref):
        case None:
            return None
        case {"RootFS": {"Layers": [*layers]}, "Config": dict() | None as config}:
            known = {key: value for key in CONFIG_KEYS if (value := (config or {}).get(key))}
            canonical = json.dumps({"layers": layers, "config": known}, sort_keys=True, separators=(",", ":"))
            return sha256(canonical.encode()).hexdigest()
        case _:
            raise DockerUnreadableError(f"the description of image {ref} is not as docker's")


def version(docker: DockerReader) -> str:
    """Of dockerd. Raises DockerUnreadableError."""
    match docker.version():
        case {"Version": str(found)}:
            return found
        case _:
            raise DockerUnreadableError("docker says no version")


def live_restore(docker: DockerReader) -> bool:
    """Whether containers outlive their dockerd. Raises DockerUnreadableError."""
    match docker.info():
        case {"LiveRestoreEnabled": bool(kept)}:
            return kept
        case _:
            raise DockerUnreadableError("docker does not say whether its containers outlive it")


def exit_code(docker: DockerReader, container_id: str) -> int | None:
    """Exit code of an ended container, None while it runs. Raises DockerUnreadableError, also where it is gone."""
    match docker.container(container_id):
        case {"State": {"Running": False, "ExitCode": int(code)}}:
            return code
        case None:
            raise DockerUnreadableError("the container was removed")
        case _:
            return None


def follow_log(host: Host, container_id: str, since: float) -> Iterator[tuple[int, bytes]]:
    """`lib.dockerd.log.follow`. Raises DockerUnreadableError, also where docker is away."""
    from sparkd.lib.dockerd import log

    if not running(host):
        raise DockerUnreadableError("docker is away")
    yield from log.follow(container_id, since)
