"""`image.assert`: what a recipe may demand of its image."""

from pathlib import Path

import pytest
from tests.unit.recipe_files import MINIMAL_RECIPE, load_text

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.image import Lines

ASSERTS = MINIMAL_RECIPE.replace("image: {ref: i}\n", "image:\n  ref: i\n  assert:\n")


def test_an_image_is_checked_by_a_command_or_a_count_of_lines(tmp_path: Path) -> None:
    asserts = load_text(tmp_path, f"{ASSERTS}  - test -e /x\n  - {{file: /a, pattern: 'x y'}}\n").image.asserts
    assert asserts == ("test -e /x", Lines(file="/a", pattern="x y", times=1))


@pytest.mark.parametrize(
    ("entry", "needle"),
    [
        ("7", "image.assert.[0] = 7: must be"),
        ("{file: a, pattern: x}", 'image.assert.[0].file = "a": it must be an absolute path'),
        ("{file: /a}", "image.assert.[0].pattern is missing"),
        ("{file: /a, pattern: x, times: -1}", "image.assert.[0].times = -1: must be"),
        ("{file: /a, pattern: x, time: 1}", "image.assert.[0].time: there is no such key"),
        ('{file: /a, pattern: ""}', "must be a pattern of grep's"),
    ],
)
def test_an_assertion_that_is_none_is_named(tmp_path: Path, entry: str, needle: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, f"{ASSERTS}  - {entry}\n")
    assert needle in caught.value.reason
    assert len(caught.value.reason.splitlines()) == 1
