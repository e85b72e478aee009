"""Docker, looked at: GET over its socket, and only while a living dockerd stands behind it.

systemd holds /run/docker.sock while dockerd is down, and a single GET on it would start the daemon. dockerd writes
/run/docker.pid for as long as it runs, so that file and /proc decide whether there is anybody to ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sparkd.host.docker_facts import ContainerFacts, DockerFacts

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.http import HttpClient

SOCKET = "/run/docker.sock"
PID_FILE = "/run/docker.pid"
TIMEOUT_SECONDS = 10.0
FRAME_HEADER_BYTES = 8
FRAME_LIMIT_BYTES = 16 << 20
"""dockerd frames are log messages of at most 16 KiB or raw copies of 32 KiB; more is not docker."""


class DockerUnreadableError(Exception):
    """dockerd lives but did not answer, or answered what is not docker's API."""


def client() -> HttpClient:
    """A client of the socket, for one thread. Asking through it when dockerd is down starts dockerd: see `running`."""
    from sparkd.host.http import HttpClient

    return HttpClient("http://docker", socket_path=SOCKET)


def running(host: Host) -> bool:
    """Whether a dockerd lives and has its socket."""
    try:
        pid = host.files.text(PID_FILE, limit=32).strip()
        return pid.isdigit() and host.files.text(f"/proc/{pid}/comm", limit=64).strip() == "dockerd"
    except OSError:
        return False


def read(host: Host) -> DockerFacts:
    """All containers of this node, running or not. Raises DockerUnreadableError."""
    if not running(host):
        return DockerFacts(running=False, containers=())
    http = client()
    try:
        listed = _get(http, "/containers/json", {"all": "1"})
        if not isinstance(listed, list):
            raise DockerUnreadableError("the container list is no list")
        return DockerFacts(running=True, containers=tuple(_container(http, entry) for entry in listed))
    finally:
        http.close()


def _get(http: HttpClient, path: str, params: dict[str, str] | None = None) -> Any:
    from sparkd.host.http import Unanswered

    try:
        answer = http.get(path, TIMEOUT_SECONDS, params)
        if answer.status != 200:
            raise DockerUnreadableError(f"GET {path}: HTTP {answer.status}")
        return json.loads(answer.body)
    except Unanswered as error:
        raise DockerUnreadableError(f"GET {path}: {error}") from None
    except ValueError:
        raise DockerUnreadableError(f"GET {path}: not JSON") from None


def _container(http: HttpClient, entry: object) -> ContainerFacts:
    try:
        match entry:
            case {"Id": str(full_id), "State": str(state)}:
                # The list lacks pid and restart policy; only a container that runs has a pid worth a second look.
                detail = _get(http, f"/containers/{quote(full_id, safe='')}/json")
                return ContainerFacts(
                    id=full_id,
                    name=str(detail["Name"]).removeprefix("/"),
                    labels=tuple(sorted((str(k), str(v)) for k, v in (detail["Config"]["Labels"] or {}).items())),
                    running=state in ("running", "paused", "restarting"),
                    pid=int(detail["State"]["Pid"]),
                    image_id=str(detail["Image"]),
                    restart_policy=str(detail["HostConfig"]["RestartPolicy"]["Name"] or "no"),
                )
    except (KeyError, TypeError, ValueError) as error:
        raise DockerUnreadableError(f"a container's description lacks {error}") from None
    raise DockerUnreadableError("an entry of the container list has no id")


def exit_code(http: HttpClient, container_id: str) -> int | None:
    """Exit code of an ended container; None while it runs. Raises DockerUnreadableError."""
    state = _get(http, f"/containers/{quote(container_id, safe='')}/json")["State"]
    return None if state.get("Running") else int(state.get("ExitCode", -1))


def follow_log(http: HttpClient, container_id: str, *, from_now: bool) -> Iterator[tuple[int, bytes]]:
    """(stream, bytes) as the container writes: 1 is stdout, 2 stderr. Ends with the container; raises Unanswered."""
    params = {"follow": "1", "stdout": "1", "stderr": "1", "tail": "0" if from_now else "all"}
    with http.stream(f"/containers/{quote(container_id, safe='')}/logs", params) as chunks:
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
