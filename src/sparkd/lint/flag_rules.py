"""What the table of flags tells of a launch. An image may hold a fork, whose flags and choices nobody here knows:
only what no build of vLLM can read, or what is one slip of the hand away from a flag, is sure to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sparkd.lint.flag_table import Flag
from sparkd.lint.flag_table_vllm import FLAGS, VERSION
from sparkd.lint.flag_words import Given
from sparkd.lint.launch import Launch
from sparkd.lint.sights import JSON_FLAGS, JSON_OR_TEXT, NOTHING, RENAMED, Sights
from sparkd.nearest import did_you_mean

SHORTEST_MISPRINT = 8
"""Of shorter names, two that differ in a letter may both be meant."""

_POSITIVE = {flag.name: flag for flag in FLAGS}
_NEGATIVE = {f"no-{flag.name}": flag for flag in FLAGS if flag.negative}
NAMES = (*_POSITIVE, *_NEGATIVE)


def mistaken(launch: Launch) -> Sights:
    for one, flag in _known(launch):
        reasons = (_miscounted(one, flag), *(_mistyped(flag, text) for text in _texts(one)))
        if reason := next(filter(None, reasons), ""):
            yield f"args.{one.name}", f"--{one.name} {reason}"


def unlisted(launch: Launch) -> Sights:
    for one, flag in _known(launch):
        if "." in one.name or _miscounted(one, flag):
            continue
        for text in _texts(one):
            if not _mistyped(flag, text) and (reason := flag.unlisted(text)):
                yield f"args.{one.name}", f"--{one.name} {reason}"


def misprinted(launch: Launch) -> Sights:
    for name in _unknown(launch):
        if right := _slip(name):
            yield f"args.{name}", f"--{name} is no flag of vLLM {VERSION}: --{right} is"


def unknown(launch: Launch) -> Sights:
    for name in _unknown(launch):
        if not _slip(name):
            near = did_you_mean(name.partition(".")[0], NAMES)
            yield f"args.{name}", f"--{name} is no flag of vLLM {VERSION}{near}"


def named(name: str) -> Flag | None:
    """The flag that a name means; a beginning that only one flag has is enough for vLLM."""
    if name not in NAMES:
        alike = [one for one in NAMES if one.startswith(name)]
        name = alike[0] if len(alike) == 1 else ""
    return _POSITIVE.get(name) or _NEGATIVE.get(name)


def _known(launch: Launch) -> Iterator[tuple[Given, Flag]]:
    for one in launch.given:
        head = one.name.partition(".")[0]
        flag = named(head)
        if flag and not _is_extra(head, launch):
            yield one, flag


def _unknown(launch: Launch) -> Iterator[str]:
    for one in launch.given:
        head = one.name.partition(".")[0]
        if head not in RENAMED and named(head) is None and not _is_extra(head, launch):
            yield one.name


def _is_extra(name: str, launch: Launch) -> bool:
    return name in launch.extra or name.removeprefix("no-") in launch.extra


def _miscounted(one: Given, flag: Flag) -> str:
    if "." not in one.name:
        return flag.miscounted(len(one.values), one.joined)
    # vLLM takes the next word, whatever it is, and no other.
    return "" if len(one.values) == 1 else f"takes one value, and {len(one.values) or 'none'} is given"


def _texts(one: Given) -> Iterator[str]:
    """Its values as the flag itself gets them: a field behind a dot becomes an object."""
    for value in one.values:
        if value is not None:
            yield json.dumps({"field": value}) if "." in one.name else value


def _mistyped(flag: Flag, text: str) -> str:
    told = flag.name in (*JSON_FLAGS, *JSON_OR_TEXT) and text not in NOTHING  # by the rule on JSON, which says where
    return "" if told else flag.mistyped(text)


def _slip(name: str) -> str:
    """The flag whose name differs in one letter: wrong, left out, too many, or in its neighbour's place."""
    head = name.partition(".")[0]
    if len(head) < SHORTEST_MISPRINT:
        return ""
    return next((known for known in NAMES if _one_off(head, known)), "")


def _one_off(said: str, known: str) -> bool:
    start = next((at for at, (a, b) in enumerate(zip(said, known, strict=False)) if a != b), min(len(said), len(known)))
    rest, right = said[start:], known[start:]
    if any(letter.isdigit() for letter in rest[:1] + right[:1]):  # another size or number is another flag
        return False
    return rest[1:] == right or rest == right[1:] or rest[1:] == right[1:] or rest[1::-1] + rest[2:] == right
