"""Which files a dry run reads of this machine, and those as a tree that `preflight --root` reads like the machine.

What is requested of the kernel or a daemon elsewhere is read from files, as it will be from the tree: `ROOT` is another
name of the root folder, so nothing takes this for the running machine.
"""

# ruff: noqa: PTH115, PTH118, PTH120
# Strings and os, as in files.py.

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from msgspec import field

from sparkd.base.host import Host, disks
from sparkd.base.host.files import Files, Kind, T, follow
from sparkd.base.host.gpu import GpuFacts
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader, connect

ROOT = "//"
MOST_MEMBERS, MOST_NAMES = 60_000, 4_000
"""Members of the tree, and names of one folder."""
MOST_BYTES = 1 << 20
"""The limit of a file; of a longer one there is only the name."""
OWN = ("/proc/", "/sys/", "/run/sparkd/", "/var/lib/sparkd/")
SETTINGS = re.compile(r"/(?:etc|usr/share)/sparkd/.*\.(?:toml|ya?ml)", re.DOTALL)
"""OWN and SETTINGS alone are copied also where others than the owner may not read them."""
TABLES = ("/proc/uptime", "/proc/net/tcp", "/proc/net/tcp6", "/proc/net/unix", "/proc/self/mounts", "/proc/1/mounts")
"""Read where the kernel can't be requested."""


class _Rooms(dict[str, disks.Counts]):
    """The room of any path, counted as it is requested."""

    def __bool__(self) -> bool:
        return True

    def __contains__(self, _path: object) -> bool:
        return True

    def get(self, path: str, _default: object = None) -> disks.Counts:  # never the default
        return self.setdefault(path, disks.count_room(path))


class RecordingFiles(Files, frozen=True):
    root: str = ROOT
    followed: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    """Paths that were looked at: what they lead to, and what they are."""
    rooms: _Rooms = field(default_factory=_Rooms)

    def real(self, path: str) -> str:
        self.followed.add(path)
        return super().real(path)

    def _name(self, path: str) -> str:
        self.named.add(path)
        return super()._name(path)

    def recorded(self, name: str, kind: type[T]) -> T | None:  # noqa: ARG002
        return self.rooms if name == "disks" else None  # type: ignore[return-value]  # of the kind that is requested


class RecordingHost(Host):
    """The running machine, read as a tree of files would be. `gpu` is queried once."""

    def __init__(self, gpu: Callable[[], GpuFacts]) -> None:
        super().__init__(gpu=functools.cache(gpu))
        self.seen = RecordingFiles()
        self.files = self.seen
        self._readers: list[DockerReader] = []

    def docker_reader(self) -> DockerReader:
        self._readers.append(connect())
        return self._readers[-1]

    def docker_answers(self) -> dict[str, object]:
        """Docker's answers by path, without errors."""
        answers = {path: answer for reader in self._readers for path, answer in reader.answers.items()}
        return {path: answer for path, answer in answers.items() if not isinstance(answer, DockerError)}


class Member(NamedTuple):
    """A part of the tree: a folder, a symlink with its `target`, or a file with its `content`."""

    path: str
    content: bytes | None = None
    target: str = ""
    executable: bool = False


def read_tree(recording: RecordingFiles, more: Iterable[str]) -> Iterator[Member]:
    """What lies at the paths that were looked at, and at `more`, now.

    A folder's other names are there as empty files: their being there may be all that matters. So are files that can't
    be read by all, are long, or no regular files. Symlinks lead nowhere outside of the tree.
    """
    files, links, paths = Files(), dict[str, str](), set[str]()

    def read_link(link: str, _rest: list[str]) -> str:
        links[link] = files.link(link)
        return links[link]

    for path in (*recording.followed, *TABLES, *more):
        with suppress(OSError):
            paths.add(follow(path, read_link) or "/")
    for path in recording.named:
        parent, _, name = path.rpartition("/")
        with suppress(OSError):
            here = f"{follow(parent, read_link)}/{name}"
            if files.lstat(here).kind is Kind.LINK:
                read_link(here, [])
            else:
                paths.add(here)
    left = MOST_MEMBERS
    for path in sorted(paths):
        for member in _read_members(files, path, paths, links):
            left -= 1
            if left < 0:
                return
            yield member
    for path, target in sorted(links.items())[:left]:
        yield Member(path, target=_inside(path, target))


def _read_members(files: Files, path: str, paths: set[str], links: dict[str, str]) -> Iterator[Member]:
    try:
        facts = files.lstat(path)
        if facts.kind is not Kind.FOLDER:
            wanted = facts.kind is Kind.FILE and facts.size_bytes <= MOST_BYTES
            yield Member(path, _content(files, path) if wanted else b"", executable=facts.executable)
            return
        yield Member(path)
        with os.scandir(path) as names:
            for child in islice(names, MOST_NAMES):
                here = f"{path.rstrip('/')}/{child.name}"
                if child.is_symlink():
                    links.setdefault(here, os.readlink(here))
                elif here not in paths:
                    yield Member(here, None if child.is_dir(follow_symlinks=False) else b"")
    except OSError:  # gone, or not readable
        return


def _content(files: Files, path: str) -> bytes:
    """Empty where it can't be read, or where not everybody may: judged by the file that was opened."""
    with suppress(OSError):
        opened = files.itself(path, MOST_BYTES)
        public = opened.facts.permissions & 0o004 or path.startswith(OWN) or SETTINGS.fullmatch(path)
        if opened.facts.kind is Kind.FILE and public:
            return opened.content
    return b""


def _inside(path: str, target: str) -> str:
    """Relative, and never above the tree's root; `socket:[1]` or similar stays as it is."""
    if ":[" in target:
        return target.replace("/", "")
    folder = os.path.dirname(path)
    return os.path.relpath(os.path.normpath(os.path.join(folder, target)), folder)
