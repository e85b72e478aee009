"""Where two nodes differ: in aligned, printable lines that show each difference."""

from hypothesis import given
from hypothesis import strategies as st

from sparkd.base.plan.differences import (
    VALUE_WIDTH,
    Difference,
    compare_values,
    compare_versions,
    diff_excerpt,
    format_summary,
    format_table,
)

TEXTS = st.text(max_size=40)
VALUES = st.dictionaries(TEXTS, TEXTS, max_size=12)


@given(own=VALUES, theirs=VALUES, names=st.tuples(TEXTS, TEXTS))
def test_differences_print_as_printable_lines(
    own: dict[str, str], theirs: dict[str, str], names: tuple[str, str]
) -> None:
    differences = compare_values(own, theirs)
    assert bool(differences) == (own != theirs)
    lines = (
        *format_table(differences, *names),
        format_summary(differences),
        *compare_versions(own, theirs),
    )
    assert all(line.isprintable() and len(line) < 250 for line in lines)


@given(before=st.text("ab", max_size=4000), tails=st.lists(st.text("cd", max_size=4000), min_size=2, max_size=2))
def test_the_differing_part_is_visible(before: str, tails: list[str]) -> None:
    difference = Difference("args.x", before + "c" + tails[0], before + "d" + tails[1])
    _, row = format_table((difference,), "a", "b")
    own, theirs = row.removeprefix("args.x").split()
    assert own != theirs
    assert max(len(own), len(theirs)) <= VALUE_WIDTH


def test_a_cut_value_has_an_ellipsis_where_more_of_it_is() -> None:
    same, width = "a" * 200, VALUE_WIDTH - 2
    assert diff_excerpt(Difference("x", f"{same}b", f"{same}c"))[0] == f"…{same[:width]}b"
    assert diff_excerpt(Difference("x", f"b{same}", f"c{same}"))[0] == f"b{same[:width]}…"


def test_the_table_is_aligned_and_names_both_nodes() -> None:
    differences = compare_values(
        {"args.max-model-len": "512", "env.A": "1", "env.B": ""}, {"args.max-model-len": "256", "env.B": "\x1b[2J"}
    )
    assert format_table(differences, "spark-1", "spark-2") == (
        "                    spark-1  spark-2",
        "args.max-model-len  512      256",
        "env.A               1        -",
        'env.B               ""       \\x1b[2J',
    )


def test_the_summary_has_the_first_difference_and_counts_the_others() -> None:
    first, other = Difference("args.max-model-len", "512", "256"), Difference("env.A", "1", "")
    assert format_summary([first, other, other]) == "args.max-model-len is 512 here and 256 there; and 2 more"
    assert format_summary([other]) == "env.A is 1 here and not set there"


def test_without_differences_there_is_no_line() -> None:
    assert format_table((), "a", "b") == ()
    assert format_summary(()) == ""


def test_a_long_table_ends_with_a_count() -> None:
    _, *rows, last = format_table([Difference(f"args.{number}", "a", "b") for number in range(100)], "a", "b")
    assert len(rows) == 40
    assert last == "and 60 more"


def test_versions_are_compared_where_both_are_known() -> None:
    own = {"driver": "580.1", "kernel": "6.17", "sparkd": "1"}
    assert compare_versions(own, {"driver": "570\n", "kernel": "6.17", "docker": "29"}) == (
        "driver is 580.1 here and 570\\n there",
    )
