"""The journal's lines, as journalctl prints them: what is taken, what is bounded, and what is hostile."""

import json
from pathlib import Path

import pytest
from tests.unit.verdicts import present

from sparkd.base.host.journal import (
    LINE_LIMIT,
    MOST_BYTES,
    MOST_LINES,
    Line,
    Query,
    parse_line,
    read_journal,
    take_wanted,
)
from sparkd.base.lib.redactor import Redactor

CURSOR = "s=1bbd;i=2b51;b=9f0c;m=1c;t=63b;x=a9"
RECORDED = {
    "PRIORITY": "4",
    "__REALTIME_TIMESTAMP": "1764000000123456",
    "__MONOTONIC_TIMESTAMP": "4567",
    "_BOOT_ID": "9f0c",
    "MESSAGE": "cluster.contact.changed peer=10.0.0.2",
    "__CURSOR": CURSOR,
}
"""systemd 257, shortened."""


def printed(**changed: object) -> bytes:
    return json.dumps({**RECORDED, **changed}).encode() + b"\n"


def parsed(data: bytes) -> Line | None:
    return parse_line(data, Redactor())


def test_a_line_has_time_place_level_and_text() -> None:
    expected = Line(1764000000123456, "2b51", 4, "cluster.contact.changed peer=10.0.0.2")
    assert parsed(printed()) == expected


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (list(b"\x1b[31mrote Schrift\x1b[0m"), "rote Schrift"),
        (list(b"\xff\xfe engine"), "�� engine"),
        ("one\ntwo", "one\\ntwo"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("x" * 100_000, "x" * LINE_LIMIT),
    ],
)
def test_a_text_is_one_printable_line_without_secrets(message: object, text: str) -> None:
    found = present(parsed(printed(MESSAGE=message)))
    assert found.text == text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"-- No entries --\n",
        b"[]",
        b"{" * 100_000,
        printed(MESSAGE=None),
        printed(MESSAGE=[1, "x"]),
        printed(MESSAGE=[-1]),
        printed(MESSAGE=[1 << 70]),
        printed(__REALTIME_TIMESTAMP="9" * 17),
        printed(__REALTIME_TIMESTAMP="-1"),
        printed(__REALTIME_TIMESTAMP="\u0661"),
        printed(__REALTIME_TIMESTAMP=1764000000123456),
        printed(__CURSOR=None),
    ],
)
def test_what_is_no_line_is_left_out(data: bytes) -> None:
    assert parsed(data) is None


def test_a_line_without_a_level_is_information() -> None:
    found = present(parsed(printed(PRIORITY=None)))
    assert found.priority == 6


def test_the_engines_lines_alone() -> None:
    lines = (printed(), printed(MESSAGE="engine| INFO: ready"), printed(MESSAGE="a client's engine| text"))
    found, whole = take_wanted(lines, Query(0, engine=True))
    assert ([one.text for one in found], whole) == (["engine| INFO: ready"], True)


@pytest.mark.parametrize(
    ("message", "most"),
    [("x", MOST_LINES), ("x" * 10_000, MOST_BYTES // 10_002), ("\U0001f600" * 1000, MOST_BYTES // 12_002)],
)
def test_an_answer_is_bounded(message: str, most: int) -> None:
    found, whole = take_wanted([printed(MESSAGE=message)] * 3 * MOST_LINES, Query(0))
    assert (len(found), whole) == (most, False)


def test_what_journalctl_prints_is_bounded_where_no_line_is_wanted() -> None:
    lines = [printed(MESSAGE="engine| x")] * 5 + [printed()] * 100 + [printed(MESSAGE="engine| y")]
    found, whole = take_wanted(lines, Query(0, engine=True), 10 * len(printed()))
    assert (len(found), whole) == (5, False)


def test_where_no_thread_can_end_journalctl_in_time_it_is_not_read(
    no_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journalctl").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BlockingIOError, match="can't start new thread"):
        read_journal(Query(0))
