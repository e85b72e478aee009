"""sparkd's own events: one line each, whatever a field holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.lib.log import Events, events
from sparkd.lib.redact import Redactor


def written(*secrets: str) -> tuple[list[str], Events]:
    lines: list[str] = []
    return lines, events(lambda _, line: lines.append(line), Redactor(secrets))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\x1b[31mb\x1b[0m", "ab"),
        ("a\x1b\x07b", "a\\x1b\\x07b"),
        ("right\u202eleft", "right\\u202eleft"),
        ("one\ntwo", '"one two"'),
        (ValueError("a\x1b[2Jb\x1b"), "ab\\x1b"),
    ],
)
def test_no_field_holds_what_a_terminal_acts_on(value: object, shown: str) -> None:
    lines, log = written()
    log.error("life.failed", reason=value)
    assert lines == [f"life.failed reason={shown}"]


@given(st.text())
def test_an_event_is_one_printable_line(text: str) -> None:
    lines, log = written()
    log.info("life.phase.changed", message=text)
    assert len(lines) == 1
    assert lines[0].isprintable()


@pytest.mark.parametrize("made", [str, OSError, lambda secret: (7, secret)], ids=["text", "error", "tuple"])
def test_a_secret_is_hidden_whatever_holds_it(made: Callable[[str], object]) -> None:
    lines, log = written('cor"rect')
    log.info("life.phase.changed", message=made('cor"rect'))
    assert lines[0].count("***") == 1
    assert "rect" not in lines[0]


def test_a_secret_is_hidden_also_where_colours_cut_it() -> None:
    lines, log = written("correct-horse")
    log.info("life.phase.changed", message="correct\x1b[0m-horse")
    assert lines == ["life.phase.changed message=***"]
