"""Reads and writes history.db: SQLite in one file, which stays bounded and survives a power cut.

Writers take a lock beside SQLite's, which only root can take, so that a broken file is set aside once. The journal is
SQLite's rollback journal, no WAL: a reader without root can't create the files that a WAL needs.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from sparkd.agent.actions.files import hold_write_lock
from sparkd.agent.actions.shared_folders import find_shared
from sparkd.base.host.files import Files
from sparkd.base.state.facts import Facts
from sparkd.base.state.file import FOLDER
from sparkd.base.state.history import ENDS, LAUNCHES, MODE, PATH, Launch, Past, Row, decode
from sparkd.base.state.launch_history import End

SCHEMA = 1
ROWS_KEPT = 500
ROW_BYTES = 1 << 18
"""A launch whose facts are longer is kept without them."""
BUSY_SECONDS, CLOSE_SECONDS = 2.0, 0.2
"""Limits for a reader to leave the file, which takes it milliseconds; the second is for the start of an agent."""
MOST_READ = 60
"""Rows of each kind that an agent reads: half a MiB."""
ASIDE = ".broken"


class Limits(NamedTuple):
    """What the file may grow to."""

    rows: int = ROWS_KEPT
    """Most rows of each kind."""
    kind_bytes: int = 8 << 20
    """Most bytes of all rows of a kind; a launch has some 10 KB."""
    pages: int = 16384
    """Most pages of 4 KiB: no fault of sparkd's fills the disk."""


LIMITS = Limits()
_TABLES = f"""
CREATE TABLE rows (number INTEGER PRIMARY KEY, kind TEXT, id TEXT, ended INTEGER, body BLOB, UNIQUE (kind, id));
CREATE TABLE totals (name TEXT PRIMARY KEY, count INTEGER);
PRAGMA user_version = {SCHEMA};
"""
_TRIM = """
DELETE FROM rows WHERE number IN (
  SELECT number FROM (
    SELECT number, row_number() OVER kinds AS place, sum(length(body)) OVER kinds AS bytes FROM rows
    WINDOW kinds AS (PARTITION BY kind ORDER BY number DESC)
  ) WHERE place > ? OR bytes > ?
)
"""


def write(files: Files, *rows: Row, busy_seconds: float = BUSY_SECONDS, limits: Limits = LIMITS) -> bool:
    """Write rows in place of those with the same ids. Returns True where a broken file was set aside first.

    Raises OSError. Takes as long as the disk does.
    """
    path = _find_path(files)
    with hold_write_lock(path), _as_oserror(path):
        try:
            _write(path, rows, busy_seconds, limits)
        except sqlite3.DatabaseError as error:
            # SQLite adds higher bits for details.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            # The database last: its journal must not be applied to a new one.
            for suffix in ("-journal", "-wal", "-shm", ""):
                with suppress(FileNotFoundError):
                    Path(f"{path}{suffix}").replace(f"{path}{ASIDE}{suffix}")
            _write(path, rows, busy_seconds, limits)
            return True
    return False


def _write(path: Path, rows: tuple[Row, ...], busy_seconds: float, limits: Limits) -> None:
    if not _exists(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, MODE))
    if not path.stat().st_size:  # a file with content keeps the mode that an administrator has set
        path.chmod(MODE)
    with _connect(path, "rw", busy_seconds) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute(f"PRAGMA max_page_count = {limits.pages}")
        with database:
            database.execute("BEGIN IMMEDIATE")
            if not _read_schema(database):
                for statement in filter(str.strip, _TABLES.split(";")):
                    database.execute(statement)
            for row in rows:
                _put_row(database, row)
            database.execute(_TRIM, (limits.rows, limits.kind_bytes))


def _put_row(database: sqlite3.Connection, row: Row) -> None:
    config = row.__struct_config__
    key, body, ended = (config.tag, row.id), msgspec.json.encode(row), False
    if isinstance(row, Launch):
        if len(body) > ROW_BYTES:
            body = msgspec.json.encode(replace(row, facts=Facts({}, {}, {}), phases={}))
        ended = row.end is not None
        _count_launch(database, key, row)
    database.execute(
        "INSERT INTO rows (kind, id, ended, body) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET ended = max(ended, excluded.ended), body = excluded.body",
        (*key, ended, body),
    )


