"""`sparkd status --watch` on a terminal of its own, as a person uses it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.commands import INTERRUPTIBLE
from tests.unit.node_reports import HEAD_REPORT

from sparkd.base.status.figures import ActivityReport
from sparkd.base.status.model import Phase, dump

PROGRAM = """
import sys
from sparkd.tools.cli.status import watch
from sparkd.base.host.files import Files
sys.exit(watch(Files(sys.argv[1])))
"""
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-z]")
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
DEADLINE_SECONDS = 20.0
REPORT = replace(HEAD_REPORT, pid=77, start_time=1234, activity=ActivityReport(2, 0, 0.0, 17.5, 0.1))


class Watch:
    """The program, and what its terminal got so far."""

    def __init__(self, tree: Tree) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(80)
        env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        command = [*INTERRUPTIBLE, sys.executable, "-c", PROGRAM, str(tree.root)]
        env |= {"TERM": "xterm-256color", "PYTHONPATH": "src"}
        self._process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.text = ""

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def until(self, needle: str) -> str:
        """What came up to there."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while needle not in self.text:
            assert select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0], self.text
            self.text += os.read(self._ours, 65536).decode()
        before, _, self.text = self.text.partition(needle)
        return before

    def end(self, by: signal.Signals) -> tuple[str, int]:
        """What it printed on the first screen, and its exit code."""
        self._process.send_signal(by)
        self.until(FIRST_SCREEN)
        code = self._process.wait(DEADLINE_SECONDS)
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self.text += os.read(self._ours, 65536).decode()
            except OSError:  # EIO: nobody has the other end open
                break
        return COLOURS.sub("", self.text), code

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@pytest.fixture
def watch(tree: Tree) -> Iterator[Watch]:
    tree.process(77, "sparkd", start_time=1234)
    tree.file("/run/sparkd/report.json", dump(REPORT))
    made = Watch(tree)
    yield made
    made.close()


def test_it_follows_the_report_and_leaves_its_last_state(watch: Watch, tree: Tree) -> None:
    watch.until(OTHER_SCREEN)
    watch.until("serving for")
    watch.until("17.5 tokens/s out")
    tree.file("/run/sparkd/report.json", dump(replace(REPORT, phase=Phase.STOPPING, message="bye", activity=None)))
    watch.until("stopping for")
    text, code = watch.end(signal.SIGINT)
    assert "stopping for" in text
    assert "bye" in text
    assert code == 20


def test_a_requested_end_gives_the_terminal_back_too(watch: Watch) -> None:
    watch.until("serving for")
    text, code = watch.end(signal.SIGTERM)
    assert "serving for" in text
    assert code == 0


def test_it_is_drawn_again_in_a_terminal_of_another_size(watch: Watch) -> None:
    watch.until("\x1b[H")
    watch.until("(10.0.0.1)  serving for")
    watch.until("\n")
    watch.resize(120)
    watch.until("\x1b[H")
    watch.until("(10.0.0.1)  serving for")
    rest = watch.until("\n")
    assert len(COLOURS.sub("", rest).rstrip("\r")) + len("0  spark1 (10.0.0.1)  serving for") == 120


def test_an_agent_that_dies_or_was_never_there_is_shown(watch: Watch, tree: Tree) -> None:
    watch.until("serving for")
    (tree.root / "proc/77/stat").unlink()
    watch.until("serving (its agent is gone)")
    (tree.root / "run/sparkd/report.json").unlink()
    watch.until("this node is not set up: engine.recipe names no recipe")
    assert watch.end(signal.SIGINT)[1] == 21
