"""Papers that go with the libraries: copyright file and bill of materials."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.message import Message

from deb import licences
from deb.components import Component, Notices, compiled_in
from deb.targets import Architecture
from deb.vendor import FOLDER, Library, Vendored

_HOLDER = re.compile(r"^.*?copyright\s+(?:\(c\)\s*|©\s*)?(?P<who>\d{4}.*)$", re.IGNORECASE | re.MULTILINE)
_PREFIX = re.compile(r"^copyright:?\s+(\(c\)\s*|©\s*)?", re.IGNORECASE)
_APACHE = "TERMS AND CONDITIONS FOR USE, REPRODUCTION"
_APACHE_REFERENCE = 'The full text is in "/usr/share/common-licenses/Apache-2.0" on Debian systems.'


def copyright_text(own: str, vendored: Vendored, notices: Notices, stored: Mapping[str, str]) -> str:
    """DEP-5: `own`, a paragraph for each library, and one for each component that is compiled into libraries.

    Raises BuildError where a component has no notice, or the text of its licence is not in packaging/debian/licences.
    """
    parts = [own]
    components: dict[str, Component] = {}
    carriers: dict[str, list[str]] = {}
    compiled = compiled_in(vendored.libraries, notices)
    for library in vendored.libraries:
        parts.append(_paragraph(library))
        if compiled[library.name]:
            parts.append(_modules(library, compiled[library.name]))
        for component in compiled[library.name]:
            components[component.label] = component
            carriers.setdefault(component.label, []).append(library.label)
    parts += [_component(components[label], carriers[label], stored) for label in sorted(components)]
    return "\n".join(parts)


def sbom(version: str, architecture: Architecture, vendored: Vendored, notices: Notices) -> bytes:
    """CycloneDX 1.6: the libraries that the package carries, each with what is compiled into it."""
    compiled = compiled_in(vendored.libraries, notices)
    components = [
        {
            "type": "library",
            "name": library.name,
            "version": library.version,
            "purl": f"pkg:pypi/{library.name}@{library.version}",
            "licenses": [{"license": {"name": _licence_name(library.metadata)}}],
            "components": [_entry(component) for component in compiled[library.name]],
        }
        for library in vendored.libraries
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "name": "sparkd", "version": version},
            "properties": [{"name": "deb:architecture", "value": architecture.debian}],
        },
        "components": components,
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _entry(component: Component) -> dict[str, object]:
    return {
        "type": "library",
        "name": component.name,
        "version": component.version,
        "licenses": [{"expression": component.licence}],
        "externalReferences": [{"type": "website", "url": component.source}],
        **({"purl": component.purl} if component.purl else {}),
    }


def _paragraph(library: Library) -> str:
    name = _licence_name(library.metadata)
    short = _short(name, library.name)
    text = "\n".join(library.licences)
    body = _APACHE_REFERENCE if _APACHE in text else text or name
    modules = {module.path for module in library.modules}
    files = [top if top.endswith(".py") else f"{top}/*" for top in library.top_levels if top not in modules]
    return (
        f"Files: {_files(files)}\n"
        f"Copyright: {_folded(_holders(library, text))}\n"
        f"License: {short}\n"
        f"Comment: {library.label}\n\n"
        f"License: {short}\n"
        f"{_indented(body)}\n"
    )


def _modules(library: Library, components: tuple[Component, ...]) -> str:
    """After the library's own paragraph: of two that match a file, DEP-5 goes by the last."""
    own = _holders(library, "\n".join(library.licences))
    holders = {" ".join(_PREFIX.sub("", line).split()) for one in components for line in one.copyright or [one.author]}
    shorts = [_short(_licence_name(library.metadata), library.name), *map(_component_short, components)]
    return (
        f"Files: {_files([module.path for module in library.modules])}\n"
        f"Copyright: {_folded(own + sorted(holders - {*own}))}\n"
        f"License: {' and '.join(shorts)}\n"
        f"Comment: {library.label}, with its components\n"
    )


def _component(component: Component, carriers: list[str], stored: Mapping[str, str]) -> str:
    chosen = licences.chosen(component.licence)
    choice = f", of which this package chooses {' AND '.join(chosen)}" if " OR " in component.licence else ""
    notice = "\n".join(component.copyright) or f"Copyright: {component.author}"
    texts = [licences.text(licence, component.holder, stored) for licence in chosen]
    body = "\n\n".join([notice, *texts])
    return (
        f"License: {_component_short(component)}\n"
        f"{_indented(body)}\n"
        f"Comment: {component.label}, component of {', '.join(carriers)}\n"
        f" {component.source}\n"
        f" {component.licence}{choice}\n"
    )


def _component_short(component: Component) -> str:
    return _short(component.licence, f"{component.name}-{component.version}")


def _short(licence: str, name: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', licence).strip('-')}~{name}"


def _files(paths: list[str]) -> str:
    return _folded([f"{FOLDER}/{path}" for path in paths])


def _holders(library: Library, licence: str) -> list[str]:
    found = {" ".join(match["who"].strip(" #*.").split()) for match in _HOLDER.finditer(licence)}
    author = library.metadata.get("Author-email") or library.metadata.get("Author") or f"the authors of {library.name}"
    return sorted(found) or [author]


def _folded(lines: list[str]) -> str:
    return "\n ".join(lines)


def _indented(text: str) -> str:
    """The body of a DEP-5 field: a blank before each line, a dot for an empty one."""
    lines = text.replace("\f", "").expandtabs(4).strip("\n").splitlines()
    return "\n".join(f" {line.rstrip() or '.'}" for line in lines)


def _licence_name(metadata: Message) -> str:
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [
        line.split(" :: ")[-1] for line in metadata.get_all("Classifier", []) if line.startswith("License ::")
    ]
    return ", ".join(classifiers) or str(metadata.get("License", "see the text")).splitlines()[0]
