"""YAML of recipes: a value is what was written, and any text is data or a fault."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.recipe_files import MINIMAL_RECIPE, load_text

from sparkd.base.recipes.yaml import YamlError, format_flow, parse_yaml


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0.90", "0.90"),
        ("1e-5", "1e-5"),
        ("012", "012"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("131072", 131072),
        ("-1", -1),
        ("0.5", 0.5),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("''", ""),
        ("'true'", "true"),
        ("1:30", "1:30"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("{a: -1e999}", {"a": "-1e999"}),
        ("0x" + "f" * 298, "0x" + "f" * 298),
        ("9" * 400, "9" * 400),
        ("'{node.address}'", "{node.address}"),
        ("[1, a, 0.90]", [1, "a", "0.90"]),
        ("{a: 0.90, b: [0x10, null, {c: no}]}", {"a": 0.9, "b": [16, None, {"c": "no"}]}),
        ("|-\n    two\n    lines", "two\nlines"),
        ("{a: .nan}", {"a": ".nan"}),
    ],
)
def test_a_flags_value_is_what_was_written(tmp_path: Path, written: str, value: object) -> None:
    assert load_text(tmp_path, f"{MINIMAL_RECIPE}args:\n  a_b: {written}\n").args == {"a-b": value}


@pytest.mark.parametrize(
    ("written", "value"), [("12.10", "12.10"), ("8", "8"), ("08", "08"), ("12.1a", "12.1a"), ("~", None)]
)
def test_a_variable_keeps_the_text_of_a_number(tmp_path: Path, written: str, value: str | None) -> None:
    assert load_text(tmp_path, f"{MINIMAL_RECIPE}env:\n  A: {written}\n").env == {"A": value}


@pytest.mark.parametrize("depth", [60, 1_000_000])
def test_what_is_nested_too_deep_is_a_fault(depth: int) -> None:
    with pytest.raises(YamlError, match="line 2: is nested too deep"):
        parse_yaml(f"a: 1\nargs: {'[' * depth}{']' * depth}\n", lambda _: False)


@settings(max_examples=150, deadline=None)
@given(
    st.text(st.sampled_from("ab: -[]{}&*!|>'\"%@`\n\t#,?0.<=~\0\x85\ufeff\ud7ff1e_x/"), max_size=60)
    | st.text(max_size=30)
)
def test_any_text_is_data_or_a_fault(text: str) -> None:
    try:
        parse_yaml(text, keeps_text=lambda _: True)
    except YamlError as error:
        assert str(error).startswith("line ")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_text_is_written_so_that_it_reads_back(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert str(parse_yaml(f"x: {format_flow(text)}\n", keeps_text=lambda _: True).data["x"]) == text
