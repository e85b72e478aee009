"""Texts that people read."""

import pytest

from sparkd.base.lib.text import counted, did_you_mean, size


@pytest.mark.parametrize(("size_bytes", "words"), [(0, "0 MiB"), (512 << 20, "512 MiB"), (3 << 29, "1.5 GiB")])
def test_a_size_has_the_unit_that_people_read(size_bytes: int, words: str) -> None:
    assert size(size_bytes) == words


def test_one_thing_has_no_plural() -> None:
    assert [counted(number, "request") for number in (0, 1, 2000)] == ["0 requests", "1 request", "2,000 requests"]


def test_a_common_ending_alone_is_no_likeness() -> None:
    assert did_you_mean("B12X_MLA_SPARSE", ("XPU_MLA_SPARSE",)) == ""
    assert did_you_mean("mpt", ("mtp",)) == "; did you mean mtp?"