def _count_launch(database: sqlite3.Connection, key: tuple[object, str], launch: Launch) -> None:
    """Add a launch to the totals when it is new, and its end when it had none."""
    stored = database.execute("SELECT ended FROM rows WHERE kind = ? AND id = ?", key).fetchone()
    names = [] if stored else [LAUNCHES]
    if launch.end is not None and not (stored and stored[0]):
        names.append(f"{ENDS}{launch.end.cause or 'unknown'}")
    for name in names:
        database.execute("INSERT INTO totals VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1", (name,))


def read(files: Files, most: int = ROWS_KEPT) -> tuple[Row, ...]:
    """The last rows of each kind, oldest first; without those that this version can't read. Raises OSError."""
    rows = []
    with _open_to_read(files) as database:
        if database is None:
            return ()
        stored = database.execute(
            "SELECT body FROM (SELECT number, body, row_number() OVER (PARTITION BY kind ORDER BY number DESC) AS place"
            " FROM rows) WHERE place <= ? ORDER BY number",
            (most,),
        )
        for (body,) in stored:
            with suppress(ValueError, TypeError):
                rows.append(decode(body))
    return tuple(rows)


def read_totals(files: Files) -> dict[str, int]:
    """Launches on this node and their ends by cause, under LAUNCHES and ENDS. Raises OSError."""
    with _open_to_read(files) as database:
        totals = database.execute("SELECT name, count FROM totals").fetchall() if database is not None else ()
    return {name: count for name, count in totals if isinstance(name, str) and isinstance(count, int) and count >= 0}


def close_and_read_past(files: Files, end: End | None, recipe: str, rank: int) -> tuple[Past, bool]:
    """Try `close_open`, and read what a new process is compared with; and the result of `close_open`.

    `end` None: the open launches are under way. Raises OSError.
    """
    replaced = False
    with suppress(OSError):
        replaced = end is not None and close_open(files, end)
    launches = (launch for launch in _read_launches(files) if (launch.recipe, launch.rank) == (recipe, rank))
    return Past(tuple(launches), read_totals(files)), replaced


def _read_launches(files: Files) -> Iterator[Launch]:
    return (row for row in read(files, MOST_READ) if isinstance(row, Launch))


def close_open(files: Files, end: End) -> bool:
    """Give `end`, the last process's, to the launches that have none. Returns as `write`. Raises OSError.

    Does not wait for a reader that holds the file: the next process tries again.
    """
    closed = [replace(launch, end=end) for launch in _read_launches(files) if launch.end is None]
    return bool(closed) and write(files, *closed, busy_seconds=CLOSE_SECONDS)


def _find_path(files: Files) -> Path:
    """The file's path, with its last part unresolved, so that a link is refused."""
    return Path(files.real(FOLDER), PATH.rpartition("/")[2])


@contextmanager
def _open_to_read(files: Files) -> Iterator[sqlite3.Connection | None]:
    """Open the database; None where there is no history yet. Raises OSError."""
    path = _find_path(files)
    with _as_oserror(path):
        if not _exists(path):
            yield None
            return
        if not os.access(path, os.R_OK):  # SQLite would only say that it can't open it
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        # SQLite with write access rolls back what a power cut left half done, or a journal that another user put there.
        may_write = os.access(path, os.W_OK) and not find_shared(path.parent)
        with _connect(path, "rw" if may_write else "ro") as database:
            yield database if _read_schema(database) else None


def _exists(path: Path) -> bool:
    """Whether there is a plain file. Raises OSError where there is something else.

    The file is not opened for that: closing it would release all locks of this process on it, of any thread.
    """
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, "is no plain file", str(path))
    return True


@contextmanager
def _connect(path: Path, mode: str, busy_seconds: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
    uri = f"file:{quote(str(path))}?mode={mode}"
    with closing(sqlite3.connect(uri, uri=True, timeout=busy_seconds, isolation_level=None)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        yield database


def _read_schema(database: sqlite3.Connection) -> int:
    """The number of its schema, 0 in a new file. Raises sqlite3.NotSupportedError for another version's."""
    ((version,),) = database.execute("PRAGMA user_version").fetchall()
    if version not in (0, SCHEMA):
        raise sqlite3.NotSupportedError(f"it is of schema {version}, this version of sparkd reads {SCHEMA}")
    return int(version)


@contextmanager
def _as_oserror(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeError) as error:  # a row may end within a character
        raise OSError(f"{path}: {error}") from error
