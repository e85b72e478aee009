"""One verdict of several problems: the worst level, its hint, and the fixes of all."""

from tests.unit.preflight.findings import END, REMOVE
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict, combine_verdicts


def test_problems_name_first_what_no_fix_clears() -> None:
    merged = combine_verdicts(
        [
            Verdict(Level.WARN, "w"),
            Verdict(Level.BLOCK, "fixed", "h1", (END,)),
            Verdict(Level.UNKNOWN, "u", "h2", awaits="docker"),
            Verdict(Level.BLOCK, "stuck", "h3"),
        ],
        "good",
    )
    assert merged.reason == "stuck; fixed; u; w"
    expect(merged, Level.BLOCK, hint="h3", clears=False, awaits="")


def test_problems_that_fixes_clear_are_clearable_together() -> None:
    merged = combine_verdicts(
        [Verdict(Level.BLOCK, "a", "h", (END,)), Verdict(Level.BLOCK, "b", "", (END, REMOVE))], "good"
    )
    expect(merged, clears=True, fixes=(END, REMOVE))


def test_more_problems_than_a_line_holds_are_counted() -> None:
    merged = combine_verdicts([Verdict(Level.BLOCK, str(n)) for n in range(6)], "good")
    assert merged.reason == "0; 1; 2; 3; and 2 more"
