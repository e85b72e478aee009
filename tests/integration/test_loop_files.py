"""What the main loop's thread opens and looks at, by its system calls: nothing that hangs with a disk or a process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.agent_world import World, child_of, world
from tests.integration.side_by_side import Outcomes, outcomes

import sparkd

TRACE = "/run/trace"
TRACED = ("strace", "-o", TRACE, "-e", "trace=%file")
"""The first thread alone: it does not follow others, nor programs."""
ALLOWED = ("/run/", "/proc/self/", "/proc/meminfo", "/proc/vmstat", "/proc/stat")
"""psutil reads /proc/stat, for the moment of the boot in the metrics: it has counters of the kernel alone."""
OWN_CODE = tuple({sys.prefix, sys.base_prefix, str(Path(sparkd.__file__).parents[1])})
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
SERVE_SECONDS = 7.0
"""Longer than the pause between two looks at a serving engine."""
END_SECONDS = 60.0
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@pytest.fixture(scope="module")
def traces(request: pytest.FixtureRequest) -> Iterator[Outcomes[list[str]]]:
    with outcomes(request, trace, at_once=3) as results:
        yield results


def stop_agent(node: World) -> None:
    os.kill(child_of(node.agent_pid), signal.SIGTERM)  # the agent is its tracer's child


def kill_rank(node: World) -> None:
    node.control(signal=signal.SIGKILL)


def trace(pair: bool, end: Callable[[World], None]) -> list[str]:
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
        end(node)
        node.exit_code(END_SECONDS)
        return calls_since_report(node)


def calls_since_report(node: World) -> list[str]:
    lines = (node.root / TRACE[1:]).read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if REPORT in line)
    return [line for line in lines[first:] if paths_of(line)]


def paths_of(call: str) -> list[str]:
    """The paths that a call is given, as strace quotes them. What readlink answers is a text, which nothing opens."""
    quoted = _QUOTED.findall(call)
    paths = quoted[:1] if call.startswith("readlink") else quoted
    return [path for path in paths if path]  # an empty one is the open file before it


def is_allowed(call: str) -> bool:
    paths = [os.path.normpath(path) + "/" * path.endswith("/") for path in paths_of(call)]
    assert paths, call
    return all(path.startswith((*ALLOWED, *OWN_CODE)) or path == "/run" for path in paths)


ROWS = [
    pytest.param(False, stop_agent, id="alone-stop"),
    pytest.param(True, stop_agent, id="pair-stop"),
    pytest.param(False, kill_rank, id="alone-rank"),
    pytest.param(True, kill_rank, id="pair-rank"),
]


@pytest.mark.parametrize(("pair", "end"), ROWS)
def test_the_main_thread_touches_no_disk(
    pair: bool, end: Callable[[World], None], traces: Outcomes[list[str]], request: pytest.FixtureRequest
) -> None:
    assert [call for call in traces.of(request) if not is_allowed(call)] == []


@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        pytest.param('openat(AT_FDCWD, "/run/sparkd/report.json", O_RDONLY) = 3', True, id="below /run"),
        pytest.param('openat(AT_FDCWD, "/run/../var/lib/sparkd/switch.json", O_RDONLY) = 3', False, id="out of /run"),
        pytest.param('newfstatat(AT_FDCWD, "/var/lib/sparkd/switch.json", 0x7f, 0) = -1 ENOENT', False, id="on a disk"),
        pytest.param('newfstatat(AT_FDCWD, "/proc/18/fd", 0x7f, 0) = 0', False, id="another process"),
        pytest.param('openat(7, "switch.json", O_RDONLY) = 8', False, id="in a folder that is not known"),
        pytest.param('rename("/run/sparkd/a", "/run/sparkd/b") = 0', True, id="two paths below /run"),
        pytest.param('rename("/run/sparkd/a", "/var/lib/sparkd/a") = 0', False, id="the second path on a disk"),
        pytest.param('rename("/run/a\\"b", "/var/lib/sparkd/a") = 0', False, id="a quote in the first path"),
        pytest.param('readlink("/proc/self/exe", "/opt/python3", 4096) = 12', True, id="where a link leads to"),
    ],
)
def test_a_call_is_judged_by_its_whole_paths(call: str, allowed: bool) -> None:
    assert is_allowed(call) is allowed
