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

RECORDED = {
    "PRIORITY": "4",
    "__REALTIME_TIMESTAMP": "1764000000123456",
    "__MONOTONIC_TIMESTAMP": "4567",
    "_BOOT_ID": "9f0c",
    "MESSAGE": "cluster.contact.changed peer=10.0.0.2",
    "__CURSOR": "s=1bbd;i=2b51;b=9f0c;m=1c;t=63b;x=a9",
}
"""systemd 257, shortened."""


def printed(**changed: object) -> bytes:
    return json.dumps({**RECORDED, **changed}).encode() + b"\n"


def parsed(data: bytes) -> Line | None:
    return parse_line(data, Redactor())


def test_a_line_has_time_place_level_and_text() -> None:
    assert parsed(printed()) == Line(1764000000123456, "2b51", 4, "cluster.contact.changed peer=10.0.0.2")


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
    assert present(parsed(printed(MESSAGE=message))).text == text


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
    assert present(parsed(printed(PRIORITY=None))).priority == 6


def test_of_the_engine_its_own_lines_alone_are_taken() -> None:
    lines = (printed(), printed(MESSAGE="engine| INFO: ready"), printed(MESSAGE="a client's engine| text"))
    taken, is_whole = take_wanted(lines, Query(0, engine=True))
    assert [line.text for line in taken] == ["engine| INFO: ready"]
    assert is_whole


@pytest.mark.parametrize(
    ("message", "most"),
    [("x", MOST_LINES), ("x" * 10_000, MOST_BYTES // 10_002), ("\U0001f600" * 1000, MOST_BYTES // 12_002)],
)
def test_an_answer_is_bounded(message: str, most: int) -> None:
    taken, is_whole = take_wanted([printed(MESSAGE=message)] * 3 * MOST_LINES, Query(0))
    assert len(taken) == most
    assert not is_whole


def test_what_journalctl_prints_is_bounded_where_no_line_is_wanted() -> None:
    lines = [printed(MESSAGE="engine| x")] * 5 + [printed()] * 100 + [printed(MESSAGE="engine| y")]
    taken, is_whole = take_wanted(lines, Query(0, engine=True), 10 * len(printed()))
    assert len(taken) == 5
    assert not is_whole


def test_where_no_thread_can_end_journalctl_in_time_it_is_not_read(
    no_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journalctl").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BlockingIOError, match="can't start new thread"):
        read_journal(Query(0))
