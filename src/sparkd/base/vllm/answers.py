"""What is wrong with an engine's answer: judgements of texts, pure. No style is one, and nonsense is none.

A model drawn at temperature 1 does not repeat itself, so repetition is judged there only: small ones do at 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import name

from sparkd.base.lib.text import parse_json, sanitize
from sparkd.base.vllm.api import Answer

ENDS = ("length", "stop")
EXCERPT, LONGEST = 40, 4000
MOST_UNDECODABLE = 0.5
"""Share of replacement characters. A random model over bytes makes some 15 %."""
LEAST_REPEATS = 4
LEAST_FOREIGN, MOST_FOREIGN = 8, 0.1
"""Letters of other scripts, and their share: a quoted name has fewer, a few bytes of a random model too."""
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
"""Of chat templates and tool calls; a prompt that offers no tool has none of it in its answer."""
THINKING = re.compile(r"</?think(?:ing)?>")
_LOOP = re.compile(r"([^\W\d_][^\n]{0,11}?)\1{11,}|([^\W\d_][^\n]{12,40}?)\2{3,}")


def find_fault(answer: Answer, wanted: int, *, chat: bool = False, thinks: bool = False, tool: str = "") -> str:
    """Of an answer drawn at temperature 1 for an English prompt; empty where nothing is wrong.

    `wanted`: its most tokens. `thinks`: the engine has a parser for reasoning. `tool`: the function that was offered.
    """
    if found := find_end_fault(answer, wanted, (*ENDS, "tool_calls") if tool else ENDS):
        return found
    text = (answer.text or answer.reasoning)[:LONGEST]
    if answer.calls:
        return _call_fault(answer, tool)
    if not text.strip():
        return f"an empty answer, of {answer.tokens} tokens, ended by {answer.finish}"
    if len(text) >= 2 * LEAST_REPEATS and text.count("\ufffd") > MOST_UNDECODABLE * len(text):
        return f"no text: {quoted(text)}"
    if _repeats(text.strip()):
        return f"repeats one piece of text: {quoted(text)}"
    if loop := _LOOP.search(text):
        return f"repeats itself: {quoted(loop[0])}"
    return _chat_fault(answer.text[:LONGEST], thinks) if chat else ""


def find_end_fault(answer: Answer, wanted: int, ends: Sequence[str] = ENDS) -> str:
    """Whether there is an answer, and a whole one; for any temperature."""
    if answer.error:
        return f"a completion failed: {answer.error}"
    if answer.finish not in ends:
        return f"ended with {quoted(answer.finish)}, not by its length or a stop"
    if answer.finish == "length" and answer.tokens is not None and answer.tokens < wanted:
        return f"cut off: {answer.tokens} of {wanted} tokens"
    return ""


def differ(answers: Sequence[Answer]) -> str:
    """Of one prompt at temperature 0. Only the first letter counts: kernels may round differently later on."""
    whole = [one for one in answers if not one.error]
    if len({one.text.lstrip()[:1] for one in whole}) > 1:
        return f"the same prompt has different answers at temperature 0: {', '.join(quoted(one.text) for one in whole)}"
    return ""


def _chat_fault(text: str, thinks: bool) -> str:
    if found := MARKUP.search(text) or (THINKING.search(text) if thinks else None):
        return f"markup of a template or a tool in the answer: {quoted(text[max(0, found.start() - 10) :])}"
    letters = [one for one in text if one.isalpha()]
    foreign = [one for one in letters if not one.isascii() and name(one, "").startswith(FOREIGN)]
    if len(foreign) >= LEAST_FOREIGN and len(foreign) > MOST_FOREIGN * len(letters):
        script = name(foreign[0]).split()[0]
        return f"{script} in the answer to an English prompt: {quoted(text[text.index(foreign[0]) :])}"
    return ""


def _call_fault(answer: Answer, tool: str) -> str:
    for function, arguments in answer.calls:
        if function != tool:
            return f"calls a tool that was not offered: {quoted(function)}"
        try:
            right = isinstance(parse_json(arguments), dict)
        except ValueError:
            right = False
        if not right and answer.finish != "length":
            return f"a tool call whose arguments are no JSON object: {quoted(arguments)}"
    return ""


def _repeats(text: str) -> bool:
    """Whether it is one short piece again and again."""
    return any(text[size:] == text[:-size] for size in range(1, len(text) // LEAST_REPEATS + 1))


def quoted(text: str) -> str:
    return repr(sanitize(text, EXCERPT))
