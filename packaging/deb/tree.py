"""The files of a package, held in memory and written once."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path, PurePosixPath

from msgspec import Struct, field

from deb.errors import BuildError


class File(Struct, frozen=True):
    content: bytes
    mode: int


class Tree(Struct):
    """Paths are relative to the root. Two different files at one path are an error, never a choice."""

    _files: dict[str, File] = field(default_factory=dict)
    _links: dict[str, str] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=set)

    def add(self, path: str, content: bytes, mode: int = 0o644) -> None:
        file = File(content, mode)
        if self._files.setdefault(path, file) != file:
            raise BuildError(f"{path} comes from two places, and they differ")
        self._add_parents(path)

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        self._links[path] = target
        self._add_parents(path)

    def folder(self, path: str) -> None:
        """An empty one."""
        self._folders.update(str(one) for one in (PurePosixPath(path), *PurePosixPath(path).parents) if one.name)

    def _add_parents(self, path: str) -> None:
        self._folders.update(str(parent) for parent in PurePosixPath(path).parents if parent.name)

    @property
    def installed_kib(self) -> int:
        """As Debian counts: whole KiB for each file, one for each folder and link."""
        sizes = sum(-(-len(file.content) // 1024) for file in self._files.values())
        return sizes + len(self._folders) + len(self._links)

    @property
    def md5sums(self) -> str:
        def line(path: str) -> str:
            return f"{hashlib.md5(self._files[path].content, usedforsecurity=False).hexdigest()}  {path}\n"

        return "".join(line(path) for path in sorted(self._files))

    def write(self, root: Path, epoch: int) -> None:
        """Replace `root` by this tree; every time in it is `epoch`."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        root.chmod(0o755)
        for path in sorted(self._folders):
            (root / path).mkdir()
            (root / path).chmod(0o755)
        for path, file in self._files.items():
            (root / path).write_bytes(file.content)
            (root / path).chmod(file.mode)
            os.utime(root / path, (epoch, epoch))
        for path, target in self._links.items():
            (root / path).symlink_to(target)
            os.utime(root / path, (epoch, epoch), follow_symlinks=False)
        for path in sorted(self._folders, reverse=True):
            os.utime(root / path, (epoch, epoch))
        os.utime(root, (epoch, epoch))
