"""Marks in place of values that only a shell or its user knows: refused, or dropped, where the value is used."""

import re
from collections.abc import Iterable

from sparkd.base.vllm.args import SECRET_NAME
from sparkd.base.vllm.flag import SHIPPED
from sparkd.tools.importers.options import Launch, LineError, redact

OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Begin and end of a mark: noncharacters, which Unicode leaves to a program's own use."""
_CODES = {ord(sign): 0xE000 + ord(sign) for sign in " $`\"'\\(){}<>|&;#*?~"}
"""A letter for private use in place of each sign that a shell would read, as a text may be read twice."""
_SIGNS = {code: sign for sign, code in _CODES.items()}
_MARK = re.compile(f"(?<!{OPEN}){OPEN}++([^{OPEN}{_CLOSE}]+){_CLOSE}*")
"""Matches a mark of a mark, too: a text may be read twice."""
_SWITCHES = {f"--{name}" for name, flag in SHIPPED.by_name.items() if flag.kind == "switch"}


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


def refuse_unknown(words: Iterable[str], line: int) -> None:
    """Raise LineError for the first word with a part that is not known."""
    for word in filter(unknown, words):
        raise LineError(line, explain_missing(word))


def explain_missing(word: str) -> str:
    """Name the part of a word that is not known, and how to give its value."""
    missing = redact(unknown(word))
    name = missing.strip("${}<>").removesuffix("[@]")
    hint = f", or give -o {name}=VALUE" if re.fullmatch(r"[\w:./-]+", name) else ""
    return f"what {missing} stands for in {redact(shown(word))[:60]} is not known: write its value{hint}"


def drop_unknown(words: list[str], launch: Launch) -> list[str]:
    """Drop words that only a shell knows, and note them as missing. The first value of a flag is kept."""
    kept: list[str] = []
    for word in words:
        is_value = kept and kept[-1].startswith("-") and kept[-1] not in _SWITCHES
        if kept and is_unknown(word) and (is_unknown(word, "[@]}") or not is_value):
            launch.note(launch.line, f"left out: {explain_missing(word)}", is_missing=True)
        else:
            kept.append(word)
    return kept
