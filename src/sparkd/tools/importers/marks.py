"""Marks in place of values that only a shell or its user knows: they matter only where the value is used."""

import re

from sparkd.base.vllm.args import SECRET_NAME

OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Begin and end of a mark: noncharacters, which Unicode leaves to a program's own use."""
_CODES = {ord(sign): 0xE000 + ord(sign) for sign in " $`\"'\\(){}<>|&;#*?~"}
"""A letter for private use in place of each sign that a shell would read, as a text may be read twice."""
_SIGNS = {code: sign for sign, code in _CODES.items()}
_MARK = re.compile(f"(?<!{OPEN}){OPEN}++([^{OPEN}{_CLOSE}]+){_CLOSE}*")
"""Matches a mark of a mark, too: a text may be read twice."""


def mark(name: str) -> str:
    """The mark in place of an unknown value. `name`: its expression, such as $HOME."""
    return OPEN + " ".join(shown(name)[:60].split()).translate(_CODES) + _CLOSE


def hide(name: str, value: str) -> str:
    """The value; of a secret its mark, so that it gets into no other variable and no flag."""
    return mark(f"${name}") if value and SECRET_NAME.search(name) else value


def unknown(text: str) -> str:
    """The expression of the first unknown value in the text; empty if there is none."""
    return match[1].translate(_SIGNS) if (match := _MARK.search(text)) else ""


def is_unknown(word: str, end: str = "") -> bool:
    """Whether the word is a mark alone, of an expression that ends with `end`, such as [@]} for a list."""
    return bool(_MARK.fullmatch(word)) and shown(word).endswith(end)


def shown(text: str) -> str:
    """The text for people: in place of each mark the expression of its value."""
    return _MARK.sub(lambda match: match[1].translate(_SIGNS), text)


def mark_variable(name: str) -> str:
    return mark(f"${{{name}}}")


def mark_array(name: str) -> str:
    return mark(f"${{{name}[@]}}")
