from __future__ import annotations

import threading
import time

from sparkd.host import nvml
from sparkd.host.gpu import NO_GPU, GpuFacts, Trouble


def recovers() -> None:
    """Wait for an asker that a test has let go, as the next one would."""
    while nvml.within(5, lambda: NO_GPU).trouble is Trouble.HUNG:
        time.sleep(0.01)


def test_a_driver_that_answers_is_believed() -> None:
    assert nvml.within(5, lambda: GpuFacts(("NVIDIA GB10",), None, ())) == GpuFacts(("NVIDIA GB10",), None, ())


def test_a_hung_driver_is_left_behind_at_the_deadline() -> None:
    hangs = threading.Event()

    def ask() -> GpuFacts:
        hangs.wait(60)
        return NO_GPU

    began = time.monotonic()
    facts = nvml.within(0.1, ask)
    took = time.monotonic() - began
    hangs.set()
    recovers()
    assert took < 5
    assert facts == GpuFacts((), None, None, "it did not answer in 0.1 s", trouble=Trouble.HUNG)


def test_nobody_is_sent_after_an_asker_that_a_hung_driver_keeps() -> None:
    hangs, asked = threading.Event(), []

    def ask() -> GpuFacts:
        asked.append(1)
        hangs.wait(60)
        return NO_GPU

    nvml.within(0.1, ask)
    began = time.monotonic()
    assert nvml.within(30, ask).trouble is Trouble.HUNG
    assert time.monotonic() - began < 5
    hangs.set()
    recovers()
    assert len(asked) == 1
    assert nvml.within(5, ask) == NO_GPU
    assert len(asked) == 2, "the driver answers again, and is asked again"


def test_a_machine_without_the_drivers_library_has_no_gpu() -> None:
    assert nvml.ask("libno-such-library.so.1") == NO_GPU


def test_a_library_that_is_not_the_drivers_is_an_error_not_a_crash() -> None:
    assert "no such function (nvmlInit_v2 answered 13)" in nvml.ask("libc.so.6").error
