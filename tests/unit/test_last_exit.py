"""Why the last life ended, told by the next one: over stops, failures, kills and power cuts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkd import last_exit
from sparkd.errors import BlockedError, ConfigError, EngineEndedError, PeerLostError, SparkdError, StalledError
from sparkd.lib.redact import Redactor
from sparkd.report.node_report import Phase


def cause(state: Path, text: str) -> str:
    (state / last_exit.FILE).write_text(text)
    return last_exit.cause(state)


def test_a_life_that_could_not_tell_its_end_was_killed(tmp_path: Path) -> None:
    assert cause(tmp_path, last_exit.untold()) == "its agent ended without a word: killed, a bug, or a power cut"


def test_a_stop_that_was_asked_for_is_no_cause(tmp_path: Path) -> None:
    assert cause(tmp_path, last_exit.stopped()) == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EngineEndedError("the engine ended: RuntimeError: boom", "look"), "the engine ended: RuntimeError: boom"),
        (PeerLostError("rank 1 is gone"), "rank 1 is gone"),
        (StalledError("no token"), "no token"),
        (BlockedError("port 8000 is taken"), "port 8000 is taken"),
        (ConfigError("no such recipe"), "no such recipe"),
        (SparkdError(""), ""),
    ],
)
def test_a_failure_is_told_with_its_exit_code(tmp_path: Path, error: SparkdError, said: str) -> None:
    text = last_exit.failed(error, Phase.LOADING, lambda text: text)
    assert cause(tmp_path, text) == f"{said} (exit {int(error.code)})"


def test_a_secret_in_a_cause_is_not_kept(tmp_path: Path) -> None:
    error = EngineEndedError("no model for hunter2hunter2", "is hunter2hunter2 right?")
    text = last_exit.failed(error, Phase.LOADING, Redactor(("hunter2hunter2",)))
    assert "hunter2" not in text
    assert cause(tmp_path, text) == "no model for *** (exit 13)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 2, "code": 13, "reason": "x"}',
        '{"schema": 1, "code": "13", "reason": "x"}',
        '{"schema": 1, "code": 13}',
        '{"schema": 1, "code": 13, "reason": 5}',
        "[" * 100_000,
        "\0" * 100,
    ],
)
def test_a_file_that_says_nothing_is_no_cause_and_no_error(tmp_path: Path, text: str) -> None:
    assert cause(tmp_path, text) == ""


def test_no_file_and_no_text_are_no_cause(tmp_path: Path) -> None:
    assert last_exit.cause(tmp_path) == ""
    assert last_exit.cause(tmp_path / "nowhere") == ""
    (tmp_path / last_exit.FILE).write_bytes(b"\xff\xfe\x00{")
    assert last_exit.cause(tmp_path) == ""
    (tmp_path / last_exit.FILE).unlink()
    (tmp_path / last_exit.FILE).mkdir()
    assert last_exit.cause(tmp_path) == ""
