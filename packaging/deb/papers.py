"""Papers that go with the libraries: copyright file and bill of materials."""

from __future__ import annotations

import json
import re
from email.message import Message

from deb.targets import Architecture
from deb.vendor import FOLDER, Library, Vendored

_HOLDER = re.compile(r"^.*?copyright\s+(?:\(c\)\s*|©\s*)?(?P<who>\d{4}.*)$", re.IGNORECASE | re.MULTILINE)
_APACHE = "TERMS AND CONDITIONS FOR USE, REPRODUCTION"
_APACHE_REFERENCE = 'The full text is in "/usr/share/common-licenses/Apache-2.0" on Debian systems.'


def copyright_text(own: str, vendored: Vendored) -> str:
    """DEP-5: `own`, and a paragraph for each library."""
    return "\n".join([own, *(_paragraph(library) for library in vendored.libraries)])


def sbom(version: str, architecture: Architecture, vendored: Vendored) -> bytes:
    """CycloneDX 1.6: what the package carries."""
    components = [
        {
            "type": "library",
            "name": library.name,
            "version": library.version,
            "purl": f"pkg:pypi/{library.name}@{library.version}",
            "licenses": [{"license": {"name": _licence_name(library.metadata)}}],
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


def _paragraph(library: Library) -> str:
    name = _licence_name(library.metadata)
    short = f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', name)}~{library.name}"
    text = "\n".join(one.text for one in library.licences)
    body = _APACHE_REFERENCE if _APACHE in text else text or name
    files = "\n ".join(f"{FOLDER}/{top}" if top.endswith(".py") else f"{FOLDER}/{top}/*" for top in library.top_levels)
    return (
        f"Files: {files}\n"
        f"Copyright: {_folded(_holders(library, text))}\n"
        f"License: {short}\n"
        f"Comment: {library.name} {library.version}\n\n"
        f"License: {short}\n"
        f"{_indented(body)}\n"
    )


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
