"""history.db on a real disk: it is bounded, counts on, and outlives power cuts, rubbish, and several writers."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.tree import Tree

from sparkd.agent.actions import history
from sparkd.base.host.files import Files
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import PATH, Bench, Launch, Past, Smoke
from sparkd.base.state.launch_history import End

FACTS = Facts({"image.identity": "i"}, {"driver": "580"}, {})
LAUNCH = Launch("a", "2026-11-23T10:00:00+00:00", 0, "d", "tiny", FACTS)
ENDED = replace(LAUNCH, load_seconds=12.5, end=End("the engine ended", 13, cause="engine-ended"))


@pytest.fixture
def files(tree: Tree) -> Files:
    tree.folder("/var/lib/sparkd")
    return Files(str(tree.root))


@pytest.fixture
def path(files: Files) -> Path:
    return Path(files.real(PATH))


def test_without_a_file_there_is_no_past(files: Files) -> None:
    assert history.read(files) == ()
    assert history.read_totals(files) == {}
    assert not history.close_open(files, End("killed"))
    assert not Path(files.real(PATH)).exists(), "a reader makes none"


def test_rows_are_read_back_in_their_order_and_replaced_by_their_ids(files: Files, path: Path) -> None:
    smoke = Smoke("s", "2026-11-23T10:05:00+00:00", "a", "tiny", 1, ("empty",))
    bench = Bench("b", "2026-11-23T10:06:00+00:00", "a", "tiny", Raw(b'{"levels":[]}'))
    for row in (LAUNCH, smoke, bench, ENDED):
        assert not history.write(files, row)
    assert history.read(files) == (ENDED, smoke, bench)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(path.parent)) == [".history.db.lock", "history.db"]


def test_totals_count_each_launch_and_end_once_and_outlive_the_rows(files: Files) -> None:
    rows = [replace(row, id=str(number)) for number in range(5) for row in (LAUNCH, ENDED, ENDED)]
    for row in (*rows, replace(LAUNCH, id="last")):
        history.write(files, row, limits=history.Limits(rows=3))
    assert history.read_totals(files) == {"launches": 6, "ends.engine-ended": 5}
    assert [row.id for row in history.read(files)] == ["3", "4", "last"]
    history.close_open(files, End("killed", cause="agent-killed"))
    history.close_open(files, End("killed", cause="agent-killed"))
    assert history.read_totals(files) == {"launches": 6, "ends.engine-ended": 5, "ends.agent-killed": 1}


def test_large_rows_leave_the_file_bounded(files: Files, path: Path) -> None:
    for number in range(120):
        facts = Facts({f"env.{name}": "x" * 1000 for name in range(200)}, {}, {})
        history.write(files, replace(LAUNCH, id=str(number), facts=facts))
    kept = history.read(files)
    assert kept[-1].id == "119"
    assert path.stat().st_size < history.LIMITS.kind_bytes * 1.5
    history.write(files, replace(LAUNCH, id="huge", facts=Facts({"x": "x" * history.ROW_BYTES}, {}, {})))
    assert history.read(files)[-1] == replace(LAUNCH, id="huge", facts=Facts({}, {}, {}))


def test_the_past_of_a_process_is_that_of_its_recipe_and_rank(files: Files) -> None:
    others = replace(LAUNCH, id="b", recipe="other"), replace(LAUNCH, id="c", rank=1)
    history.write(files, LAUNCH, *others)
    past, _ = history.close_and_read_past(files, None, "tiny", 0)
    assert past == Past((LAUNCH,), {"launches": 3})


def break_header(path: Path) -> None:
    path.write_bytes(b"rubbish " * 1000)


def break_pages(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))


def cut_short(path: Path) -> None:
    os.truncate(path, 5000)


@pytest.mark.parametrize("damage", [break_header, break_pages, cut_short])
def test_a_broken_file_is_set_aside_once_and_a_new_one_begun(
    files: Files, path: Path, damage: Callable[[Path], None]
) -> None:
    history.write(files, *(replace(LAUNCH, id=str(number)) for number in range(50)))
    damage(path)
    with pytest.raises(OSError, match=r"history\.db"):
        history.read(files)
    assert history.write(files, ENDED)
    assert not history.write(files, replace(ENDED, id="b"))
    assert [row.id for row in history.read(files)] == ["a", "b"]
    assert sorted(os.listdir(path.parent)) == [".history.db.lock", "history.db", "history.db.broken"]


def test_a_row_that_this_version_cannot_read_is_left_out(files: Files, path: Path) -> None:
    history.write(files, LAUNCH)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO rows (kind, id, body) VALUES ('launch', 'x', ?)", (b'{"kind":"launch"}',))
        database.execute("INSERT INTO rows (kind, id, body) VALUES ('later', 'y', 5)")
        database.execute("INSERT INTO totals VALUES ('bad', 'text')")
    assert history.read(files) == (LAUNCH,)
    assert history.read_totals(files) == {"launches": 1}


def test_a_later_versions_file_is_left_alone(files: Files, path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    for work in (partial(history.read, files), partial(history.write, files, LAUNCH)):
        with pytest.raises(OSError, match="of schema 7"):
            work()
    assert path.read_bytes() == before


def test_no_link_is_followed(files: Files, path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.db"
    elsewhere.touch()
    path.symlink_to(elsewhere)
    for work in (partial(history.read, files), partial(history.write, files, LAUNCH)):
        with pytest.raises(OSError, match=r"history\.db"):
            work()
    assert elsewhere.read_bytes() == b""


WRITER = """
import sys
from msgspec.structs import replace
from sparkd.agent.actions import history
from sparkd.base.host.files import Files
from tests.unit.actions.test_history import LAUNCH
number = 0
while True:
    history.write(Files(sys.argv[1]), replace(LAUNCH, id=f"{sys.argv[2]}-{number}"))
    number += 1
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_file(files: Files) -> None:
    """What a power cut leaves, on a disk that keeps the order of its syncs: perhaps a journal to take back."""
    for turn in range(6):
        command = (sys.executable, "-c", WRITER, files.root, str(turn))
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.017 * turn)
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        kept, totals = history.read(files), history.read_totals(files)
        assert totals["launches"] >= len(kept) > 0
    assert not history.write(files, ENDED), "nothing was set aside"


