"""A small share of `make fuzz`: hostile inputs, with those that once raised, for every parser of text from outside."""

from collections.abc import Iterator

import pytest
from tests import fuzz
from tests.fuzz_parsers import Parser, parsers

INPUTS = 120


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Parser]]:
    yield parsers(tmp_path_factory.mktemp("fuzz"))


def test_each_parser_takes_a_good_input(made: dict[str, Parser]) -> None:
    for name, parser in made.items():
        assert parser.seeds, name
        parser.run(parser.seeds[0])


def test_no_input_raises_what_callers_do_not_handle(made: dict[str, Parser]) -> None:
    findings = [
        one for name, parser in made.items() for one in fuzz.fuzz(name, parser, round(INPUTS * parser.share), 1)
    ]
    assert [(one.parser, one.problem, one.data[:200]) for one in findings] == []


def test_what_a_parser_raises_and_how_long_it_takes_is_found() -> None:
    def fails(data: bytes) -> None:
        if b"[[[" in data:
            raise RecursionError

    (found,) = fuzz.fuzz("x", Parser(fails, (b"a",)), 200, 1)
    assert found.problem.startswith("RecursionError")
