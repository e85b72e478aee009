"""What is compiled into the libraries: Rust crates, C libraries, and the standard library of Rust."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from deb.errors import BuildError
from deb.vendor import Library, Sbom

_COMPILER = re.compile(rb"rustc version (\d+\.\d+\.\d+)")
"""In the section .comment of a module."""


class Component(Struct, frozen=True):
    name: str
    version: str
    licence: str = ""
    """SPDX expression."""
    source: str = ""
    author: str = ""
    purl: str = ""
    copyright: tuple[str, ...] = ()
    """As its licence has them."""
    holder: str = ""
    """Whom BSD-3-Clause names."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"


class Notices(Struct, frozen=True):
    """packaging/debian/notices.toml: what no wheel has."""

    linked: dict[str, tuple[str, ...]]
    """Labels of components that no bill of materials lists, by the label of the library."""
    components: dict[str, Component]
    """By label. What is empty there is taken from the bill of materials."""


class _Notice(Struct, forbid_unknown_fields=True):
    of: tuple[str, ...]
    copyright: tuple[str, ...]
    licence: str = ""
    source: str = ""
    holder: str = "the copyright holder"


class _File(Struct, forbid_unknown_fields=True):
    linked: dict[str, tuple[str, ...]]
    notice: tuple[_Notice, ...]


class _Licence(Struct):
    id: str = ""
    name: str = ""


class _Choice(Struct):
    expression: str = ""
    license: _Licence = field(default_factory=_Licence)


class _Reference(Struct):
    type: str
    url: str


class _Entry(Struct, rename="camel"):
    name: str
    version: str = "unknown"
    purl: str = ""
    author: str = ""
    licenses: tuple[_Choice, ...] = ()
    external_references: tuple[_Reference, ...] = ()


class _CycloneDx(Struct, rename="camel"):
    bom_format: Literal["CycloneDX"]
    components: tuple[_Entry, ...] = ()


def read(text: str) -> Notices:
    file = msgspec.convert(tomllib.loads(text), _File)
    components = {}
    for notice in file.notice:
        for label in notice.of:
            if label in components:
                raise BuildError(f"packaging/debian/notices.toml has {label} twice: remove one")
            name, _, version = label.partition(" ")
            components[label] = Component(
                name, version, notice.licence, notice.source, copyright=notice.copyright, holder=notice.holder
            )
    return Notices(file.linked, components)


def compiled_in(libraries: Sequence[Library], notices: Notices) -> dict[str, tuple[Component, ...]]:
    """The components, sorted, by the name of the library. Raises BuildError, which names all that lack a notice."""
    compiled: dict[str, tuple[Component, ...]] = {}
    lacking: set[str] = set()
    for library in libraries:
        if library.modules and library.label not in notices.linked:
            lacking.add(f"{library.label} in [linked]")
        components = []
        for label, listed in sorted(_listed(library, notices).items()):
            component = _joined(listed, notices.components.get(label))
            if component is None:
                lacking.add(f"{label} (of {library.label})")
            elif not component.licence or not component.source:
                lacking.add(f"licence and source of {label}")
            else:
                components.append(component)
        compiled[library.name] = tuple(components)
    if lacking:
        names = ", ".join(sorted(lacking))
        raise BuildError(f"packaging/debian/notices.toml lacks {names}: its first lines say how to add them")
    return compiled


def _listed(library: Library, notices: Notices) -> dict[str, Component]:
    """By label, each once: every Python's wheel has a bill of materials."""
    components = [component for sbom in library.sboms for component in _of_sbom(sbom)]
    for label in notices.linked.get(library.label, ()):
        name, _, version = label.partition(" ")
        components.append(Component(name, version))
    compilers = (version for module in library.modules for version in _COMPILER.findall(module.content))
    components += [Component("rust-std", version.decode()) for version in compilers]
    return {component.label: component for component in components}


def _of_sbom(sbom: Sbom) -> Iterator[Component]:
    try:
        document = msgspec.json.decode(sbom.content, type=_CycloneDx)
    except msgspec.DecodeError as error:
        raise BuildError(f"{sbom.name}: {error}. packaging/deb/components.py has to learn to read it") from None
    for entry in document.components:
        terms = [choice.expression or choice.license.id or choice.license.name for choice in entry.licenses]
        yield Component(entry.name, entry.version, " AND ".join(terms), _source(entry), entry.author, entry.purl)


def _source(component: _Entry) -> str:
    urls = {reference.type: reference.url for reference in component.external_references}
    for kind in ("vcs", "distribution", "website"):
        if kind in urls:
            return urls[kind]
    return f"https://crates.io/crates/{component.name}" if component.purl.startswith("pkg:cargo/") else ""


def _joined(listed: Component, notice: Component | None) -> Component | None:
    if notice is None:
        return None
    return replace(
        notice,
        licence=notice.licence or listed.licence,
        source=notice.source or listed.source,
        author=listed.author or f"the authors of {listed.name}",
        purl=listed.purl,
    )
