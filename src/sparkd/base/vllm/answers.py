"""Faults of an engine's answer: judgements of texts, pure. Neither style nor well-formed nonsense is a fault.

Repetition is judged only where tokens were drawn at temperature 1: at 0 a small model repeats itself without a fault.
"""

import re
from collections.abc import Sequence
from unicodedata import name

from sparkd.base.lib.text import parse_json, sanitize
from sparkd.base.vllm.api import Answer

ENDS = ("length", "stop")
LONGEST = 4000
"""Characters of an answer that are searched."""
MOST_UNDECODABLE = 0.5
"""Share of replacement characters. A random model over bytes makes some 15 %."""
LEAST_REPEATS = 4
"""Times that a piece must follow itself for a text of nothing else to be a repetition."""
LEAST_FOREIGN, MOST_FOREIGN = 8, 0.1
"""Letters of other scripts, and their share, that are a fault: a quoted name has fewer, and so has a random model."""
FOREIGN = (
    "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "CYRILLIC", "ARABIC", "HEBREW", "THAI", "DEVANAGARI",
    "BENGALI", "TAMIL", "TELUGU", "GEORGIAN", "ARMENIAN", "LAO", "KHMER", "MYANMAR", "ETHIOPIC",
)  # fmt: skip
"""Scripts that no plain English answer is in, as the names of their letters begin. Greek is for formulas."""
MARKUP = re.compile(
    r"<\|[A-Za-z_][\w ]{1,40}\|>|<[|｜][^|｜<>\n]{1,40}｜>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|\[TOOL_CALLS\]"  # noqa: RUF001
    r"|</?(?:tool_calls?|tool_response|tools|function_calls?|invoke|arg_key)\b[^<>\n]{0,80}>|<(?:function|parameter)="
    r'|"type": ?"function"'
)
"""Marks of chat templates and tool calls; the answer to a prompt that offers no tool has none of them."""
THINKING = re.compile(r"</?think(?:ing)?>")
_LOOP = re.compile(r"([^\W\d_][^\n]{0,11}?)\1{11,}|([^\W\d_][^\n]{12,40}?)\2{3,}")
"""Twelve times the same piece of up to 12 characters, or four times one of up to 41; it begins with a letter."""


def find_fault(answer: Answer, wanted: int, *, chat: bool = False, thinks: bool = False, tool: str = "") -> str:
    """The fault of an answer that was drawn at temperature 1 for an English prompt; empty without one.

    `wanted`: the most tokens that were requested. `thinks`: the engine has a parser for reasoning. `tool`: the function
    that was offered.
    """
    if fault := find_end_fault(answer, wanted, (*ENDS, "tool_calls") if tool else ENDS):
        return fault
    if answer.calls:
        return _find_call_fault(answer, tool)
    text = (answer.text or answer.reasoning)[:LONGEST]
    if not text.strip():
        return f"an empty answer, of {answer.tokens} tokens, ended by {answer.finish}"
    if len(text) >= 2 * LEAST_REPEATS and text.count("\ufffd") > MOST_UNDECODABLE * len(text):
        return f"no text: {_quote(text)}"
    if _is_repetition(text.strip()):
        return f"repeats one piece of text: {_quote(text)}"
    if loop := _LOOP.search(text):
        return f"repeats itself: {_quote(loop[0])}"
    return _find_chat_fault(answer.text[:LONGEST], thinks) if chat else ""


def find_end_fault(answer: Answer, wanted: int, ends: Sequence[str] = ENDS) -> str:
    """Why there is no answer, or no whole one, at any temperature; else empty."""
    if answer.error:
        return f"a completion failed: {answer.error}"
    if answer.finish not in ends:
        return f"ended with {_quote(answer.finish)}, not by its length or a stop"
    if answer.finish == "length" and answer.tokens is not None and answer.tokens < wanted:
        return f"cut off: {answer.tokens} of {wanted} tokens"
    return ""


def find_difference(answers: Sequence[Answer]) -> str:
    """How answers to one prompt at temperature 0 differ in their first letters; later, rounding alone may do that."""
    texts = [answer.text for answer in answers if not answer.error]
    if len({text.lstrip()[:1] for text in texts}) > 1:
        return f"the same prompt has different answers at temperature 0: {', '.join(map(_quote, texts))}"
    return ""


def _find_chat_fault(text: str, thinks: bool) -> str:
    if markup := MARKUP.search(text) or (THINKING.search(text) if thinks else None):
        return f"markup of a template or a tool in the answer: {_quote(text[max(0, markup.start() - 10) :])}"
    letters = [letter for letter in text if letter.isalpha()]
    foreign = [letter for letter in letters if not letter.isascii() and name(letter, "").startswith(FOREIGN)]
    if len(foreign) >= LEAST_FOREIGN and len(foreign) > MOST_FOREIGN * len(letters):
        script = name(foreign[0]).split()[0]
        return f"{script} in the answer to an English prompt: {_quote(text[text.index(foreign[0]) :])}"
    return ""


def _find_call_fault(answer: Answer, tool: str) -> str:
    for function, arguments in answer.calls:
        if function != tool:
            return f"calls a tool that was not offered: {_quote(function)}"
        try:
            is_object = isinstance(parse_json(arguments), dict)
        except ValueError:
            is_object = False
        if not is_object and answer.finish != "length":
            return f"a tool call whose arguments are no JSON object: {_quote(arguments)}"
    return ""


def _is_repetition(text: str) -> bool:
    """Whether the text is one short piece again and again."""
    return any(text[size:] == text[:-size] for size in range(1, len(text) // LEAST_REPEATS + 1))


def _quote(text: str) -> str:
    return repr(sanitize(text, 40))
