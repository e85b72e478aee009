"""Whether a plan's loads have become slower, and what changed before the first slow one."""

from msgspec.structs import replace

from sparkd.base.state.decline import describe_slower_load
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Launch


def launch(day: int, seconds: float | None, **values: str) -> Launch:
    return Launch(
        str(day), f"2026-11-{day:02}T10:00:00.000+00:00", 0, "d", "tiny", Facts(values, {}, {}), load_seconds=seconds
    )


EARLIER = tuple(launch(day, 90.0 + day % 2, **{"args.dtype": "half"}) for day in range(1, 5))


def test_slower_loads_are_reported_with_what_changed_between() -> None:
    slow = launch(6, 150.0, **{"args.dtype": "float32"}), launch(7, 160.0, **{"args.dtype": "float32"})
    assert describe_slower_load((*EARLIER, launch(5, None), *slow)) == (
        "loads are slower since 2026-11-06 10:00 UTC: 160 s, 90 s before; changed: args.dtype half -> float32"
    )
    unchanged = replace(slow[0], facts=EARLIER[0].facts)
    assert describe_slower_load((*EARLIER, unchanged)).endswith("nothing that sparkd knows of has changed")


def test_usual_loads_are_no_warning() -> None:
    assert describe_slower_load((*EARLIER, launch(6, 92.0))) == ""
    assert describe_slower_load(EARLIER[:2]) == ""
