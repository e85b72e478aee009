"""What tests expect of a check's verdict, and of what may be None."""

from typing import TypeVar

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.base.host.gpu import GpuFacts

T = TypeVar("T")


def expect(verdict: Verdict, level: Level | None = None, reason: str = "", *, text: str = "", **fields: object) -> None:
    """`reason`: part of the reason. `text`: part of reason and hint. `fields`: others of the verdict, as they are."""
    assert level in (None, verdict.level), verdict
    assert reason in verdict.reason
    assert text in f"{verdict.reason} {verdict.hint}"
    assert {name: getattr(verdict, name) for name in fields} == fields


def never_queried() -> GpuFacts:
    """In place of the GPU's driver, where it is to be left alone."""
    raise AssertionError("the driver was queried")


def present(value: T | None) -> T:
    """The value, which is there."""
    assert value is not None
    return value
