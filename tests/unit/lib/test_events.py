"""sparkd's own events: one line each, whatever a field holds."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.base.lib.log import LINE_LIMIT, VALUE_LIMIT, Events, Level, events
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
    assert "agent.run.failed" in line


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_no_value_makes_a_json_line_invalid(value: object) -> None:
    lines, log = log_to_list(as_json=True)
    log.error("agent.run.failed", reason=value, again=value, hint="look at it")
    assert json.loads(lines[0], parse_constant=pytest.fail)["event"] == "agent.run.failed"


@BOTH
def test_fields_beyond_what_a_line_holds_are_cut_and_the_line_says_so(as_json: bool) -> None:
    lines, log = log_to_list(as_json=as_json)
    log.info("agent.run.failed", **{f"key{number}": "x" * 999 for number in range(1000)})
    assert LINE_LIMIT - VALUE_LIMIT < len(lines[0]) < LINE_LIMIT + VALUE_LIMIT
    assert re.search(r' cut=…$|, "cut": "…", "level": "info"', lines[0])


KEYS = st.text(min_size=1, max_size=100).filter(lambda key: key not in ("self", "event"))


@BOTH
@given(KEYS, st.text(max_size=100), st.text())
def test_any_event_is_one_printable_line(as_json: bool, key: str, name: str, text: str) -> None:
    lines, log = log_to_list(as_json=as_json)
    log.info(name, **{key: text})
    (line,) = lines
    assert line.isprintable()


@given(KEYS, st.text(max_size=100), st.text())
def test_no_key_makes_a_json_line_invalid(key: str, name: str, text: str) -> None:
    lines, log = log_to_list(as_json=True)
    log.info(name, **{key: text})
    json.loads(lines[0])


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
