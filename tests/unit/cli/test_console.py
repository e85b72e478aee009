"""Tables and progress: by rich on a terminal, plain and without rich elsewhere."""

import os
import re
import subprocess
import sys
import time
from argparse import Namespace

import pytest
from tests.unit.terminal import shown, terminal

from sparkd.base.lib.text import Parts, Table, cell_width, plain
from sparkd.base.recipes.lookup import find_recipes, recipe_folders
from sparkd.tools.cli.console import Screen, on_terminal, show
from sparkd.tools.cli.progress import Progress, Ticker
from sparkd.tools.cli.recipe import list_recipes

LEVELS = Table([("WARN    a", "cache [red]full[/red]"), ("BLOCK   long-id", "x")], ["warn", "block"])
EVIL = "\x1b[2J\x1b]0;title\x07[bold]:smile:\r\nrow \u202e"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def test_without_a_terminal_columns_are_as_wide_as_their_widest_cell(capsys: pytest.CaptureFixture[str]) -> None:
    show(["before", LEVELS, "", Table([]), Table([("A", "B", ""), ("x" * 200, "", "z")], heading=True)])
    a, b = "A".ljust(200), "x" * 200
    assert capsys.readouterr().out == (
        f"before\nWARN    a        cache [red]full[/red]\nBLOCK   long-id  x\n\n{a}  B\n{b}     z\n"
    )


