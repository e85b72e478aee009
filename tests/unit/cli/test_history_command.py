"""`sparkd history`: its table, and what it says where there is nothing to show."""

from msgspec.structs import replace
from tests.unit.commands import sparkd

from sparkd.base.lib.text import Table
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Launch, Row, Smoke
from sparkd.base.state.launch_history import End
from sparkd.tools.cli.history import table_rows

COLUMNS = 80
LAUNCH = Launch(
    "a",
    "2026-11-23T10:00:00.000+00:00",
    0,
    "d",
    "deepseek-v4-flash-balanced",
    Facts({}, {}, {}),
    load_seconds=5400,
    last_tokens_per_second=12345.6,
)


def test_the_table_fits_a_terminal_with_the_newest_first() -> None:
    ended = replace(LAUNCH, id="b", end=End("killed", cause="killed-from-outside"))
    smokes: tuple[Row, ...] = (Smoke("s", "", "b", "r", 3), Smoke("t", "", "b", "r", 99))
    rows = table_rows((ended, replace(LAUNCH, load_seconds=None)), smokes)
    lines = str(Table(rows, heading=True)).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert lines[1].split()[-4:] == ["-", "12,345.6", "-", "-"]
    assert lines[2].split()[-5:] == ["5,400", "s", "12,345.6", "99", "killed-from-outside"]


def test_a_number_that_makes_no_sense_is_refused_in_one_line() -> None:
    done = sparkd("history", "--last", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "sparkd: --last: needed is a number from 1 to 500\nhint: sparkd history --help\n"
