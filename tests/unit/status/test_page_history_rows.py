"""The part of the page that is read from the disk: rows of the history, beside warnings of the agent's journal."""

from pathlib import Path

import pytest
from msgspec import Raw
from tests.tree import Tree

from sparkd.agent.actions import history
from sparkd.agent.daemon.history import read_disk
from sparkd.agent.status.page_history import Disk
from sparkd.base.host.files import Files
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Bench, Launch, Smoke

FACTS = Facts(values={"image.identity": "i" * 1000}, versions={}, boot={})
NO_FACTS = Facts(values={}, versions={}, boot={})
LAUNCH = Launch(id="launch", at="2026-11-27T11:00:00+00:00", rank=0, plan="p", recipe="r", facts=FACTS, load_seconds=5)
SMOKE = Smoke(id="smoke", at="2026-11-23T10:05:00+00:00", launch="a", recipe="r", bad=0)
BENCH = Bench(id="bench", at="", launch="a", recipe="r", figures=Raw(b"{}"))


@pytest.fixture
def files(tree: Tree) -> Files:
    tree.folder("/var/lib/sparkd")
    return Files(str(tree.root))


def test_without_a_history_the_page_has_nothing_of_the_disk(files: Files) -> None:
    assert read_disk(files) == Disk()


def test_rows_of_the_history_are_read_without_their_facts(files: Files) -> None:
    history.write(files, LAUNCH, SMOKE, BENCH)
    rows = read_disk(files).rows
    assert [type(row) for row in rows] == [Launch, Smoke, Bench]
    assert isinstance(rows[0], Launch)
    assert rows[0].facts == NO_FACTS


def test_an_unreadable_history_has_no_rows(files: Files, tree: Tree) -> None:
    history.write(files, LAUNCH)
    tree.path("/var/lib/sparkd/history.db").write_bytes(b"rubbish" * 1000)
    assert read_disk(files).rows == ()


def test_where_the_journal_cannot_be_read_the_page_has_no_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journalctl").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_disk(Files()).warnings == ()
