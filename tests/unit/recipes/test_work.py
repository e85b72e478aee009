"""Reading a recipe is bounded work, and loads no more libraries than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparkd.base.recipes.yaml import YamlError, parse_as_pyyaml, parse_yaml


@pytest.mark.parametrize(
    "text",
    ["".join(f"a{number}: 1\n" for number in range(60_000)), f"{{{'a: 1, ' * 60_000}}}", "a:\n" + "- 1\n" * 60_000],
    ids=["lines", "braces", "items"],
)
def test_a_file_of_60000_keys_is_refused_before_it_is_parsed(text: str) -> None:
    refusal = "line 1: has more than 8,000 colons, commas and lines"
    with pytest.raises(YamlError, match=refusal):
        parse_yaml(text, lambda _: False)
    with pytest.raises(YamlError, match=refusal):
        parse_as_pyyaml(text)


def test_settings_load_no_asyncio() -> None:
    program = (
        "import sys, sparkd.base.config; left = 'asyncio' in sys.modules; import asyncio; print(left, asyncio.run)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("False <function run")