def write_rows(root: str, writer: int) -> bool:
    """Write 20 rows. Whether the file was ever replaced."""
    replaced = False
    for number in range(20):
        while True:
            with suppress(BlockingIOError):  # the other writers' turn for longer than one waits
                replaced |= history.write(Files(root), replace(ENDED, id=f"{writer}-{number}"))
                break
    return replaced


def test_no_row_of_several_writers_is_lost_beside_readers(files: Files) -> None:
    """On a slow disk, writers who never rest keep a reader out; not before its patience has ended."""
    with ProcessPoolExecutor(3, get_context("spawn")) as pool:
        writers = [pool.submit(write_rows, files.root, writer) for writer in range(3)]
        while not all(writer.done() for writer in writers):
            began = time.monotonic()
            try:
                history.read(files)
            except OSError as error:
                assert "locked" in str(error)
                assert time.monotonic() - began > 0.9 * history.BUSY_SECONDS
        assert [writer.result() for writer in writers] == [False] * 3
    assert len(history.read(files)) == 60
    assert history.read_totals(files) == {"launches": 60, "ends.engine-ended": 60}


def test_a_look_takes_no_lock_from_a_writer_of_the_same_process(files: Files, path: Path) -> None:
    """The kernel gives up all of a process's locks on a file where any thread of it closes the file."""
    history.write(files, LAUNCH)
    begin = (
        f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0, isolation_level=None).execute('BEGIN IMMEDIATE')"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert history.read(files) == (LAUNCH,)
        other = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True)
    assert "database is locked" in other.stderr


def test_half_a_character_is_an_error_like_any_other(files: Files) -> None:
    with pytest.raises(OSError, match="surrogates not allowed"):
        history.write(files, replace(LAUNCH, recipe="a\udcff"))
    assert not history.write(files, LAUNCH)


def test_an_end_that_came_twice_is_counted_once(files: Files) -> None:
    """A late close of what the process before left open may meet the launch of the process itself."""
    history.write(files, LAUNCH)
    history.close_open(files, End("killed", cause="agent-killed"))
    history.write(files, LAUNCH)
    history.write(files, ENDED)
    assert history.read_totals(files) == {"launches": 1, "ends.agent-killed": 1}


def test_a_full_disk_is_an_error_and_loses_nothing(files: Files) -> None:
    history.write(files, LAUNCH)
    facts = Facts({"x": "x" * (history.ROW_BYTES - 1000)}, {}, {})
    with pytest.raises(OSError, match="full"):
        history.write(files, replace(LAUNCH, id="b", facts=facts), limits=history.Limits(pages=8))
    assert history.read(files) == (LAUNCH,)
