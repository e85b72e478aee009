"""From an SPDX expression to the licence texts that go with a component."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from deb.errors import BuildError

_COMMON = {
    "Apache-2.0": "Apache-2.0",
    "GPL-2.0-only": "GPL-2",
    "GPL-3.0-only": "GPL-3",
    "LGPL-2.1-or-later": "LGPL-2.1",
    "MPL-2.0": "MPL-2.0",
}
"""In /usr/share/common-licenses."""
_PREFERRED = ("Apache-2.0", "MIT")


def chosen(expression: str) -> tuple[str, ...]:
    """The licences to keep to, each once: `(MIT OR Apache-2.0) AND Zlib` gives Apache-2.0 and Zlib.

    Raises BuildError for an expression that nests deeper, or that mixes AND and OR without parentheses.
    """
    terms = expression.split(" AND ")
    licences = []
    for term in terms:
        grouped = term.startswith("(") and term.endswith(")")
        alternatives = (term[1:-1] if grouped else term).split(" OR ")
        ambiguous = len(terms) > 1 and len(alternatives) > 1 and not grouped
        if ambiguous or any(set(alternative) & set("()/") for alternative in alternatives):
            raise BuildError(f"{expression}: packaging/deb/licences.py has to learn to read such a licence")
        licences.append(next((licence for licence in _PREFERRED if licence in alternatives), alternatives[0]))
    return tuple(dict.fromkeys(licences))


def text(licence: str, holder: str, stored: Mapping[str, str]) -> str:
    """The licence's own words, or where Debian has them. `stored` has packaging/debian/licences by SPDX identifier."""
    name, _, exception = licence.partition(" WITH ")
    if name in _COMMON:
        words = f'{name}: the full text is in "/usr/share/common-licenses/{_COMMON[name]}" on Debian systems.'
    else:
        words = Template(_stored(name, stored)).safe_substitute(holder=holder)
    return f"{words}\n\n{_stored(exception, stored)}" if exception else words


def _stored(name: str, stored: Mapping[str, str]) -> str:
    if name not in stored:
        raise BuildError(f"packaging/debian/licences has no {name}.txt: add its text, without copyright lines")
    return stored[name].strip("\n")
