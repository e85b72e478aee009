"""`sparkd fabric test`: its table, and its JSON."""

import json
import re

import msgspec
from tests.unit.terminal import shown

from sparkd.base.lib.text import plain
from sparkd.tools.cli.fabric import as_json, render
from sparkd.tools.measure.fabric import FabricFacts, Pair, PortFacts, Result
from sparkd.tools.measure.traffic import PairFigures

OWN = PortFacts("enP2p1s0f0np0", "10.0.0.1", 200_000, 9000)
OTHER = PortFacts("\x1b[31mred", "10.0.0.2", 200_000, 9000)
PAIRS = (Pair(OWN, OTHER, PairFigures(12.86, 110.1, 48.2, 99.7)), Pair(OWN, OWN, None, "timed out"))
RESULT = Result(FabricFacts("spark1", (OWN,)), FabricFacts("\x1b[31mspark2", (OTHER,)), 180.0, PAIRS)


def test_the_table_fits_into_80_columns_and_writes_out_the_colours_of_the_other_node() -> None:
    text = re.sub(r"\x1b\[[01]m", "", shown(render(RESULT), NO_COLOR="1"))  # the headings are bold
    assert "\x1b" not in text
    assert r"spark1 and \x1b[31mspark2" in text
    assert r"\x1b[31mred " in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_slow_pair_is_named_with_its_rate() -> None:
    row = next(line.split() for line in plain(render(RESULT)).splitlines() if "red" in line)
    assert (row[2], row[-1]) == ("12.9", "slow")


def test_json_is_the_result_with_a_verdict_for_each_pair() -> None:
    printed = json.loads(as_json(RESULT))
    assert printed["schema"] == 1
    assert [verdict["outcome"] for verdict in printed["verdicts"]] == ["slow", "slow"]
    assert msgspec.convert(printed, Result) == RESULT
