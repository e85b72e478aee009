"""Scenarios that mostly wait run side by side, while each stays a test of its own."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Generic, TypeVar

import pytest

T = TypeVar("T")


class Outcomes(Generic[T]):
    """Results of scenarios, each by the node id of its test."""

    def __init__(self, scenario: Callable[..., T], futures: Mapping[str, Future[T]]) -> None:
        self._scenario = scenario
        self._futures = futures

    def of(self, request: pytest.FixtureRequest) -> T:
        """Raises what the scenario has raised."""
        return self._futures[request.node.nodeid].result()

    def alone(self, request: pytest.FixtureRequest) -> T:
        """Once more, after all others: for a time that the load beside it may have spoiled."""
        wait(self._futures.values())
        return self._scenario(**request.node.callspec.params)


@contextmanager
def outcomes(request: pytest.FixtureRequest, scenario: Callable[..., T], at_once: int) -> Iterator[Outcomes[T]]:
    """Run `scenario` with the parameters of each selected test that uses the requesting fixture, so many `at_once`."""
    tests = [
        test
        for test in request.session.items
        if isinstance(test, pytest.Function)
        and test.module is request.module
        and request.fixturename in test.fixturenames
    ]
    with ThreadPoolExecutor(at_once) as pool:
        yield Outcomes(scenario, {test.nodeid: pool.submit(scenario, **test.callspec.params) for test in tests})