def test_without_a_terminal_rich_is_not_imported() -> None:
    code = (
        "import sys; sys.modules['rich'] = None;"
        "from sparkd.tools.cli.console import show; from sparkd.tools.cli.progress import Progress;"
        "from sparkd.base.lib.text import Table; show([Table([('a', 'b')])])\n"
        "with Progress(1, 2) as progress: progress.start_file('x'); progress.add_bytes(1)"
    )
    env = {**os.environ, "PYTHONPATH": "src", "FORCE_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "a  b\n"
    assert done.stderr == ""


def test_a_terminal_gets_the_same_words_in_colour() -> None:
    text = shown([LEVELS, "end"])
    assert "\x1b[33mWARN" in text
    assert "\x1b[1;31mBLOCK" in text
    assert [line.rstrip() for line in ESCAPES.sub("", text).splitlines()] == plain([LEVELS, "end"]).splitlines()


@pytest.mark.parametrize(("env", "coloured"), [({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({}, True)])
def test_colours_can_be_forbidden(env: dict[str, str], *, coloured: bool) -> None:
    assert ("\x1b[33m" in shown([LEVELS], columns=80, **env)) is coloured


def test_the_last_column_wraps_below_itself() -> None:
    table = Table([("WARN    a", "word " * 40), ("OK      b", "x")])
    lines = shown([table], columns=60, TERM="dumb").splitlines()
    assert len(lines) > 3
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith(" " * 11 + "word") for line in lines[1:-1])


def test_the_shipped_recipes_are_listed_in_80_columns() -> None:
    with terminal(TERM="dumb") as received:
        list_recipes(Namespace(json=False))
    lines = received.text.splitlines()
    assert len(lines) == 1 + len(find_recipes(recipe_folders()))
    assert max(map(len, lines)) <= 80
    assert any(line.endswith(("DeepSeek-V4-Fla…", "DeepSeek-V4-Flash")) for line in lines)


def test_a_narrow_terminal_takes_no_column_away() -> None:
    table = Table([("name-of-thirty-characters-here", "x" * 30, "y" * 30)])
    lines = shown([table], columns=10, TERM="dumb").splitlines()
    assert lines[0].startswith(f"name-of-thirty-characters-here  {'x' * 30}  {'y' * 16}")


@pytest.mark.parametrize("env", [{}, {"TERM": "dumb"}])
def test_nothing_in_a_cell_is_markup_or_moves_the_cursor(env: dict[str, str]) -> None:
    text = ESCAPES.sub("", shown([Table([(EVIL, EVIL), ("a", "b")], ["ok", ""])], columns=300, **env))
    assert text.splitlines()[0].count(r"[bold]:smile:\r\nrow \u202e") == 2
    assert len(text.splitlines()) == 2
    assert text.replace("\n", "").isprintable()


def test_a_level_of_another_node_is_no_style() -> None:
    assert "x  y" in shown([Table([("x", "y")], ["[link=http://a]"])])


def drawn(parts: Parts, *more: Parts) -> list[str]:
    """Each screen that was drawn, without colours."""
    with terminal(LINES="24") as received, Screen() as screen:
        for tables in (parts, *more):
            screen.show(tables)
    before, *frames = received.text.split("\x1b[H")
    assert "\x1b[?1049h" in before or "\x1b[?1049h" in frames[0], "the other screen"
    assert received.text.rindex("\x1b[?25h") < received.text.rindex("\x1b[?1049l"), "cursor and screen come back"
    return [ESCAPES.sub("", screenful.partition("\x1b[?25h")[0]) for screenful in frames if "\n" in screenful]


def test_a_screen_is_drawn_where_it_has_changed() -> None:
    first, second = drawn(["a", LEVELS], ["a", LEVELS], ["b"])
    assert [line.rstrip() for line in first.splitlines()][:3] == ["a", *plain([LEVELS]).splitlines()]
    assert second.split() == ["b"]


def test_a_screen_has_the_size_of_the_terminal_and_counts_what_it_leaves_out() -> None:
    (screen,) = drawn([f"line {number} {'界' * 100}" for number in range(30)])
    lines = screen.splitlines()
    assert len(lines) == 24
    assert all(cell_width(line) <= 80 for line in lines)
    assert lines[22].startswith("line 22 ")
    assert lines[23].rstrip() == "… 7 more lines: sparkd status"


def test_nothing_on_a_screen_is_markup_or_moves_the_cursor() -> None:
    (screen,) = drawn([EVIL, Table([(EVIL * 100, "x")], [EVIL])])
    assert screen.replace("\n", "").isprintable()
    assert "[bold]:smile:" in screen


@pytest.mark.parametrize(("name", "can"), [("dumb", False), ("xterm", True)])
def test_a_terminal_without_a_cursor_has_no_screen(name: str, *, can: bool) -> None:
    with terminal(TERM=name):
        assert on_terminal() is can
    assert not on_terminal()


def test_progress_fits_the_terminal_and_moves_no_cursor_but_its_own() -> None:
    with terminal(columns=80) as received, Progress(46, 160 << 30) as progress:
        progress.start_file(EVIL + "x" * 200)
        progress.add_bytes(90 << 30)
        progress.add_bytes(-(10 << 30))
    assert "1/46 \\x1b[2J" in received.text
    assert "80.0/160.0 GiB" in received.text
    assert all(len(line) <= 80 for line in ESCAPES.sub("", received.text).split("\x1b[2K"))
    assert received.text.index("\x1b[?25l") < received.text.index("\x1b[?25h"), "the cursor is shown again"


def test_progress_of_an_unknown_size_says_what_has_come_and_no_share() -> None:
    with terminal(columns=80) as received, Progress(1, None) as progress:
        progress.add_bytes(3 << 30)
    assert "3.0/? GiB" in received.text
    assert "%" not in received.text
    progress = Progress(1, None)
    progress.add_bytes(3 << 30)
    assert progress.line().endswith(": for 0 s, 3.0 GiB")


def test_an_error_ends_progress_too() -> None:
    with pytest.raises(ValueError, match="broken"), terminal() as received, Progress(1, 1):
        raise ValueError("broken")
    assert "\x1b[?25h" in received.text


def test_without_a_terminal_long_work_prints_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(2, 4 << 30, every_seconds=0.05) as progress:
        progress.start_file(f"a{EVIL}")
        progress.add_bytes(1 << 30)
        time.sleep(0.3)
    printed = capsys.readouterr().err
    lines = printed.splitlines()
    assert len(lines) >= 2
    assert re.fullmatch(r"1/2 a.*: for 0 s, 1\.0 GiB of 4\.0 GiB, 25%", lines[0])
    assert printed.replace("\n", "").isprintable()
    time.sleep(0.2)
    assert capsys.readouterr().err == "", "and none once it is done"


def test_on_a_terminal_there_is_no_such_line() -> None:
    with terminal() as received, Ticker("works", every_seconds=0.02):
        time.sleep(0.1)
    assert "works" not in received.text
