"""The files of one release, from a wheel or from a source archive of pure Python."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from deb.errors import BuildError

_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_PROGRAM = re.compile(r"[^/]+\.data/scripts/(?P<name>[^/]+)")
PROGRAMS = "bin"
"""Where compiled programs of wheels lie, beside the libraries: on no PATH."""


class Member(Struct, frozen=True):
    path: str
    """As it lies in site-packages."""
    content: bytes


class Archive(Struct, frozen=True):
    tag: str
    """Such as `cp311`; empty for pure Python."""
    members: tuple[Member, ...]

    @property
    def metadata(self) -> str:
        found = [member for member in self.members if _METADATA.fullmatch(member.path)]
        if len(found) != 1:
            raise BuildError(f"{len(found)} METADATA files where one is needed")
        return found[0].content.decode()


def read(file: Path) -> Archive:
    """Raises BuildError for a name that could leave its folder, or belongs outside site-packages."""
    archive = _wheel(file) if file.suffix == ".whl" else _source(file)
    for member in archive.members:
        parts = PurePosixPath(member.path).parts
        if not parts or parts[0] == "/" or ".." in parts or "\\" in member.path:
            raise BuildError(f"{file.name}: {member.path!r} leaves its folder")
        if parts[0].endswith(".data"):
            raise BuildError(f"{file.name}: {member.path} belongs outside site-packages")
    return archive


def _wheel(file: Path) -> Archive:
    *_, python, abi, _ = file.stem.split("-")
    with zipfile.ZipFile(file) as wheel:
        members = tuple(_member(one.filename, wheel.read(one)) for one in wheel.infolist() if not one.is_dir())
    return Archive("" if abi == "none" else python, members)


def _member(path: str, content: bytes) -> Member:
    """A script, which would need an interpreter, is left where it is, and refused."""
    program = _PROGRAM.fullmatch(path) if content.startswith(b"\x7fELF") else None
    return Member(f"{PROGRAMS}/{program['name']}" if program else path, content)


def _source(file: Path) -> Archive:
    """The package's folder as it stands, and PKG-INFO as its metadata: no code of the archive runs."""
    stem = file.name.removesuffix(".tar.gz")
    package = stem.rpartition("-")[0]
    info = f"{stem}.dist-info"
    members = []
    for path, content in _regular_files(file):
        inside = path.removeprefix(f"{stem}/")
        if inside == "PKG-INFO":
            members.append(Member(f"{info}/METADATA", content))
        elif inside.startswith("LICENSE"):
            members.append(Member(f"{info}/licenses/{inside}", content))
        elif inside.startswith(f"{package}/"):
            members.append(Member(inside, content))
    if not any(member.path == f"{package}/__init__.py" for member in members):
        raise BuildError(f"{file.name} has no package {package}")
    return Archive("", tuple(members))


def _regular_files(file: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(file) as source:
        for one in source:
            stream = source.extractfile(one) if one.isreg() else None
            if stream is not None:
                yield one.name, stream.read()
