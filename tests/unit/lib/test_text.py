"""Texts that people read."""

import pytest

from sparkd.base.lib.text import counted, did_you_mean, reflow, sanitize, size


@pytest.mark.parametrize(("size_bytes", "words"), [(0, "0 MiB"), (512 << 20, "512 MiB"), (3 << 29, "1.5 GiB")])
def test_a_size_has_the_unit_that_people_read(size_bytes: int, words: str) -> None:
    assert size(size_bytes) == words


def test_one_thing_has_no_plural() -> None:
    assert [counted(number, "request") for number in (0, 1, 2000)] == ["0 requests", "1 request", "2,000 requests"]


def test_a_common_ending_alone_is_no_likeness() -> None:
    assert did_you_mean("B12X_MLA_SPARSE", ("XPU_MLA_SPARSE",)) == ""
    assert did_you_mean("mpt", ("mtp",)) == "; did you mean mtp?"


REFLOWED = """\
one two three four or
five six

  warn   six eight nine
         ten
  - eleven twelve
    intent
"""


WIDE = """\
one two three four or five six

  warn   six eight nine ten
  - eleven twelve
    intent
"""


NARROW = """\
one two three four
or five six

  warn   six eight
         nine ten
  - eleven twelve
    intent
"""


@pytest.mark.parametrize(("width", "shown"), [(80, WIDE), (24, REFLOWED), (18, NARROW)])
def test_prose_is_broken_at_another_width_and_keeps_the_ends_that_are_meant(width: int, shown: str) -> None:
    assert f"{reflow(REFLOWED, width, filled=24)}\n" == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode", "plain ünïcode"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202e", "\\u202e"),
        ("\udc80", "\\udc80"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_nothing_from_outside_moves_the_cursor(text: str, shown: str) -> None:
    assert sanitize(text) == shown
