"""`sparkd demo`, and the examples that it shows. SPARKD_GOLDEN=write makes src/sparkd/data/demo; look at the diff."""

import asyncio
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from tests.unit import demo_nodes
from tests.unit.commands import INTERRUPTIBLE, sparkd
from tests.unit.demo_nodes import encode, without_time

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.times import seconds_since
from sparkd.base.status.publisher import Published
from sparkd.tools.cli.demo import NEXT, STATES, read_example, serve_pages

COMMAND = (sys.executable, "-m", "sparkd.tools.cli.main", "demo")
CHECKOUT = Path(__file__).parents[3]


@pytest.mark.parametrize("state", STATES)
def test_an_example_is_what_the_tests_make_of_it(state: str, tmp_path: Path) -> None:
    file = demo_nodes.DATA / f"{state}.json"
    made = encode(*demo_nodes.example(state, tmp_path))
    if os.environ.get("SPARKD_GOLDEN") == "write":
        file.write_text(made)
    assert without_time(file.read_text()) == without_time(made)


def test_all_examples_are_small() -> None:
    assert {file.stem for file in demo_nodes.DATA.iterdir()} == set(STATES)
    assert sum(file.stat().st_size for file in demo_nodes.DATA.iterdir()) < 50_000


@pytest.mark.parametrize("state", STATES)
def test_a_report_was_written_just_now(state: str) -> None:
    now = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    report = read_example(state, now).report
    assert report.phase.value == state
    assert 0 < (seconds_since(report.since, now) or 0) < 24 * 3600


def test_each_state_is_shown_and_then_what_to_do() -> None:
    done = sparkd("demo")  # no terminal
    assert done.returncode == 0
    assert done.stderr == ""
    for state in STATES:
        status = done.stdout.partition(f"--- {state}: sparkd status\n")[2].partition("\n---")[0]
        assert re.search(rf"spark[12] .*{state} for", status), state
    preflight = done.stdout.partition("sparkd preflight --dry-run\n")[2].partition("\n---")[0]
    assert re.search("^BLOCK +unified-memory +68.0 GiB available", preflight, re.MULTILINE)
    assert "means: no room is left for one request of the full length" in done.stdout
    assert done.stdout.endswith(f"{NEXT}\n")
    assert "page of " not in done.stdout


def test_one_state_alone() -> None:
    done = sparkd("demo", "serving", "--once")
    assert re.findall("^---.*", done.stdout, re.MULTILINE) == ["--- serving: sparkd status"]
    assert sparkd("demo", "asleep").returncode == 2


def test_nothing_is_changed(tmp_path: Path) -> None:
    report = tmp_path / "report"
    command = [sys.executable, "-m", "tests.unit.audited", str(report), "demo", "--once"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The page's history can start journalctl.
    assert report.read_text() == "sparkd.base.host.journal imported subprocess\n"


def test_the_pages_are_on_loopback_until_ctrl_c() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen([*INTERRUPTIBLE, *COMMAND], env=env, stdout=theirs, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"end: Ctrl-C" not in shown:
            shown += os.read(ours, 65536)  # which may end within a character
        pages = dict(re.findall(r"page of (\w+) +(http://127\.0\.0\.1:\d+/)", shown.decode()))
        assert set(pages) == set(STATES)
        for state, headline in (("serving", "Serving"), ("blocked", "Not serving"), ("degraded", "Serving, degraded")):
            with urlopen(pages[state], timeout=10) as answer:
                assert f"<h1>{headline}</h1>" in answer.read().decode()
        listening = [at for at in psutil.Process(process.pid).net_connections() if at.status == psutil.CONN_LISTEN]
        assert {at.laddr.ip for at in listening} == {"127.0.0.1"}
        assert len(listening) == len(STATES)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(ours, 65536):
                shown += piece
        assert process.wait(10) == 0
    os.close(ours)
    assert shown.decode().replace("\r", "").rstrip().endswith(NEXT)


def test_each_page_needs_a_port() -> None:
    for words in (("--port", "70000"), ("--port", "-1"), ("--port", "65533")):
        assert "no port for each page" in sparkd("demo", *words).stderr
    assert sparkd("demo", "serving", "--port", "65535").returncode == 0


def test_a_port_that_is_taken_is_named() -> None:
    report = read_example("serving", datetime.now(UTC)).report
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="address already in use"):
        asyncio.run(serve_pages({"serving": Published(report, "")}, taken.getsockname()[1]))
