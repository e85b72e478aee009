"""The libraries, laid out in one folder that every supported Python shares: only compiled modules carry its tag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

from msgspec import Struct

from deb import archive, downloads
from deb.archive import Archive, Member
from deb.lock import Pin
from deb.targets import Architecture
from deb.tree import Tree

FOLDER = "usr/lib/sparkd/vendor"

# RECORD would be wrong, WHEEL differs between the wheels of one release; stubs and sources serve no running program.
# Of cffi only the compiled module is imported.
# nvidia-ml-py puts an example.py beside its module, where any `import example` would find it.
_LEFT_OUT = re.compile(
    r"\.dist-info/(RECORD|WHEEL|INSTALLER|REQUESTED|direct_url\.json|top_level\.txt|entry_points\.txt)$"
    r"|\.(pyi|pyx|pxd|c|h)$|(^|/)__pycache__/|^cffi/|^example\.py$"
)
_LICENCE = re.compile(r"^[^/]+\.dist-info/(licenses/)?.*(LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*$", re.IGNORECASE)
_SBOM = re.compile(r"^[^/]+\.dist-info/sboms/(?P<name>.+)\.json$")


class Sbom(Struct, frozen=True):
    """A bill of materials that came with a wheel, such as of the Rust crates that are compiled into it."""

    name: str
    content: bytes


class Library(Struct, frozen=True):
    """One release as it is carried: what its copyright and its bill of materials are written from."""

    name: str
    version: str
    metadata: Message
    top_levels: tuple[str, ...]
    """Its files and folders directly below the vendor folder."""
    licences: tuple[str, ...]
    """Their texts."""
    modules: tuple[Member, ...]
    """Its compiled modules and programs."""
    sboms: tuple[Sbom, ...]

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"


class Vendored(Struct, frozen=True):
    libraries: tuple[Library, ...]

    @property
    def sboms(self) -> tuple[Sbom, ...]:
        return tuple(sorted((sbom for library in self.libraries for sbom in library.sboms), key=lambda one: one.name))


def lay_out(pins: Iterable[Pin], folder: Path, architecture: Architecture, tree: Tree) -> Vendored:
    """Put the libraries into `tree`."""
    libraries = []
    for pin in pins:
        archives = [archive.read(file) for file in downloads.files(pin, folder, architecture)]
        for one in archives:
            for member in one.members:
                if _carried(member):
                    mode = 0o755 if _is_program(member.path) else 0o644
                    tree.add(f"{FOLDER}/{member.path}", _as_module(member), mode)
        libraries.append(_library(pin, archives))
    return Vendored(tuple(libraries))


def _carried(member: Member) -> bool:
    return not any(pattern.search(member.path) for pattern in (_LEFT_OUT, _LICENCE, _SBOM))


def _is_program(path: str) -> bool:
    return path.startswith(f"{archive.PROGRAMS}/")


def _as_module(member: Member) -> bytes:
    """No library is a script: `#!` lines name interpreters that a package would have to depend on."""
    script = member.path.endswith(".py") and member.content.startswith(b"#!")
    return b"# " + member.content[2:] if script else member.content


def _library(pin: Pin, archives: list[Archive]) -> Library:
    licences = {
        member.path: member.content.decode(errors="replace")
        for one in archives
        for member in one.members
        if _LICENCE.match(member.path)
    }
    carried = {member.path: member for one in archives for member in one.members if _carried(member)}
    return Library(
        pin.name,
        pin.version,
        Parser().parsestr(archives[0].metadata, headersonly=True),
        tuple(sorted({path.partition("/")[0] for path in carried if not _is_program(path)})),
        tuple(licences[path] for path in sorted(licences)),
        tuple(carried[path] for path in sorted(carried) if path.endswith(".so") or _is_program(path)),
        tuple(_sboms(archives)),
    )


def _sboms(archives: list[Archive]) -> Iterator[Sbom]:
    for one in archives:
        for member in one.members:
            if match := _SBOM.match(member.path):
                yield Sbom("-".join(filter(None, (match["name"], one.tag))), member.content)
