"""What the page shows of the disk: rows of the history, and warnings of the agent's journal."""

import json
import time
from pathlib import Path

import pytest
from msgspec import Raw
from tests.tree import Tree

from sparkd.agent.actions import history
from sparkd.agent.daemon.history import MOST_WARNINGS, read_disk
from sparkd.agent.status.page_history import Disk
from sparkd.base.host.files import Files
from sparkd.base.host.journal import read_warnings
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Bench, Launch, Smoke

LAUNCH = Launch(
    "l", "2026-11-27T11:00:00+00:00", 0, "p", "r", Facts({"image.identity": "i" * 1000}, {}, {}), load_seconds=5
)
STAMP = {"__REALTIME_TIMESTAMP": "1764000000123456", "PRIORITY": "4", "__CURSOR": "s=1;i=2;b=3"}


def test_rows_of_the_history_are_read_without_their_facts_and_an_unreadable_history_has_none(tree: Tree) -> None:
    tree.folder("/var/lib/sparkd")
    files = Files(str(tree.root))
    assert read_disk(files) == Disk()
    smoke, bench = Smoke("s", "2026-11-23T10:05:00+00:00", "a", "r", 0), Bench("b", "", "a", "r", Raw(b"{}"))
    history.write(files, LAUNCH, smoke, bench)
    rows = read_disk(files).rows
    assert [type(row) for row in rows] == [Launch, Smoke, Bench]
    assert isinstance(rows[0], Launch)
    assert rows[0].facts == Facts({}, {}, {})
    (tree.root / "var/lib/sparkd/history.db").write_bytes(b"rubbish" * 1000)
    assert read_disk(files).rows == ()


def journal_program(folder: Path, lines: str, exit_code: int = 0) -> None:
    """A journalctl that notes its arguments and prints these lines."""
    (folder / "lines").write_text(lines)
    program = folder / "journalctl"
    program.write_text(f'#!/bin/sh\necho "$@" >{folder}/arguments\ncat {folder}/lines\nexit {exit_code}\n')
    program.chmod(0o755)


def lines_of(*texts: str) -> str:
    lines = [json.dumps({"MESSAGE": text, **STAMP}, ensure_ascii=False, separators=(",", ":")) for text in texts]
    return "".join(f"{line}\n" for line in lines)


WARNINGS = ("engine| prompt of a client", "agent.run.failed reason=x api_key=abcdefgh12345678", *["w"] * 20)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_the_warnings_are_the_agents_last_own_without_secrets_and_no_line_of_the_engine(tmp_path: Path) -> None:
    journal_program(tmp_path, lines_of(*WARNINGS))
    warnings = read_warnings(Files(), MOST_WARNINGS)
    assert [line.text for line in warnings] == ["agent.run.failed reason=x api_key=***", *["w"] * (MOST_WARNINGS - 1)]
    assert "--priority=4" in (tmp_path / "arguments").read_text()


def test_lines_of_the_engine_which_a_client_may_make_many_of_take_little_time(tmp_path: Path) -> None:
    loud = "engine| " + "\u202e" * 16_000
    journal_program(tmp_path, lines_of(*[loud] * 300, *WARNINGS))
    began = time.process_time()
    assert len(read_warnings(Files(), MOST_WARNINGS)) == MOST_WARNINGS
    assert time.process_time() - began < 0.3


def test_where_the_journal_cannot_be_read_the_page_has_no_warnings(tmp_path: Path) -> None:
    journal_program(tmp_path, "", exit_code=1)
    with pytest.raises(OSError, match="exit code 1"):
        read_warnings(Files(), MOST_WARNINGS)
    assert read_disk(Files()).warnings == ()
