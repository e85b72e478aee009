"""Docker, looked at: GET over its socket, and only while a living dockerd stands behind it.

systemd holds /run/docker.sock while dockerd is down, and a single GET on it would start the daemon. dockerd writes
/run/docker.pid for as long as it runs, so that file and /proc decide whether there is anybody to ask.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import quote

from sparkd.host.docker_facts import AWAY, ContainerFacts, DockerFacts

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.http import HttpClient

SOCKET = "/run/docker.sock"
CONFIG_KEYS = (
    *("User", "Env", "Entrypoint", "Cmd", "WorkingDir", "StopSignal", "Healthcheck", "Shell"),
    *("Volumes", "ExposedPorts", "Labels", "OnBuild"),
)
"""What the OCI image specification and docker's own extension of it know of an image's Config. Other keys are filled
in by some versions of docker and left out by others (Hostname, AttachStdin, Tty, Image: gone with API 1.52)."""
PID_FILE = "/run/docker.pid"
SOCKETS = ("/run/docker.sock", "/var/run/docker.sock")
LISTENING = "00010000"
TIMEOUT_SECONDS = 10.0
FRAME_HEADER_BYTES = 8
FRAME_LIMIT_BYTES = 16 << 20
"""dockerd frames are log messages of at most 16 KiB or raw copies of 32 KiB; more is not docker."""

T = TypeVar("T")


class DockerUnreadableError(Exception):
    """dockerd lives but did not answer, or answered what is not docker's API."""


class DockerFailedError(DockerUnreadableError):
    """dockerd answered that it failed: HTTP 500."""


class Reply(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...


class Asks(Protocol):
    """Whom to ask: dockerd, or what a tree of files has recorded of one."""

    def get(self, path: str, timeout_seconds: float, params: Mapping[str, str] | None = None) -> Reply: ...
    def close(self) -> None: ...


def reader(host: Host) -> Asks:
    """Whom to ask about this machine, for one thread. Ask only while `running`."""
    if host.live:
        return client()
    from sparkd.host.recorded import RecordedDocker

    return RecordedDocker(host.files)


def client() -> HttpClient:
    """A client of the socket, for one thread. Asking through it when dockerd is down starts dockerd: see `running`."""
    from sparkd.host.http import HttpClient

    return HttpClient("http://docker", socket_path=SOCKET)


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
    if not running(host):
        return AWAY
    http = host.docker_reader()
    try:
        listed = ask(http, "/containers/json", {"all": "1"})
        if not isinstance(listed, list):
            raise DockerUnreadableError("the container list is no list")
        found = (_container(http, entry) for entry in listed)
        return DockerFacts(running=True, containers=tuple(one for one in found if one is not None))
    finally:
        http.close()


def asked(host: Host, question: Callable[[Asks], T]) -> T | None:
    """The answer to a question about this machine's docker; None where it is away. Raises DockerUnreadableError."""
    if not running(host):
        return None
    http = host.docker_reader()
    try:
        return question(http)
    finally:
        http.close()


def ask(http: Asks, path: str, params: dict[str, str] | None = None) -> object:
    """The answer, unchecked JSON; None where docker knows no such thing."""
    from sparkd.host.http import Unanswered

    try:
        answer = http.get(path, TIMEOUT_SECONDS, params)
        if answer.status == 404:
            return None
        if answer.status == 500:
            raise DockerFailedError(f"GET {path}: HTTP 500")
        if answer.status != 200:
            raise DockerUnreadableError(f"GET {path}: HTTP {answer.status}")
        found: object = json.loads(answer.body)
    except Unanswered as error:
        raise DockerUnreadableError(f"GET {path}: {error}") from None
    except ValueError:
        raise DockerUnreadableError(f"GET {path}: not JSON") from None
    return found


def _path(container_id: str, what: str) -> str:
    return f"/containers/{quote(container_id, safe='')}/{what}"


def _container(http: Asks, entry: object) -> ContainerFacts | None:
    """None for one that was removed since it was listed. The list itself lacks pid and restart policy."""
    match entry:
        case {"Id": str(full_id)}:
            pass
        case _:
            raise DockerUnreadableError("an entry of the container list has no id")
    try:
        detail = ask(http, _path(full_id, "json"))
    except DockerFailedError:
        if (listed := _as_listed(entry)) is None:
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


def image_identity(http: Asks, ref: str) -> str | None:
    """SHA-256 of an image's layers and configuration, None where there is no such image.

    Equal on all nodes that have the image, while ids are not: docker's classic store calls an image by the digest of
    its config, containerd's by that of its manifest. Layers are told by their content unpacked, in both. Empty values
    count as none, for versions of docker differ in which they name. Raises DockerUnreadableError.
    """
    match ask(http, f"/images/{quote(ref, safe='/:@')}/json"):
        case None:
            return None
        case {"RootFS": {"Layers": [*layers]}, "Config": dict() | None as config}:
            known = {key: value for key in CONFIG_KEYS if (value := (config or {}).get(key))}
            canonical = json.dumps({"layers": layers, "config": known}, sort_keys=True, separators=(",", ":"))
            return sha256(canonical.encode()).hexdigest()
        case _:
            raise DockerUnreadableError(f"the description of image {ref} is not as docker's")


def version(http: Asks) -> str:
    """Of dockerd. Raises DockerUnreadableError."""
    match ask(http, "/version"):
        case {"Version": str(said)}:
            return said
        case _:
            raise DockerUnreadableError("docker says no version")


def live_restore(http: Asks) -> bool:
    """Whether containers outlive their dockerd. Raises DockerUnreadableError."""
    match ask(http, "/info"):
        case {"LiveRestoreEnabled": bool(kept)}:
            return kept
        case _:
            raise DockerUnreadableError("docker does not say whether its containers outlive it")


def exit_code(http: Asks, container_id: str) -> int | None:
    """Exit code of an ended container, None while it runs. Raises DockerUnreadableError, also where it is gone."""
    match ask(http, _path(container_id, "json")):
        case {"State": {"Running": False, "ExitCode": int(code)}}:
            return code
        case None:
            raise DockerUnreadableError("the container was removed")
        case _:
            return None


def follow_log(host: Host, http: HttpClient, container_id: str, since: float) -> Iterator[tuple[int, bytes]]:
    """(stream, bytes) that the container wrote from `since` on (wall clock; 0: all): 1 is stdout, 2 stderr.

    Ends with the container; raises Unanswered.
    """
    from sparkd.host.http import Unanswered

    if not running(host):
        raise Unanswered("docker is away")
    params = {"follow": "1", "stdout": "1", "stderr": "1", "tail": "all", "since": f"{since:.9f}" if since else "0"}
    with http.stream(_path(container_id, "logs"), params) as chunks:
        yield from frames(chunks)


def frames(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Take docker's multiplexed stream apart: header (stream, 0, 0, 0, big-endian length), then that many bytes."""
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        start = 0
        while len(pending) - start >= FRAME_HEADER_BYTES:
            length = int.from_bytes(pending[start + 4 : start + 8], "big")
            if length > FRAME_LIMIT_BYTES:
                raise DockerUnreadableError(f"a log frame of {length} bytes")
            end = start + FRAME_HEADER_BYTES + length
            if len(pending) < end:
                break
            yield pending[start], bytes(pending[start + FRAME_HEADER_BYTES : end])
            start = end
        del pending[:start]
