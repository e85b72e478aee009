"""The log of a process: its common fields, what libraries log, and the tracebacks of bugs."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparkd.base.lib.log import Events, Level, ProcessLog, print_bug
from sparkd.base.lib.redaction import Redaction


class Lines:
    """What a process's log has put, with what a full queue may drop."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.droppable: list[str] = []

    def put(self, priority: int, text: str, *, keep: bool) -> None:
        (self.kept if keep else self.droppable).append(f"<{priority}>{text}")


@contextmanager
def of_process(
    as_json: bool = False, level: Level = "info", *secrets: str
) -> Iterator[tuple[Lines, ProcessLog, Events]]:
    root = logging.getLogger()
    handlers, before = list(root.handlers), root.level
    root.handlers[:] = []  # those of pytest fail where a message does
    lines = Lines()
    log = ProcessLog(lines.put)
    log.configure(as_json=as_json, level=level)
    try:
        yield lines, log, log.events(Redaction(secrets))
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)
        logging.captureWarnings(False)


def test_what_is_bound_later_stands_in_later_lines_of_events_made_before() -> None:
    with of_process(as_json=True) as (lines, log, made):
        made.info("a.b.c")
        log.bind(node="spark1", rank=0)
        made.info("a.b.c", node="spark2", level="x")
        log.bind(epoch="e1")
        made.info("a.b.c")
    first, second, third = (json.loads(line.removeprefix("<6>")) for line in lines.kept)
    assert "node" not in first
    bound = {"node": "spark1", "rank": 0}
    assert second.items() >= {**bound, "field_node": "spark2", "level": "info", "field_level": "x"}.items()
    assert third.items() >= {**bound, "epoch": "e1"}.items()


def test_logfmt_lines_do_without_what_is_bound() -> None:
    with of_process() as (lines, log, made):
        log.bind(node="spark1", rank=0, epoch="e1")
        made.info("cluster.contact.changed", node="spark2")
    assert lines.kept == ["<6>cluster.contact.changed node=spark2"]


def test_what_a_library_logs_is_an_event_that_may_be_dropped() -> None:
    with of_process(False, "info", "correct-horse") as (lines, _, _):
        logger = logging.getLogger("urllib3.connectionpool")
        logger.info("not so loud")
        logger.warning("retry of %s", "https://user:pass@hub/a?X-Signature=abcdef&b=c (correct-horse)\n<0>\x1b[31mx")
        logger.critical("the end")
    assert lines.kept == []
    assert lines.droppable == [
        '<4>library.message.logged library=urllib3.connectionpool message="retry of https://***@hub/a?*** (***) <0>x"',
        '<3>library.message.logged library=urllib3.connectionpool message="the end"',
    ]


@pytest.mark.parametrize(
    ("level", "written_levels"), [("debug", [7, 6, 4, 3]), ("info", [4, 3]), ("warning", [4, 3]), ("error", [3])]
)
def test_the_level_is_the_libraries_too_but_they_are_quiet_unless_it_is_debug(
    level: Level, written_levels: list[int]
) -> None:
    with of_process(level=level) as (lines, _, _):
        for library_level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger("urllib3").log(library_level, "a message")
    assert [int(line[1]) for line in lines.droppable] == written_levels


def test_a_library_that_logs_for_each_request_fills_no_journal() -> None:
    with of_process() as (lines, _, _):
        for _ in range(10_000):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert len(lines.droppable) == 60


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("arguments", [("%d", "no number"), ("%s", Unprintable()), ("%s %s", "one")])
def test_a_bug_in_what_a_library_logs_ends_nothing(arguments: tuple[str, object]) -> None:
    with of_process() as (lines, _, _):
        logging.getLogger("docker").error(*arguments)
    (line,) = lines.droppable
    assert "cannot be shown" in line


def test_an_error_that_a_library_met_is_named_without_its_traceback() -> None:
    with of_process() as (lines, _, _):
        try:
            raise ValueError("what was met")
        except ValueError:
            logging.getLogger("asyncio").exception("Task exception was never retrieved")
    (line,) = lines.droppable
    assert line.startswith('<3>library.message.logged library=asyncio message="Task exception was never retrieved"')
    assert line.endswith(' error="ValueError: what was met"')


def test_a_command_shows_a_librarys_warning_as_one_line() -> None:
    code = (
        "import logging; from sparkd.base.lib import log; log.clean_stderr();"
        "logging.getLogger('docker').warning('a\\x1b[31m\\n<0>b token=abcdefgh https://u:p@h/?q=1 %s', 'x' * 5000);"
        "logging.getLogger('docker').info('quiet')"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert shown.startswith("sparkd: docker: a\\n<0>b token=*** https://***@h/?*** xxx")
    assert shown.endswith("x…\n")
    assert len(shown) <= 1001


@pytest.mark.parametrize("where", ["boom()", "t = threading.Thread(target=boom); t.start(); t.join(); sys.exit(1)"])
def test_the_traceback_of_a_bug_shows_no_secret(where: str) -> None:
    code = (
        "import sys, threading; from sparkd.base.lib import log; log.clean_stderr()\n"
        "def boom():\n"
        "    try:\n        raise OSError('Authorization: Bearer ' + 'q8Zr' * 6)\n"
        "    except OSError as error:\n        raise RuntimeError('\\x1b[31mapi_' + 'key=' + 'v7Kd' * 6) from error\n"
        f"{where}"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "q8Zrq8Zr" not in ended.stderr
    assert "v7Kdv7Kd" not in ended.stderr
    assert 'File "<string>", line 4, in boom' in ended.stderr
    assert "RuntimeError: api_key=***" in ended.stderr
    assert "direct cause" in ended.stderr


def test_the_traceback_of_the_agents_bug_shows_no_known_secret(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "correct horse battery"
    print_bug(RuntimeError(f"with {secret}"), Redaction((secret,)))
    assert capsys.readouterr().err == "RuntimeError: with ***\n"


def test_the_agents_log_does_without_rich() -> None:
    code = "import sys, sparkd.base.lib.log; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
