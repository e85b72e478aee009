"""sparkd's own events: one line each, whatever a field holds."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.base.lib.log import LINE_LIMIT, VALUE_LIMIT, Events, Level, ProcessLog, events, print_bug
from sparkd.base.lib.redaction import Redaction


def log_to_list(*secrets: str, as_json: bool = False) -> tuple[list[str], Events]:
    lines: list[str] = []
    return lines, events(lambda _, line: lines.append(line), Redaction(secrets), as_json=as_json)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\x1b[31mb\x1b[0m", "ab"),
        ("a\x1b\x07b", "a\\x1b\\x07b"),
        ("right\u202eleft", "right\\u202eleft"),
        ("one\ntwo", '"one two"'),
        (ValueError("a\x1b[2Jb\x1b"), "ab\\x1b"),
        ("correct\x1b[0m-horse", "***"),
        (OSError("correct-horse"), "***"),
        ((7, "correct-horse"), "\"(7, '***')\""),
    ],
)
def test_no_field_holds_what_a_terminal_acts_on_nor_a_secret(value: object, shown: str) -> None:
    lines, log = log_to_list("correct-horse")
    log.error("agent.run.failed", reason=value)
    assert lines == [f"agent.run.failed reason={shown}"]


BOTH = pytest.mark.parametrize("as_json", [False, True], ids=["logfmt", "json"])
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)
HOSTILE: dict[str, object] = {
    "colours": "\x1b[31mred\x1b[0m",
    "cut escape": "\x1b[",
    "bidi": "right\u202eleft\u2066",
    "lines": "one\ntwo\r\nthree\u2028four\x85five",
    "a priority": "x\n<0>panic",
    "nul": "a\x00b",
    "half a character": "a\ud800b",
    "long": "x" * 100_000,
    "long and hostile": "\u202e\x1b[31m\U0001f600" * 5_000,
    "quotes": '"' * 10_000,
    "backslashes": "\\" * 10_000,
    "nested": {"a\n": ["\x1b[31mb", {"c": {"d": {"e": ["\u202e"]}}}], 1: (2, None)},
    "nested and long": [["x" * 5_000] * 30] * 30,
    "nested and empty": [[{}] * 300] * 300,
    "nested without end": ENDLESS,
    "many keys": {f"\u202e{number}": None for number in range(10_000)},
    "endless number": 10**5_000,
    "no number": float("nan"),
    "bytes": b"\x1b[31m\xff",
}


@BOTH
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_any_value_gives_one_printable_line_that_journald_does_not_cut(value: object, as_json: bool) -> None:
    lines, log = log_to_list(as_json=as_json)
    log.error("agent.run.failed", reason=value, again=value, hint="look at it")
    (line,) = lines
    assert line.isprintable()
    assert len(line.encode()) < 48 << 10
    if as_json:
        assert json.loads(line, parse_constant=pytest.fail)["event"] == "agent.run.failed"
    else:
        assert line.startswith("agent.run.failed reason=")


@BOTH
def test_fields_beyond_what_a_line_holds_are_cut_and_the_line_says_so(as_json: bool) -> None:
    lines, log = log_to_list(as_json=as_json)
    log.info("agent.run.failed", **{f"key{number}": "x" * 999 for number in range(1000)})
    assert LINE_LIMIT - VALUE_LIMIT < len(lines[0]) < LINE_LIMIT + VALUE_LIMIT
    if as_json:
        assert json.loads(lines[0]).items() >= {"cut": "…", "level": "info"}.items()
    else:
        assert lines[0].endswith(" cut=…")


@BOTH
@given(st.text(min_size=1, max_size=100), st.text(max_size=100), st.text())
def test_any_key_is_one_word_and_any_event_one_printable_line(as_json: bool, key: str, name: str, text: str) -> None:
    lines, log = log_to_list(as_json=as_json)
    log.info(name, **{key: text} if key not in ("self", "event") else {})
    (line,) = lines
    assert line.isprintable()
    if as_json:
        json.loads(line)


@BOTH
@pytest.mark.parametrize("secret", ['cor"rect', "cor'rect", "cor\\rect", "cor'r\"ect", "c\u00f6rrect"])
@pytest.mark.parametrize(
    "made",
    [
        lambda secret: {"a": [{"b": (secret,)}]},
        lambda secret: {secret: 1},
        lambda secret: FileNotFoundError(2, "No such file", secret),
        lambda secret: [["deep", [["deeper", [secret]]]]],
        lambda secret: repr([secret]),
        lambda secret: json.dumps(secret),
        str,
        lambda secret: (7, secret),
    ],
    ids=["value", "key", "error", "deep", "repr", "json", "text", "tuple"],
)
def test_a_secret_is_hidden_also_where_something_else_has_quoted_it(
    secret: str, made: Callable[[str], object], as_json: bool
) -> None:
    lines, log = log_to_list(secret, as_json=as_json)
    log.info("agent.phase.changed", message=made(secret))
    assert "ect" not in lines[0]
    assert lines[0].count("***") == 1


@BOTH
@pytest.mark.parametrize("value", ["hunter22", "\x1b[0mhunter22", "hun\x1b[0mter22"])
def test_a_value_is_hidden_where_its_key_calls_it_a_secret(value: object, as_json: bool) -> None:
    lines, log = log_to_list(as_json=as_json)
    log.info("agent.phase.changed", password=value, env={"API_KEY": value})
    assert lines[0].count("***") == 2
    assert "ter22" not in lines[0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [("/etc/sparkd/api.key", "/etc/sparkd/api.key"), ("/home/me/token", "/home/me/token"), ("/aB3+x/9Zk/w==", "***")],
)
def test_the_path_of_a_secrets_file_is_no_secret(value: str, shown: str) -> None:
    lines, log = log_to_list()
    log.info("agent.run.blocked", hint=f"VLLM_API_KEY = {value}")
    assert lines == [f'agent.run.blocked hint="VLLM_API_KEY = {shown}"']


@BOTH
def test_a_long_key_and_a_number_that_are_secrets_are_hidden(as_json: bool) -> None:
    lines, log = log_to_list("s" * 100, "12345678", as_json=as_json)
    log.info("agent.phase.changed", env={"s" * 100: 1, "deeper": {"s" * 100: []}}, count=12345678, other=1234567)
    assert "ss" not in lines[0]
    assert "12345678" not in lines[0]
    assert "1234567" in lines[0]
    assert lines[0].count("***") == 3


def test_json_keeps_numbers() -> None:
    lines, log = log_to_list(as_json=True)
    log.warning("a.b.c", n=1, x=0.12345, yes=True, none=None, empty="", text="a b")
    fields = json.loads(lines[0])
    assert fields.pop("timestamp").endswith("Z")
    assert fields == {"event": "a.b.c", "level": "warning", "n": 1, "x": 0.123, "yes": True, "text": "a b"}


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_what_is_below_the_level_is_not_written(level: Level) -> None:
    lines: list[str] = []
    log = events(lambda priority, line: lines.append(f"<{priority}>{line}"), Redaction(), level=level)
    log.info("a.b.c")
    log.warning("a.b.c")
    log.error("a.b.c")
    hidden = {"warning": 1, "error": 2}.get(level, 0)
    assert lines == ["<6>a.b.c", "<4>a.b.c", "<3>a.b.c"][hidden:]


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
    assert (second["node"], second["rank"], second["field_node"]) == ("spark1", 0, "spark2")
    assert (second["level"], second["field_level"]) == ("info", "x")
    assert (third["node"], third["rank"], third["epoch"]) == ("spark1", 0, "e1")


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
