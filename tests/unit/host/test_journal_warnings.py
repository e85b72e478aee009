"""Warnings of the agent's journal: a program in place of journalctl prints the lines."""

import json
import time
from pathlib import Path

import pytest

from sparkd.base.host.files import Files
from sparkd.base.host.journal import read_warnings

MOST_WARNINGS = 8
WARNINGS = ("engine| prompt of a client", "agent.run.failed reason=x api_key=abcdefgh12345678", *["w"] * 20)
"""Newest first, as journalctl prints them here."""
STAMP = {"__REALTIME_TIMESTAMP": "1764000000123456", "PRIORITY": "4", "__CURSOR": "s=1;i=2;b=3"}
MOST_CPU_SECONDS = 0.3
"""Parsing and redacting the 300 lines of the test would take 1.5 s."""


class Journalctl:
    """The program journalctl, which notes its arguments and prints the lines that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self._lines, self._arguments, self._exit_code = folder / "lines", folder / "arguments", folder / "exit-code"
        self.prepare()
        program = folder / "journalctl"
        program.write_text(
            f'#!/bin/sh\necho "$@" >{self._arguments}\ncat {self._lines}\nexit $(cat {self._exit_code})\n'
        )
        program.chmod(0o755)

    def prepare(self, *texts: str, exit_code: int = 0) -> None:
        """Let it print a line of JSON for each text."""
        lines = [json.dumps({"MESSAGE": text, **STAMP}, ensure_ascii=False, separators=(",", ":")) for text in texts]
        self._lines.write_text("".join(f"{line}\n" for line in lines))
        self._exit_code.write_text(str(exit_code))

    @property
    def arguments(self) -> list[str]:
        """Those of its last start."""
        return self._arguments.read_text().split()


@pytest.fixture
def journalctl_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journalctl:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Journalctl(tmp_path)


def test_the_warnings_are_the_agents_last_own_without_secrets_and_no_line_of_the_engine(
    journalctl_on_path: Journalctl,
) -> None:
    journalctl_on_path.prepare(*WARNINGS)
    warnings = read_warnings(Files(), MOST_WARNINGS)
    assert [line.text for line in warnings] == ["agent.run.failed reason=x api_key=***", *["w"] * (MOST_WARNINGS - 1)]
    assert "--priority=4" in journalctl_on_path.arguments


def test_lines_of_the_engine_which_a_client_may_make_many_of_take_little_time(journalctl_on_path: Journalctl) -> None:
    loud = "engine| " + "\u202e" * 16_000
    journalctl_on_path.prepare(*[loud] * 300, *WARNINGS)
    began = time.process_time()
    assert len(read_warnings(Files(), MOST_WARNINGS)) == MOST_WARNINGS
    assert time.process_time() - began < MOST_CPU_SECONDS


def test_a_failure_of_journalctl_is_an_error(journalctl_on_path: Journalctl) -> None:
    journalctl_on_path.prepare(exit_code=1)
    with pytest.raises(OSError, match="exit code 1"):
        read_warnings(Files(), MOST_WARNINGS)
