"""This machine's docker: whether it runs, and its containers as data, which a tree of files can carry too.

systemd holds /run/docker.sock while dockerd is down, and a single GET on it would start the daemon. dockerd writes
/run/docker.pid for as long as it runs, so that file and /proc decide whether a request may be sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from sparkd.base.host import sockets
from sparkd.base.host.sock_diag import find_listening_name
from sparkd.base.lib.dockerd import reader
from sparkd.base.lib.dockerd.reader import FAILED, SOCKET, DockerError, DockerReader

if TYPE_CHECKING:
    from sparkd.base.host import Host

LABEL = "io.sparkd."
"""Labels of every container that sparkd creates: role, rank, epoch, invocation, plan, rank-id (empty if no rank's)."""

_NAME = re.compile(r"sparkd-(?:rank\d+|bench)", re.ASCII)
PID_FILE = "/run/docker.pid"
SOCKETS = (b"/run/docker.sock", b"/var/run/docker.sock")

T = TypeVar("T")


class ContainerFacts(Struct, frozen=True):
    id: str
    """Full id, 64 hex digits."""
    name: str
    labels: tuple[tuple[str, str], ...]
    running: bool
    pid: int
    """The container's first process, in the host's namespace; 0 where it does not run."""
    image_id: str
    restart_policy: str
    image: str = ""
    """The name by which the container was created; `image_id` is what it stood for then."""
    command: tuple[str, ...] = ()
    """It may hold a secret, and is never shown."""

    @property
    def ours(self) -> bool:
        """Whether sparkd created it. The name counts too: `docker commit` keeps the labels in a new image."""
        return bool(self.label(f"{LABEL}role")) and _NAME.fullmatch(self.name) is not None

    @property
    def invocation(self) -> str:
        """Invocation of the process that created it."""
        return self.label(f"{LABEL}invocation")

    @property
    def rank_id(self) -> str:
        """The rank's id; empty for another container, and for one of an earlier version."""
        return self.label(f"{LABEL}rank-id")

    def label(self, key: str) -> str:
        return dict(self.labels).get(key, "")


class DockerFacts(Struct, frozen=True):
    running: bool
    """Whether a dockerd runs. Without one, nothing is known of containers."""
    containers: tuple[ContainerFacts, ...]
    error: str = ""

    @property
    def known(self) -> bool:
        """Whether `containers` are all there are."""
        return self.running and not self.error

    def container(self, full_id: str) -> ContainerFacts | None:
        return next((container for container in self.containers if container.id == full_id), None)


AWAY = DockerFacts(running=False, containers=())


def running(host: Host) -> bool:
    """Whether a dockerd runs and listens on its socket.

    A dockerd that shuts down stops listening first and keeps its pid file to the last, while systemd still holds the
    socket: a request at that time would start the next dockerd.
    """
    try:
        pid = daemon_pid(host)
        return bool(pid) and _listens(host, pid)
    except PermissionError:
        return True  # not root: only the pid file can be read, and no request can be sent anyway
    except OSError:
        return False


def daemon_pid(host: Host) -> str:
    """pid of the running dockerd, which may not listen yet; empty where there is none. Raises OSError."""
    pid = host.files.text(PID_FILE, limit=32).strip()
    is_dockerd = pid.isdigit() and host.files.text(f"/proc/{pid}/comm", limit=64).strip() == "dockerd"
    return pid if is_dockerd else ""


def _listens(host: Host, pid: str) -> bool:
    """Whether the process has a listening socket of docker's open.

    On this machine the kernel looks up the process's sockets alone. For a tree of files, and without unix_diag,
    /proc/net/unix (proc(5), SO_ACCEPTCON) is read in chunks and never decoded: any user can make it very long, and
    forge rows of any bytes by a socket whose name has line ends.
    """
    inodes = frozenset(sockets.list_inodes(host.files, int(pid)))
    if host.live:
        with suppress(OSError):
            listens = _query_listening(inodes)
            if listens is not None:
                return listens
    inode_words = {b"%d" % inode for inode in inodes}
    incomplete = b""
    for chunk in host.files.chunks("/proc/net/unix"):
        *lines, incomplete = (incomplete + chunk).split(b"\n")
        rows = (row for row in map(bytes.split, lines) if len(row) > 7 and row[3] == b"00010000" and row[7] in SOCKETS)
        if any(row[6] in inode_words for row in rows):
            return True
    return False


def _query_listening(inodes: Iterable[int]) -> bool | None:
    """Whether one of these sockets is docker's, and listens. No table is read: the kernel looks up each.

    None where the kernel knows none of them, as one without unix_diag. Raises OSError.
    """
    is_known = False
    for inode in inodes:
        if (name := find_listening_name(inode)) in SOCKETS:
            return True
        is_known = is_known or name is not None
    return False if is_known else None


def query(host: Host, read: Callable[[DockerReader], T]) -> T | None:
    """The result of `read` for this machine's docker; None where none runs. Raises DockerError."""
    if not running(host):
        return None
    with closing(host.docker_reader()) as docker:
        return read(docker)


def pid_without_live_restore(host: Host) -> str:
    """pid of the running dockerd; empty with live-restore, where containers outlive it, and where docker does not
    answer. It may wait for docker, for ten seconds at most.

    At its start the next dockerd ends the containers of this one, with 10 s between SIGTERM and SIGKILL. A headless
    vLLM takes 12 s to handle SIGTERM, so a worker's rank is better ended at once: the engine is lost anyway. A head's
    rank that serves ends within 0.6 s of SIGTERM, and one that still loads is killed within those 10 s: its pidfd
    reports that, and the engine's end then names docker.
    """
    missing = "docker does not say whether its containers outlive it"
    with suppress(OSError, DockerError):
        pid = daemon_pid(host)
        keeps_containers = query(host, lambda docker: value_of(docker.info(), "LiveRestoreEnabled", bool, missing))
        return pid if keeps_containers is False else ""
    return ""


def daemon_replaced(host: Host, pid: str) -> bool:
    """Whether a dockerd with another pid runs. False without one, and where that is unreadable."""
    with suppress(OSError):
        return daemon_pid(host) not in ("", pid)
    return False


def value_of(answer: object, key: str, kind: type[T], missing: str) -> T:
    """The value of a key of docker's answer. Raises DockerError(missing) without one of this type."""
    value = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise DockerError(missing)
    return value


def read_version(docker: DockerReader) -> str:
    """dockerd's version. Raises DockerError."""
    return value_of(docker.version(), "Version", str, "docker says no version")


def read_containers(host: Host) -> DockerFacts:
    """All containers of this machine; AWAY without a dockerd. Raises DockerError."""
    return query(host, _list_containers) or AWAY


def _list_containers(docker: DockerReader) -> DockerFacts:
    summaries = docker.containers()
    if not isinstance(summaries, list):
        raise DockerError("the container list is no list")
    containers = (_read_container(docker, summary) for summary in summaries)
    return DockerFacts(running=True, containers=tuple(filter(None, containers)))


def _read_container(docker: DockerReader, summary: object) -> ContainerFacts | None:
    """The container of an entry of the list, which lacks pid and restart policy. None where it was removed since."""
    full_id = value_of(summary, "Id", str, "an entry of the container list has no id")
    try:
        detail = docker.container(full_id)
    except DockerError as error:
        if error.status == FAILED and (stopped := _parse_summary(full_id, summary)):
            return stopped
        raise
    match detail:
        case None:
            return None
        case {
            "Name": str(name),
            "Image": str(image_id),
            "Config": {"Labels": dict() | None as labels},
            "State": {"Running": bool(is_running), "Pid": int(pid)},
            "HostConfig": {"RestartPolicy": {"Name": str(policy)}},
        }:
            image, command = _parse_start(detail)
            return ContainerFacts(
                id=full_id,
                name=name.removeprefix("/"),
                labels=_sort_labels(labels),
                running=is_running,
                pid=pid,
                image_id=image_id,
                restart_policy=policy or "no",
                image=image,
                command=command,
            )
    raise DockerError(f"the description of container {full_id[:12]} is not as docker's")


def _parse_summary(full_id: str, summary: object) -> ContainerFacts | None:
    """A container that does not run, by the list alone; None where the list does not say that.

    Since Docker 29.4 one that lost its layer in a power cut stays in the list, and can be removed; a request for its
    description always fails with "RWLayer of container ... is unexpectedly nil".
    """
    match summary:
        case {
            "Names": [str(name), *_],
            "ImageID": str(image_id),
            "Labels": dict() | None as labels,
            "State": "created" | "exited" | "dead",
        }:
            return ContainerFacts(full_id, name.removeprefix("/"), _sort_labels(labels), False, 0, image_id, "no")
    return None


def _sort_labels(labels: Mapping[object, object] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(key), str(value)) for key, value in (labels or {}).items()))


def _parse_start(detail: object) -> tuple[str, tuple[str, ...]]:
    """Name of its image, and its command; empty where docker does not say."""
    match detail:
        case {"Config": {"Image": str(image)}, "Path": str(program), "Args": [*words]}:
            return image, (program, *map(str, words))
    return "", ()


def exit_code(docker: DockerReader, container_id: str) -> int | None:
    """Exit code of an ended container, None while it runs. Raises DockerError, also where it is gone."""
    match docker.container(container_id):
        case {"State": {"Running": False, "ExitCode": int(code)}}:
            return code
        case None:
            raise DockerError("the container was removed")
    return None


def follow_log(host: Host, container_id: str, since: str) -> Iterator[tuple[int, bytes]]:
    """`lib.dockerd.reader.follow_log`. Raises DockerError, also where docker is not running."""
    if not running(host):
        raise DockerError("docker is away")
    yield from reader.follow_log(container_id, since, host.files.real(SOCKET))
