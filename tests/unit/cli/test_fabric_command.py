"""`sparkd fabric test`: its table, and its JSON."""

import json
import re

import msgspec
from tests.unit.terminal import shown

from sparkd.tools.cli.fabric import as_json, render
from sparkd.tools.measure.fabric import FabricFacts, Pair, PortFacts, Result
from sparkd.tools.measure.traffic import PairFigures

OWN = PortFacts("enP2p1s0f0np0", "10.0.0.1", 200_000, 9000)
OTHER = PortFacts("\x1b[31mred", "10.0.0.2", 200_000, 9000)
PAIRS = (Pair(OWN, OTHER, PairFigures(12.86, 110.1, 48.2, 99.7)), Pair(OWN, OWN, None, "timed out"))
RESULT = Result(FabricFacts("spark1", (OWN,)), FabricFacts("\x1b[31mspark2", (OTHER,)), 180.0, PAIRS)


def test_the_table_fits_into_80_columns_and_has_no_colours_of_the_other_node() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown(render(RESULT), NO_COLOR="1"))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "slow" in text
    assert "12.9" in text


def test_json_is_the_result_with_a_verdict_for_each_pair() -> None:
    printed = json.loads(as_json(RESULT))
    assert printed["schema"] == 1
    assert [verdict["outcome"] for verdict in printed["verdicts"]] == ["slow", "slow"]
    assert msgspec.convert(printed, Result) == RESULT
