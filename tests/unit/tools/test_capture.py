"""`sparkd capture`: secrets beside broken settings, parts that fail, a file that is there, an early end."""

import fcntl
import os
import shlex
import signal
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.commands import INTERRUPTIBLE
from tests.unit.verdicts import present

from sparkd.base.host import Host
from sparkd.base.lib.errors import UsageError
from sparkd.tools.support.capture_collector import Collector


@pytest.fixture
def collector(tree: Tree) -> Callable[[], Collector]:
    """Makes the collector of a machine whose configuration is broken."""
    tree.file("/etc/sparkd/sparkd.toml", "[cluster\n")
    return lambda: Collector(Host(str(tree.root)))


def test_what_root_keeps_beside_broken_settings_is_hidden(collector: Callable[[], Collector], tree: Tree) -> None:
    tree.file("/etc/sparkd/webhook", "https://example.com/hunter22", 0o600)
    tree.file("/etc/sparkd/notes", "seen by all", 0o644)
    capture = collector()
    assert capture.redact("posted to https://example.com/hunter22") == "posted to ***"
    assert capture.redact("seen by all") == "seen by all"
    assert "may contain secrets that were not hidden: look" in capture.missing[0]
    path, _ = capture.save(str(tree.root / "capture.tar.gz"))
    with tarfile.open(path) as archive:
        readme = next(member for member in archive if member.name.endswith("/README.txt"))
        assert f"  {capture.missing[0]}\n".encode() in present(archive.extractfile(readme)).read()


def test_a_secret_that_can_t_be_read_is_named(collector: Callable[[], Collector], tree: Tree) -> None:
    tree.file("/etc/sparkd/long", "x" * (1 << 17), 0o600)
    assert any("content of /etc/sparkd/long (the archive may contain" in line for line in collector().missing)


def test_where_no_thread_is_to_be_had_that_is_named(collector: Callable[[], Collector], no_thread: None) -> None:
    lines = collector().missing
    assert lines
    assert all("can't start new thread" in line for line in lines)


def test_a_part_that_fails_in_any_way_or_hangs_is_named(collector: Callable[[], Collector]) -> None:
    capture, end = collector(), threading.Event()
    assert capture.attempt("odd", lambda: dict[str, int]()["x"]) is None
    assert capture.attempt("slow", end.wait, 0.2) is None
    end.set()
    assert capture.missing[-2:] == ["odd: KeyError: 'x'", "slow: not read within 0.2 s"]


def test_a_file_that_is_there_stays_and_the_hint_has_a_free_name(
    collector: Callable[[], Collector], tmp_path: Path
) -> None:
    there = tmp_path / "it's.tar.gz"
    there.write_text("mine")
    with pytest.raises(UsageError, match="is there already") as raised:
        collector().save(str(there))
    *command, path = shlex.split(raised.value.hint)
    assert command == ["sudo", "sparkd", "capture", "--output"]
    assert Path(path).parent == tmp_path
    assert not Path(path).exists()
    assert there.read_text() == "mine"


ENDS = """
import os, signal
from sparkd.tools.measure.interrupts import catch_ends
catch_ends(once=True)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(number)
    print("cleaned up")
"""


def test_ctrl_c_again_does_not_end_what_removes_the_archive() -> None:
    command = [*INTERRUPTIBLE, sys.executable, "-c", ENDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "cleaned up\n"


DROPPED = """
import signal, time, weakref
from sparkd.tools.measure.interrupts import catch_ends, hold_signals
catch_ends(once=True)
class Freed: pass
freed = Freed()
reference = weakref.ref(freed, lambda _: signal.raise_signal(signal.SIGTERM))
try:
    del freed
    HELD
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("held", "shown"),
    [("", "interrupted\n"), ("with hold_signals(): time.sleep(0.1); print('held')", "held\ninterrupted\n")],
    ids=["at once", "after what holds signals back"],
)
def test_an_end_that_python_drops_in_a_callback_is_raised_again(held: str, shown: str) -> None:
    command = [*INTERRUPTIBLE, sys.executable, "-c", DROPPED.replace("HELD", held)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == shown, done.stderr


F_SETOWN_EX, F_OWNER_TID = 15, 0  # linux/fcntl.h


def test_a_session_that_ends_as_the_file_is_made_leaves_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "capture.tar.gz"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        # The kernel sends the signal with the call that makes the file, and to this thread, as if it were the only one.
        fcntl.fcntl(folder, F_SETOWN_EX, struct.pack("ii", F_OWNER_TID, threading.get_native_id()))
        fcntl.fcntl(folder, fcntl.F_SETSIG, signal.SIGINT)
        fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_CREATE)
        with pytest.raises(KeyboardInterrupt):
            Collector(Host()).save(str(path))
    finally:
        os.close(folder)
        signal.signal(signal.SIGINT, before)
    assert not path.exists()
    assert f"ended early: {path} is not written" in capsys.readouterr().err
