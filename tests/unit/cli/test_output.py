"""Output that can't be written or that nobody reads: an error is reported, and a reader that leaves is none."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.unit.commands import INTERRUPTIBLE, SPARKD, bash, needs_no_agent

from sparkd.base.lib.errors import ExitCode
from sparkd.tools.cli.status import WATCH_SECONDS

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may build an image")
COMMANDS = ("--help", "recipe schema", "status")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_reported_with_what_shows_it(command: str) -> None:
    done = bash(f"{SPARKD} {command} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "sparkd: no space left on device\nhint: df -h\n"


def test_an_error_of_the_system_is_an_object_where_json_is_wanted() -> None:
    done = bash(f"{SPARKD} explain --json 0>/dev/null; {SPARKD} explain --json <<<x >/dev/full")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == 1
    assert error["cause"] == "system-error"
    assert error["reason"] == "bad file descriptor"
    assert done.stderr == "sparkd: bad file descriptor\nsparkd: no space left on device\nhint: df -h\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("--help", 0), ("recipe schema", 0), pytest.param("status", ExitCode.DOWN, marks=needs_no_agent)],
)
def test_a_reader_that_leaves_and_a_closed_output_are_no_errors(command: str, code: int) -> None:
    done = bash(f"{SPARKD} {command} | true; echo ${{PIPESTATUS[0]}}")
    assert int(done.stdout) in (0, code)
    assert done.stderr == ""
    done = bash(f"{SPARKD} {command} >&- <&-")
    assert done.returncode == code
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("preflight --dry-run", 0),
        pytest.param("image build deepseek-v4-flash-built", 141, marks=needs_root),
        ("recipe list", 0),
        ("help image", 0),
    ],
)
def test_a_reader_that_leaves_cuts_the_work_of_a_command_short(words: str, code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sparkd.tools.cli.main", *words.split()]
    with os.fdopen(writing) as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert done.stderr == ""


def test_a_reader_that_leaves_hides_no_error_of_the_command() -> None:
    done = bash(f"{SPARKD} recipe check tiny-cpu none-such | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == f"{ExitCode.CONFIG:d}\n"
    assert "no recipe none-such" in done.stderr


@pytest.mark.parametrize("errors", ["2>&1 | true", "2>/dev/full | true"])
def test_an_error_that_can_not_be_written_has_its_exit_code(errors: str) -> None:
    done = bash(f"{SPARKD} recipe check none-such {errors}; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == f"{ExitCode.CONFIG:d}\n"


@pytest.mark.parametrize(("command", "code"), [("recipe import -", 78), ("init", 2), ("recipe import - --write", 2)])
def test_closed_input_is_as_an_empty_one_and_closed_errors_hide_none(command: str, code: int) -> None:
    closed, empty = bash(f"{SPARKD} {command} <&-"), bash(f"{SPARKD} {command} </dev/null")
    assert closed.returncode == empty.returncode
    assert closed.stderr == empty.stderr
    assert closed.returncode == code
    assert bash(f"{SPARKD} {command} 2>&- </dev/null").returncode == code


@needs_no_agent  # its report has durations, which change
def test_watch_without_a_terminal_prints_only_what_has_changed() -> None:
    command = [*INTERRUPTIBLE, SPARKD, "status", "--watch"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("next: " in line for line in process.stdout)
        time.sleep(2.5 * WATCH_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "", "two more intervals"
    assert process.returncode == -signal.SIGTERM
