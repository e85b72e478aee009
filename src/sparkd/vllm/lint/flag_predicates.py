"""Predicates based on the table of flags. An image may contain a fork with more flags and choices, so only values that
no build of vLLM can read, and names one typing error away from a flag, are certain to fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from sparkd.lib.text import did_you_mean
from sparkd.vllm.command_line import ParsedFlag
from sparkd.vllm.flag import Flag
from sparkd.vllm.flag_table import FLAGS, VERSION
from sparkd.vllm.lint.engine import Launch
from sparkd.vllm.lint.predicates import JSON_FLAGS, JSON_OR_TEXT, NOTHING, RENAMED, Matches, about

SHORTEST_TYPO = 8
"""Shorter names that differ in one letter may both exist."""

_BY_NAME = {flag.name: flag for flag in FLAGS} | {f"no-{flag.name}": flag for flag in FLAGS if flag.negative}
NAMES = tuple(_BY_NAME)


def wrong_value(launch: Launch) -> Matches:
    return _match_known(launch, _unreadable)


def not_a_choice(launch: Launch) -> Matches:
    return _match_known(launch, _unlisted)


def _match_known(launch: Launch, why: Callable[[ParsedFlag, Flag], str]) -> Matches:
    for one, head in _judged(launch):
        if head in _BY_NAME and (reason := why(one, _BY_NAME[head])):
            yield about(one.name, reason)


def likely_typo(launch: Launch) -> Matches:
    for one, head in _judged(launch):
        if right := _typo_of(head):
            yield about(one.name, f"is no flag of vLLM {VERSION}: --{right} is")


def unknown(launch: Launch) -> Matches:
    for one, head in _judged(launch):
        if head in _BY_NAME or _typo_of(head):
            continue
        whole = _completed(head)
        if not whole:
            yield about(one.name, f"is no flag of vLLM {VERSION}{did_you_mean(head, NAMES)}")
        elif reason := _unreadable(one, _BY_NAME[whole]) or _unlisted(one, _BY_NAME[whole]):
            yield about(one.name, f"is read as --{whole}, and {reason}")


def _judged(launch: Launch) -> Iterator[tuple[ParsedFlag, str]]:
    """Each flag with its name before a dot, except flags covered by the recipe or another rule."""
    for one in launch.given:
        head = one.name.partition(".")[0]
        if not {head, head.removeprefix("no-")} & set(launch.extra) and head not in RENAMED:
            yield one, head


def _completed(name: str) -> str:
    """The flag that vLLM takes an abbreviation for: the only one with this prefix."""
    alike = [one for one in NAMES if one.startswith(name)]
    return alike[0] if len(alike) == 1 else ""


def _unreadable(one: ParsedFlag, flag: Flag) -> str:
    """Why vLLM can't read the flag, apart from its choices."""
    return next(filter(None, (_wrong_arity(one, flag), *(_wrong_type(flag, text) for text in _texts(one)))), "")


def _unlisted(one: ParsedFlag, flag: Flag) -> str:
    if "." in one.name or _unreadable(one, flag):
        return ""
    return next(filter(None, (flag.not_a_choice(text) for text in _texts(one))), "")


def _wrong_arity(one: ParsedFlag, flag: Flag) -> str:
    if "." not in one.name:
        return flag.wrong_arity(len(one.values), one.joined)
    # vLLM takes exactly the next word.
    return "" if len(one.values) == 1 else f"takes one value, and {len(one.values) or 'none'} is given"


def _texts(one: ParsedFlag) -> Iterator[str]:
    """The values as the flag gets them: a dotted field becomes an object."""
    for value in one.values:
        if value is not None:
            yield json.dumps({"field": value}) if "." in one.name else value


def _wrong_type(flag: Flag, text: str) -> str:
    by_json_rule = flag.name in (*JSON_FLAGS, *JSON_OR_TEXT) and text not in NOTHING  # which reports the position
    return "" if by_json_rule else flag.wrong_type(text)


def _typo_of(name: str) -> str:
    """The flag whose name differs by one letter: wrong, missing, extra, or swapped with its neighbour."""
    if name in _BY_NAME or _completed(name) or len(name) < SHORTEST_TYPO:
        return ""
    return next((known for known in NAMES if _one_off(name, known)), "")


def _one_off(typed: str, known: str) -> bool:
    pairs = enumerate(zip(typed, known, strict=False))
    start = next((at for at, (a, b) in pairs if a != b), min(len(typed), len(known)))
    rest, right = typed[start:], known[start:]
    if any(letter.isdigit() for letter in rest[:1] + right[:1]):  # another size or number is another flag
        return False
    return rest[1:] == right or rest == right[1:] or rest[1:] == right[1:] or rest[1::-1] + rest[2:] == right
