"""Lines made for one regular expression, to make it slow: its own pieces, repeated behind each of its beginnings."""

import re
from collections.abc import Iterator
from itertools import islice
from re import _constants as ops  # type: ignore[attr-defined]  # the parser has no public name
from re import _parser as parser  # type: ignore[attr-defined]  # as above

MOST_WAYS = 24
"""Alternatives that are followed."""
TAILS = ("", "\0", " x", "\n")


def lines(pattern: re.Pattern[str] | re.Pattern[bytes], length: int) -> Iterator[str]:
    """Each about `length` characters long. For a pattern of bytes, in Latin-1."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    flags = pattern.flags & ~re.UNICODE
    keys = set()
    for way in islice(_ways(parser.parse(source, flags)), MOST_WAYS):
        pieces = [piece for piece in way if piece]
        count = len(pieces)
        for first, last in ((start, end) for start in range(count) for end in {start + 1, start + 2, start + 3, count}):
            if last > count:
                continue
            head, body = "".join(pieces[:first]), "".join(pieces[first:last])
            body = body[: (body + body).index(body, 1)]
            while head.endswith(body[-1]):  # the same line, of another length
                head, body = head[:-1], body[-1] + body[:-1]
            rest = "".join(pieces[last:-1])
            for tail in (*TAILS, rest):
                key = (head, body, tail)
                if key not in keys:
                    keys.add(key)
                    yield head + body * (length // len(body)) + tail


def _ways(parsed: object) -> Iterator[list[str]]:
    """Texts that match, each as a list of its pieces; one for each alternative of each group."""
    nodes = [_node(op, argument) for op, argument in parsed]  # type: ignore[attr-defined]  # of the parser
    longest = max((len(one) for one in nodes), default=0)
    for number in range(max(1, longest)):
        way: list[str] = []
        for choices in nodes:
            way += choices[number % len(choices)] if choices else []
        yield _joined(way)


def _joined(pieces: list[str]) -> list[str]:
    """Characters that follow each other literally are one piece."""
    joined: list[str] = []
    for text in pieces:
        if joined and text.startswith("\x01"):
            joined[-1] += text[1:]
        else:
            joined.append(text.removeprefix("\x01"))
    return joined


def _node(op: object, argument: object) -> list[list[str]]:
    """Alternatives, each a list of pieces. A piece of one literal begins with \\x01."""
    match op:
        case ops.LITERAL:
            return [["\x01" + chr(argument)]]  # type: ignore[arg-type]  # a code point
        case ops.NOT_LITERAL:
            return [["x" if argument != ord("x") else "y"]]
        case ops.ANY:
            return [["x"], [" "]]
        case ops.IN:
            return [[member] for member in _members(argument)]
        case ops.BRANCH:
            return [way for branch in argument[1] for way in _ways(branch)]  # type: ignore[index]  # of the parser
        case ops.SUBPATTERN:
            return list(_ways(argument[3]))  # type: ignore[index]  # as above
        case ops.ATOMIC_GROUP:
            return list(_ways(argument))
        case ops.MAX_REPEAT | ops.MIN_REPEAT | ops.POSSESSIVE_REPEAT:
            least, inner = argument[0], argument[2]  # type: ignore[index]  # as above
            return [["".join(piece.removeprefix("\x01") for piece in way)] * max(1, least) for way in _ways(inner)]
        case ops.ASSERT:
            return list(_ways(argument[1]))  # type: ignore[index]  # as above
        case _:
            return []


def _members(members: object) -> list[str]:
    """A few characters of a set, of each of its parts one."""
    negated = members[0][0] is ops.NEGATE  # type: ignore[index]  # of the parser
    if negated:
        allowed = re.compile(f"[{re.escape(''.join(_members(members[1:])))}]") if members[1:] else None  # type: ignore[index]
        return [character for character in "x 1.:/" if not (allowed and allowed.match(character))][:3] or ["~"]
    chars = []
    for kind, value in members:  # type: ignore[attr-defined]  # as above
        match kind:
            case ops.LITERAL:
                chars.append(chr(value))
            case ops.RANGE:
                chars.append(chr(value[0]))
            case ops.CATEGORY:
                chars.append({"DIGIT": "1", "SPACE": " ", "WORD": "x"}.get(str(value).removeprefix("CATEGORY_"), "~"))
    return chars[:6]
