"""A small share of `make fuzz`: hostile inputs, with those that once raised, for every parser of text from outside."""

import time

import pytest
from tests import fuzz
from tests.fuzz_parsers import Parser, parsers

INPUTS = 120


@pytest.fixture(scope="module")
def parsers_by_name(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parser]:
    return parsers(tmp_path_factory.mktemp("fuzz"))


def test_each_parser_takes_a_good_input(parsers_by_name: dict[str, Parser]) -> None:
    for name, parser in parsers_by_name.items():
        assert parser.seeds, name
        parser.run(parser.seeds[0])


def test_no_input_raises_what_callers_do_not_handle(parsers_by_name: dict[str, Parser]) -> None:
    findings = [
        finding
        for name, parser in parsers_by_name.items()
        for finding in fuzz.fuzz(name, parser, round(INPUTS * parser.share), 1)
    ]
    assert [(finding.parser, finding.problem, finding.data[:200]) for finding in findings] == []


def test_what_a_parser_raises_is_found() -> None:
    def fail(data: bytes) -> None:
        if b"[[[" in data:
            raise RecursionError

    (finding,) = fuzz.fuzz("x", Parser(fail, (b"a",)), 200, 1)
    assert finding.problem.startswith("RecursionError")
    assert b"[[[" in finding.data


def test_a_parser_that_takes_too_long_is_found() -> None:
    def spin(data: bytes) -> None:
        end = time.thread_time() + 0.06
        while b"[[[" in data and time.thread_time() < end:
            pass

    (finding,) = fuzz.fuzz("x", Parser(spin, (b"a",)), 200, 1, limit_seconds=0.05)
    assert finding.problem.startswith("took ")
    assert b"[[[" in finding.data
