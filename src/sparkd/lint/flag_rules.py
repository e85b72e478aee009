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
    for one, head in _judged(launch):
        if head in NAMES and (reason := _wrong(one, _flag(head))):
            yield f"args.{one.name}", f"--{one.name} {reason}"


def unlisted(launch: Launch) -> Sights:
    for one, head in _judged(launch):
        if head in NAMES and (reason := _elsewhere(one, _flag(head))):
            yield f"args.{one.name}", f"--{one.name} {reason}"


def misprinted(launch: Launch) -> Sights:
    for one, head in _judged(launch):
        if right := _slip(head):
            yield f"args.{one.name}", f"--{one.name} is no flag of vLLM {VERSION}: --{right} is"


def unknown(launch: Launch) -> Sights:
    for one, head in _judged(launch):
        if head in NAMES or _slip(head):
            continue
        whole = _completed(head)
        if not whole:
            yield f"args.{one.name}", f"--{one.name} is no flag of vLLM {VERSION}{did_you_mean(head, NAMES)}"
        elif reason := _wrong(one, _flag(whole)) or _elsewhere(one, _flag(whole)):
            yield f"args.{one.name}", f"--{one.name} is read as --{whole}, and {reason}"


def _judged(launch: Launch) -> Iterator[tuple[Given, str]]:
    """Each flag with its name, but for fields behind a dot; what the recipe or another rule speaks of is left out."""
    for one in launch.given:
        head = one.name.partition(".")[0]
        if head not in RENAMED and not _is_extra(head, launch):
            yield one, head


def _flag(name: str) -> Flag:
    return _POSITIVE.get(name) or _NEGATIVE[name]


def _completed(name: str) -> str:
    """The flag that vLLM takes the beginning of a name for: the only one that begins so."""
    alike = [one for one in NAMES if one.startswith(name)]
    return alike[0] if len(alike) == 1 else ""


def _is_extra(name: str, launch: Launch) -> bool:
    return name in launch.extra or name.removeprefix("no-") in launch.extra


def _wrong(one: Given, flag: Flag) -> str:
    """Why vLLM can't read it, whatever its choices are."""
    reasons = (_miscounted(one, flag), *(_mistyped(flag, text) for text in _texts(one)))
    return next(filter(None, reasons), "")


def _elsewhere(one: Given, flag: Flag) -> str:
    if "." in one.name or _wrong(one, flag):
        return ""
    return next(filter(None, (flag.unlisted(text) for text in _texts(one))), "")


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
    if name in NAMES or _completed(name) or len(name) < SHORTEST_MISPRINT:
        return ""
    return next((known for known in NAMES if _one_off(name, known)), "")


def _one_off(said: str, known: str) -> bool:
    start = next((at for at, (a, b) in enumerate(zip(said, known, strict=False)) if a != b), min(len(said), len(known)))
    rest, right = said[start:], known[start:]
    if any(letter.isdigit() for letter in rest[:1] + right[:1]):  # another size or number is another flag
        return False
    return rest[1:] == right or rest == right[1:] or rest[1:] == right[1:] or rest[1::-1] + rest[2:] == right
