"""Text: sanitized output, sizes, suggestions, and tables of a command's output."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias
from unicodedata import combining, east_asian_width

GIB = 1 << 30
MIB = 1 << 20

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def printable(text: str) -> str:
    """Text for a log: colours removed, other unprintable characters escaped."""
    return text if text.isprintable() else _escape(_ANSI.sub("", text).replace("\t", "    "))


def sanitize(text: str, limit: int = 200) -> str:
    """Text for a name: one line of at most `limit` characters, unprintable ones escaped."""
    line = _escape(text[: limit + 1])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cell_width(text: str) -> int:
    """Columns that the text takes on a terminal: two for each wide letter of East Asia, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def pad(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))


def reflow(text: str, width: int, filled: int = 120) -> str:
    """Prose that was broken at `filled` columns, broken at `width` instead.

    A line is joined to the one above if that has no room for the line's first word, and if the line is indented to the
    column where the text above begins. That column is behind a `- ` or behind the last gap of two spaces, as in
    `  warn   text`. Every other end of a line stays.
    """
    import textwrap

    paragraphs: list[tuple[str, int]] = []
    above_length, text_column = filled + 1, 0
    for line in text.splitlines():
        words = line.lstrip()
        indent = len(line) - len(words)
        if indent == text_column and above_length <= filled < above_length + 1 + len(words.partition(" ")[0]):
            paragraphs[-1] = f"{paragraphs[-1][0]} {words}", text_column
        else:
            text_column = line.rfind("  ") + 2 if "  " in line else indent
            text_column += 2 if line.startswith("- ", text_column) else 0
            paragraphs.append((line, text_column))
        above_length = len(line)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for paragraph, text_column in paragraphs:
        wrapper.subsequent_indent = " " * min(text_column, width // 2)
        lines += wrapper.wrap(paragraph) or [""]
    return "\n".join(lines)


def size(size_bytes: int) -> str:
    """`96.0 GiB`, or `512 MiB` below one GiB."""
    return f"{size_bytes / GIB:.1f} GiB" if abs(size_bytes) >= GIB else f"{round(size_bytes / MIB)} MiB"


def counted(number: int, noun: str) -> str:
    """`1 request`, `2,000 requests`."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def natural_order(text: str) -> list[tuple[int, str]]:
    """A key to sort by: numbers in it count as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or empty where no known word is similar.

    A dotted name with another section wins: `cluster.recipe` means `engine.recipe`.
    """
    from difflib import SequenceMatcher, get_close_matches

    words = list(known)
    last = word.rpartition(".")[2]
    in_other_sections = [name for name in words if name.rpartition(".")[2] == last]
    if len(in_other_sections) == 1:
        return f"; did you mean {in_other_sections[0]}?"
    completions = [name for name in words if len(word) > 2 and name.startswith(word)]
    if len(completions) == 1:
        return f"; did you mean {completions[0]}?"
    for similar in get_close_matches(word, words, n=1):
        # A common ending alone may be half of the letters. So the beginning must be the same too, or the letters be the
        # same in another order, or only one letter differ.
        replaced = len(similar) == len(word) > 3 and sum(map(str.__ne__, similar, word)) == 1
        is_near = replaced or similar[:3] == word[:3] or sorted(similar) == sorted(word)
        if is_near or SequenceMatcher(None, similar, word).ratio() >= 0.85:
            return f"; did you mean {similar}?"
    return ""


def format_key(key: tuple[str, ...], value: object) -> str:
    """`section.key = value`, cut short."""
    try:
        shown = json.dumps(value, default=str)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or lists in lists without end
        shown = "(too long to print)"
    return f"{'.'.join(key)} = {shown if len(shown) <= 120 else shown[:117] + '...'}"


def parse_json(text: str | bytes) -> object:
    """Parse JSON that others wrote. Raises ValueError for anything else, also for endless lists in lists."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def validator_message(message: str) -> str:
    """A message of pydantic's in plainer words."""
    return (
        message.removeprefix("Value error, ")
        .replace("Input should be", "must be")
        .replace("a valid string", "text in quotes")
        .replace("a valid tuple", "a list in brackets")
    )


GAP = "  "


class Table(NamedTuple):
    rows: Sequence[tuple[str, ...]]
    levels: Sequence[str] = ()
    """A check's level for each row, which a terminal shows as a colour."""
    heading: bool = False
    flexible: int = 1
    """Number of last columns that a narrow terminal may narrow."""
    one_line: bool = False
    """Whether a terminal cuts the last column instead of wrapping it."""

    def __str__(self) -> str:
        """Columns as wide as their widest cell."""
        widths = [max(map(cell_width, column)) for column in zip(*self.rows, strict=True)]
        return "\n".join(GAP.join(map(pad, row, widths)).rstrip() for row in self.rows)


Parts: TypeAlias = Sequence[str | Table]


def plain(parts: Parts) -> str:
    """The parts below each other, without tables that have no row."""
    return "\n".join(str(part) for part in parts if isinstance(part, str) or part.rows)
