"""What the main loop's thread opens and looks at, by its system calls: nothing that hangs with a disk or a process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent_world import World, child_of, world
from tests.integration.side_by_side import Outcomes, outcomes

import sparkd

TRACE = "/run/trace"
TRACED = ("strace", "-o", TRACE, "-e", "trace=%file")
"""The first thread alone: it does not follow others, nor programs."""
ALLOWED = ("/run/", "/proc/self/", "/proc/meminfo", "/proc/vmstat", "/proc/stat")
"""The last is for psutil, from which the metrics have the moment of the boot: it has counters of the kernel alone."""
OWN = tuple({sys.prefix, sys.base_prefix, str(Path(sparkd.__file__).parents[1])})
"""The program itself: modules are imported when they are needed."""
REPORT = "/run/sparkd/report.json"
TOKEN = "0123456789abcdef" * 2
OBSERVE = """\
observe.listen = "127.0.0.1:29511"
observe.token_file = "/etc/sparkd/token"
"""
SCRAPE = f"""\
from urllib.request import Request, urlopen
for path in ("metrics", ""):
    request = Request(f"http://127.0.0.1:29511/{{path}}", headers={{"Authorization": "Bearer {TOKEN}"}})
    print(urlopen(request, timeout=20).read().decode())
"""
SERVE_SECONDS, END_SECONDS = 7.0, 60.0
"""Longer than the pause between two looks at a serving engine."""
_PATH = re.compile(r'^(\w+)\([^"]*"([^"]+)"')


@pytest.fixture(scope="module")
def traces(request: pytest.FixtureRequest) -> Iterator[Outcomes[list[str]]]:
    with outcomes(request, "test_the_main_thread_touches_no_disk", trace, at_once=3) as results:
        yield results


def trace(pair: bool, end: str) -> list[str]:
    """The system calls with a path of a run, from its first report on."""
    with world(pair=pair) as node:
        node.tree.file("/etc/sparkd/token", TOKEN, 0o600)
        node.tree.file("/etc/sparkd/conf.d/20-observe.toml", OBSERVE)
        node.start_agent(*TRACED)
        if pair:
            node.lead_peer()
        node.await_phase("serving")
        scraped = node.run(sys.executable, "-I", "-S", "-c", SCRAPE, stdout=subprocess.PIPE)
        answers = scraped.communicate()[0]
        assert b"sparkd_" in answers
        assert b"The last 24 hours" in answers
        time.sleep(SERVE_SECONDS)
        if end == "stop":
            os.kill(child_of(node.agent_pid), signal.SIGTERM)
        else:
            node.control(signal=signal.SIGKILL)
        node.exit_code(END_SECONDS)
        return calls_since_report(node)


def calls_since_report(node: World) -> list[str]:
    lines = (node.root / TRACE[1:]).read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if REPORT in line)
    return [line for line in lines[first:] if _PATH.match(line)]


def is_allowed(call: str) -> bool:
    matched = _PATH.match(call)
    assert matched is not None
    path = os.path.normpath(matched[2]) + "/" * matched[2].endswith("/")
    return path.startswith((*ALLOWED, *OWN)) or path == "/run"


ROWS = [
    pytest.param(False, "stop", id="alone-stop"),
    pytest.param(True, "stop", id="pair-stop"),
    pytest.param(False, "rank", id="alone-rank"),
    pytest.param(True, "rank", id="pair-rank"),
]


@pytest.mark.parametrize(("pair", "end"), ROWS)
def test_the_main_thread_touches_no_disk(
    pair: bool, end: str, traces: Outcomes[list[str]], request: pytest.FixtureRequest
) -> None:
    calls = traces.of(request)
    assert any(REPORT in call for call in calls)
    assert [call for call in calls if not is_allowed(call)] == []


@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        ('openat(AT_FDCWD, "/run/sparkd/report.json", O_RDONLY) = 3', True),
        ('openat(AT_FDCWD, "/run/../var/lib/sparkd/switch.json", O_RDONLY) = 3', False),
        ('newfstatat(AT_FDCWD, "/var/lib/sparkd/switch.json", 0x7f, 0) = -1 ENOENT', False),
        ('newfstatat(AT_FDCWD, "/proc/18/fd", 0x7f, 0) = 0', False),
    ],
)
def test_a_call_is_judged_by_its_whole_path(call: str, allowed: bool) -> None:
    assert is_allowed(call) is allowed
