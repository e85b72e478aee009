"""The measurement of a tried plan: faults of smoke that last, and a bench that can be compared."""

import pytest
from tests.unit.measure.benchmarks import RATE, benchmark, level

from sparkd.base.lib.errors import BlockedError, EngineEndedError, NotReadyError
from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.trial import StillCompilingError, check_bench, smoke_twice


def test_an_engine_that_ends_in_the_first_smoke_test_is_one_that_ended() -> None:
    tries = iter([["the answer ended early"]])

    def smoke() -> list[str]:
        for faults in tries:
            return faults
        raise BlockedError("the engine has just ended", "x")

    with pytest.raises(EngineEndedError, match="the answer ended early; the engine has just ended"):
        smoke_twice(smoke)
    with pytest.raises(BlockedError, match=r"^the engine has just ended \(x\)$"):
        smoke_twice(smoke)


@pytest.mark.parametrize(("tries", "faults"), [([[]], []), ([["x"], []], []), ([["x"], ["y"]], ["y"])])
def test_faults_of_a_smoke_test_count_where_a_second_one_has_some_too(
    tries: list[list[str]], faults: list[str]
) -> None:
    assert smoke_twice(iter(tries).__next__) == faults


def test_a_bench_has_its_rate() -> None:
    assert check_bench(benchmark(level())) == RATE


def test_a_bench_that_compiled_kernels_to_the_end_is_compared_with_none() -> None:
    """Neither as the figure before, which would let a slower image stay, nor as the new one, which would go back."""
    with pytest.raises(StillCompilingError, match=r"^bench: 3 kernel\(s\) were compiled meanwhile") as raised:
        check_bench(benchmark(level(compiled=3)))
    assert raised.value.hint == "sudo sparkd warm; then the same command again"


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (benchmark(), "bench: no answer"),
        (benchmark(level(), fault="HTTP 500"), "bench: HTTP 500"),
        (benchmark(level(fault="HTTP 500", compiled=3)), "bench: HTTP 500"),
        (benchmark(level(output_tokens_per_second=None)), "bench: no figure"),
    ],
)
def test_a_bench_without_a_figure_is_a_fault(result: Benchmark, reason: str) -> None:
    with pytest.raises(NotReadyError) as raised:
        check_bench(result)
    assert raised.value.reason == reason


def test_an_interrupted_bench_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        check_bench(benchmark(level(compiled=3), interrupted=True))
