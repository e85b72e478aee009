"""Recording of the files that a dry run reads on this machine, as a tree that `preflight --root` can examine.

Facts that a dry run otherwise queries from the kernel or a daemon are read from files here, as they will be from the
tree: `ROOT` is another name of the root folder, so nothing takes this for the running machine.
"""

# ruff: noqa: PTH115, PTH118, PTH120
# Strings and os, as in files.py.

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
MOST_FILE_BYTES = 1 << 20
"""The limit of a file; a longer one is empty in the tree."""
KEPT_FOLDERS = ("/proc/", "/sys/", "/run/sparkd/", "/var/lib/sparkd/")
KEPT_SETTINGS = re.compile(r"/(?:etc|usr/share)/sparkd/.*\.(?:toml|ya?ml)", re.DOTALL)
"""Files in these folders, and settings, are copied even where only their owner may read them; no others are."""
TABLES = (
    "/proc/uptime",
    "/proc/net/tcp",
    "/proc/net/tcp6",
    "/proc/net/unix",
    "/proc/self/mounts",
    "/proc/1/mounts",
)
"""Files that are read where the kernel can't be queried."""


class _Rooms(dict[str, disks.Space]):
    """The record `disks` of a tree of files, which has the room of each path. Here it is counted at the first request.

    So it seems to have every path, while it is empty: a dry run looks for the nearest path that is in it.
    """

    def __bool__(self) -> bool:
        return True

    def __contains__(self, _path: object) -> bool:
        return True

    def get(self, path: str, _default: object = None) -> disks.Space:  # never the default
        return self.setdefault(path, disks.read_space(path))


class RecordingFiles(Files, frozen=True):
    """Files of this machine, with a record of the paths that are read."""

    root: str = ROOT
    followed: set[str] = field(default_factory=set)
    """Paths of which the target was read."""
    named: set[str] = field(default_factory=set)
    """Paths of which the entry itself was read, even where that is a link."""
    rooms: _Rooms = field(default_factory=_Rooms)

    def real(self, path: str) -> str:
        self.followed.add(path)
        return super().real(path)

    def _resolve_parent(self, path: str) -> str:
        self.named.add(path)
        return super()._resolve_parent(path)

    def recorded(self, name: str, kind: type[T]) -> T | None:  # noqa: ARG002
        return self.rooms if name == "disks" else None  # type: ignore[return-value]  # it has that kind


class RecordingHost(Host):
    """The running machine, read like a tree of files. `gpu` is called once."""

    def __init__(self, gpu: Callable[[], GpuFacts]) -> None:
        super().__init__(gpu=functools.cache(gpu))
        self.recording = RecordingFiles()
        self.files = self.recording
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


def read_tree(recording: RecordingFiles, more_paths: Iterable[str]) -> Iterator[Member]:
    """Members of the tree: the current files at the recorded paths, and at `more_paths`.

    The other names of a folder become empty files, since a check may need to know that they exist. So do files that are
    long, not regular, or not readable by all users. Symlinks are relative, and never lead out of the tree.
    """
    files, links, paths = Files(), dict[str, str](), set[str]()

    def read_link(link: str, _rest: list[str]) -> str:
        links[link] = files.link(link)
        return links[link]

    for path in (*recording.followed, *TABLES, *more_paths):
        with suppress(OSError):
            paths.add(follow(path, read_link) or "/")
    for path in recording.named:
        parent, _, name = path.rpartition("/")
        with suppress(OSError):
            named_path = f"{follow(parent, read_link)}/{name}"
            if files.lstat(named_path).kind is Kind.LINK:
                read_link(named_path, [])
            else:
                paths.add(named_path)
    members_left = MOST_MEMBERS
    for path in sorted(paths):
        for member in _read_members(files, path, paths, links):
            members_left -= 1
            if members_left < 0:
                return
            yield member
    for path, target in sorted(links.items())[:members_left]:
        yield Member(path, target=_make_relative(path, target))


def _read_members(files: Files, path: str, paths: set[str], links: dict[str, str]) -> Iterator[Member]:
    """The member at a path, and if it is a folder its children that `paths` lacks. Adds symlinks to `links`."""
    try:
        facts = files.lstat(path)
        if facts.kind is not Kind.FOLDER:
            is_copied = facts.kind is Kind.FILE and facts.size_bytes <= MOST_FILE_BYTES
            yield Member(path, _read_content(files, path) if is_copied else b"", executable=facts.executable)
            return
        yield Member(path)
        with os.scandir(path) as children:
            for child in islice(children, MOST_NAMES):
                child_path = f"{path.rstrip('/')}/{child.name}"
                if child.is_symlink():
                    links.setdefault(child_path, os.readlink(child_path))
                elif child_path not in paths:
                    yield Member(child_path, None if child.is_dir(follow_symlinks=False) else b"")
    except OSError:  # gone, or not readable
        return


def _read_content(files: Files, path: str) -> bytes:
    """The file's content; empty where it can't be read, or not all users may read it. The opened file's mode counts."""
    with suppress(OSError):
        opened = files.itself(path, MOST_FILE_BYTES)
        is_kept = path.startswith(KEPT_FOLDERS) or KEPT_SETTINGS.fullmatch(path)
        if opened.facts.kind is Kind.FILE and (is_kept or opened.facts.permissions & 0o004):
            return opened.content
    return b""


def _make_relative(path: str, target: str) -> str:
    """The target relative to its link, never above the tree's root. One such as `socket:[1]` only loses its slashes."""
    if ":[" in target:
        return target.replace("/", "")
    folder = os.path.dirname(path)
    return os.path.relpath(os.path.normpath(os.path.join(folder, target)), folder)
