"""The table of vLLM's flags; tests/bed/test_flags.py compares it with the real parser."""

import msgspec
import pytest
from tests.bed.engine_parser import format_table

from sparkd.base.lib import read_data
from sparkd.base.vllm.flag import FILE, SHIPPED, FlagTable, parse_amount


def test_the_table_is_as_make_flags_writes_it() -> None:
    assert read_data(FILE).decode() == format_table(SHIPPED)
    assert len(SHIPPED.flags) > 300
    assert sum(map(len, SHIPPED.fields.values())) > 200


@pytest.mark.parametrize(
    "row", ['{"name": "x", "kind": "number"}', '{"name": "x"}', '{"name": "x", "kind": "int", "choice": ["1"]}']
)
def test_a_table_of_another_form_is_refused(row: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"version": "1", "flags": [{row}], "fields": {{}}}}', type=FlagTable)


def test_no_two_flags_have_one_name() -> None:
    others = [name for flag in SHIPPED.flags for name in flag.aliases if name.startswith("--")]
    negative = [flag for flag in SHIPPED.flags if flag.negative]
    assert len(SHIPPED.by_name) == len(SHIPPED.flags) + len(negative) + len(others)


def test_the_flags_whose_names_vllm_registers_are_known() -> None:
    named = {"kv-cache-dtype", "load-format", "quantization", "reasoning-parser", "tool-call-parser"}
    assert {flag.name for flag in SHIPPED.flags if flag.registered} == named


@pytest.mark.parametrize(
    ("text", "amount"),
    [("131072", 131072), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("1M", 1 << 20), ("2g", 2 * 10**9),
     ("25.6", None), ("25.6K", None), ("1T", 1 << 40), (" 5 ", 5), ("", None), ("auto", None), ("-1", None),
     ("1" * 99, None), ("\u0661", None), ("1e3", None)],
)  # fmt: skip
def test_amounts_are_read_as_vllm_does(text: str, amount: int | None) -> None:
    assert parse_amount(text) == amount
