"""YAML that grows by itself, or has more than any recipe needs, is refused before it takes time or memory."""

import time
import tracemalloc

import pytest

from sparkd.base.recipes.yaml import YamlError, parse_as_pyyaml, parse_yaml


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"a{number}: 1\n" for number in range(80_000)),
        f"{{{'a: 1, ' * 80_000}}}",
        "a:\n" + "- 1\n" * 160_000,
        "a:\n" + "- 1\r" * 160_000,
        "a:\n" + f"- {'[' * 40}{']' * 40}\n" * 4_000,
        "a:\n" + f"{'- ' * 40}1\n" * 4_000,
    ],
    ids=["lines", "braces", "items", "carriage-returns", "brackets", "dashes"],
)
def test_a_file_that_no_recipe_needs_is_refused(text: str) -> None:
    refusal = "has more than 150,000 keys and values"
    with pytest.raises(YamlError, match=refusal):
        parse_yaml(text, lambda _: False)
    with pytest.raises(YamlError, match=refusal):
        parse_as_pyyaml(text)


@pytest.mark.parametrize("start", ["", "\r", "\u2028", "\ufeff"])
def test_a_directive_that_lengthens_each_tag_is_refused(start: str) -> None:
    with pytest.raises(YamlError, match="%TAG is not known"):
        parse_yaml(f"{start}%TAG !a! {'x' * 10_000}\n---\na: [{'!a!b 1, ' * 1_000}]\n", lambda _: False)


def test_many_merges_are_read_in_linear_time_with_the_lines_of_their_keys() -> None:
    services = "".join(f"  k{number}:\n    <<: *a\n    z: 1\n" for number in range(4_000))
    before = time.process_time()
    document = parse_as_pyyaml(f"a: &a\n  x: 1\ns:\n{services}", aliases=True)
    assert time.process_time() - before < 1.5
    assert (document.line(("s", "k9", "x")), document.line(("s", "k0", "z"))) == (2, 6)
    text = "a:\n  <<: {x: 1, y: 1}\n  <<: [{x: 2, z: 2}, {z: 3, y: 3, q: 3}]\n  y: 4\n"
    assert parse_as_pyyaml(text, aliases=True).data == {"a": {"x": 1, "y": 4, "z": 2, "q": 3}}
    text = "<<: {b: {d: 1}}\nb:\n  <<: [{}, {d: 2}]\n"
    document = parse_as_pyyaml(text, aliases=True)
    assert (document.data, document.line(("b", "d")), document.line(("x",))) == ({"b": {"d": 2}}, 3, 1)


def test_aliases_of_a_long_text_are_bounded() -> None:
    with pytest.raises(YamlError, match="its aliases make more than 20000 values"):
        parse_as_pyyaml(f"a: &a {'x' * 500_000}\nb: [{'*a, ' * 100}]\n", aliases=True)


def test_lists_of_aliases_behind_merges_are_bounded() -> None:
    text = f"a: &a [{'{}, ' * 10_000}]\nb:\n" + "  <<: *a\n" * 30_000
    tracemalloc.start()
    try:
        with pytest.raises(YamlError, match="its aliases make more than 20000 values"):
            parse_as_pyyaml(text, aliases=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 256 << 20, "a list of all of them would take gigabytes"
