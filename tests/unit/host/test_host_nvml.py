# ruff: noqa: N802 - the names of NVML's own functions
import ctypes
import subprocess
import sys
import threading
import time
from pathlib import Path

import pynvml
import pytest
from tests.unit.clock import unstalled

from sparkd.base.host import gpu, nvml
from sparkd.base.host.gpu import NO_GPU, GpuClocks, GpuFacts, GpuProcess, Trouble

NOT_SUPPORTED, INSUFFICIENT_SIZE = 3, 7


def test_a_hung_driver_is_abandoned_at_the_deadline_and_no_second_thread_hangs_in_it() -> None:
    hangs, queries = threading.Event(), []

    def query() -> str:
        queries.append(1)
        hangs.wait(60)
        return "answer"

    began = unstalled()
    assert gpu.answer_within(0.1, query) is None
    assert gpu.answer_within(30, query) is None
    assert unstalled() - began < 5
    assert gpu.read_driver() == gpu.HUNG == GpuFacts((), error="it did not answer in 10 s", trouble=Trouble.HUNG)
    assert gpu.read_clocks() == ()
    hangs.set()
    while gpu.answer_within(5, lambda: "another") is None:  # as long as the thread takes to end
        time.sleep(0.01)
    assert len(queries) == 1
    assert gpu.answer_within(5, query) == "answer", "the driver answers again, and is queried again"


class Library:
    """The driver's library at its ABI: what is no attribute here, it does not have. `answers`: nvmlReturn_t by name."""

    names: tuple[bytes, ...] = (b"NVIDIA GB10",)
    compute: tuple[tuple[int, int], ...] = ()
    graphics: tuple[tuple[int, int], ...] = ()

    def __init__(self, **answers: int) -> None:
        self.answers = answers

    def nvmlInitWithFlags(self, flags: int) -> int:
        return self.answers.get("init", 0)

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: object) -> int:
        return put(count, len(self.names))

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, device: object) -> int:
        self.name = self.names[index.value]
        return 0

    def nvmlDeviceGetName(self, device: object, buffer: ctypes.Array[ctypes.c_char], size: object) -> int:
        buffer.value = self.name
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: ctypes.Array[ctypes.c_char], size: object) -> int:
        buffer.value = b"580.95\x1b[2J"  # a control sequence, which is escaped
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: object, memory: object) -> int:
        if code := self.answers.get("memory", 0):
            return code
        referred(memory).total = 80 << 30
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: object, count: object, infos: object) -> int:
        return self.processes(self.compute, count, infos)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, device: object, count: object, infos: object) -> int:
        return self.answers.get("graphics") or self.processes(self.graphics, count, infos)

    def processes(self, listed: tuple[tuple[int, int], ...], count: object, infos: object) -> int:
        room = referred(count).value
        put(count, len(listed))
        if len(listed) > room:
            return INSUFFICIENT_SIZE
        for info, (pid, used) in zip(infos or (), listed, strict=False):  # type: ignore[call-overload]  # c_process[]
            info.pid, info.usedGpuMemory = pid, used
        return 0


def referred(pointer: object) -> ctypes.Structure:
    return pointer._obj  # type: ignore[attr-defined,no-any-return]  # of byref(): what it points to


def put(pointer: object, value: int) -> int:
    referred(pointer).value = value
    return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Where a test loads a library into pynvml."""
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return monkeypatch


def load(driver: pytest.MonkeyPatch, library: object) -> None:
    driver.setattr(pynvml, "nvmlLib", library)


def test_a_gb10_has_no_memory_of_its_own(driver: pytest.MonkeyPatch) -> None:
    load(driver, Library(memory=NOT_SUPPORTED, graphics=NOT_SUPPORTED))
    assert nvml.query() == GpuFacts(("NVIDIA GB10",), None, (), driver="580.95\\x1b[2J")


def test_use_is_added_up_over_gpus_and_a_rank_has_one_gpu_s_memory(driver: pytest.MonkeyPatch) -> None:
    library = Library()
    library.names = (b"NVIDIA H100", b"NVIDIA H100")
    library.compute, library.graphics = ((7, 5), (8, 2**64 - 1)), ((9, 1),)
    load(driver, library)
    facts = nvml.query()
    assert facts.names == ("NVIDIA H100", "NVIDIA H100")
    assert facts.total_bytes == 80 << 30
    assert facts.processes == (GpuProcess(7, 10), GpuProcess(8, None), GpuProcess(9, 2))


def test_a_process_that_computes_and_draws_is_in_both_lists_and_counts_once(driver: pytest.MonkeyPatch) -> None:
    library = Library()
    library.compute = ((7, 5), (8, 4), (9, 2**64 - 1))
    library.graphics = ((7, 5), (8, 6), (9, 3))
    load(driver, library)
    assert nvml.query().processes == (GpuProcess(7, 5), GpuProcess(8, 6), GpuProcess(9, None))


def test_a_list_of_processes_that_outgrows_its_buffer_is_read_again(driver: pytest.MonkeyPatch) -> None:
    class Growing(Library):
        def nvmlDeviceGetComputeRunningProcesses_v3(self, device: object, count: object, infos: object) -> int:
            if len(self.compute) < 40:
                self.compute += tuple((100 + len(self.compute) + i, 1) for i in range(20))
            return super().nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos)

    growing = Growing()
    growing.compute = ((7, 1),)
    load(driver, growing)
    assert len(nvml.query().processes or ()) == 41


@pytest.mark.parametrize(
    ("code", "trouble", "words"),
    [
        (4, Trouble.FORBIDDEN, "no permission"),
        (9, Trouble.NOT_LOADED, "the driver is not loaded"),
        (15, Trouble.LOST, "the GPU has fallen off the bus"),
        (16, Trouble.RESET, "the GPU must be reset"),
        (18, Trouble.MISMATCH, "library and driver differ in version, as after an upgrade without a reboot"),
        (999, Trouble.OTHER, "it failed"),
    ],
)
def test_a_failing_driver_is_an_error_not_a_crash(
    driver: pytest.MonkeyPatch, code: int, trouble: Trouble, words: str
) -> None:
    load(driver, Library(init=code))
    assert nvml.query() == GpuFacts((), error=f"{words} (NVML error {code})", trouble=trouble)
    assert nvml.query_clocks() == ()


class Unnamed(Library):
    names = (b"\xff",)


@pytest.mark.parametrize(
    ("library", "error"),
    [(Unnamed(), "its names are not text"), (ctypes.CDLL("libc.so.6"), "no such function (NVML error 13)")],
)
def test_a_library_that_is_not_the_drivers_is_an_error_not_a_crash(
    driver: pytest.MonkeyPatch, library: object, error: str
) -> None:
    load(driver, library)
    facts = nvml.query()
    assert facts.trouble is Trouble.OTHER
    assert error in facts.error
    assert nvml.query_clocks() == ()


class Busy(Library):
    def nvmlDeviceGetPowerUsage(self, device: object, milliwatts: object) -> int:
        return put(milliwatts, 22_400)

    def nvmlDeviceGetUtilizationRates(self, device: object, rates: object) -> int:
        referred(rates).gpu = 96
        return 0

    def nvmlDeviceGetClockInfo(self, device: object, kind: object, mhz: object) -> int:
        return put(mhz, 611)

    def nvmlDeviceGetTemperature(self, device: object, sensor: object, celsius: object) -> int:
        return put(celsius, 71)

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: object, reasons: object) -> int:
        return put(reasons, 0x4 | 0x1 | 0x20)


def test_clocks_are_read_with_the_reasons_that_reduce_them(driver: pytest.MonkeyPatch) -> None:
    load(driver, Busy())
    held = ("its power cap", "heat, by its driver")
    assert nvml.query_clocks() == (GpuClocks("NVIDIA GB10", 611, 22.4, 96, held, 71),)


def test_what_a_driver_does_not_report_of_clocks_is_unknown(driver: pytest.MonkeyPatch) -> None:
    load(driver, Library())
    assert nvml.query_clocks() == (GpuClocks("NVIDIA GB10", None, None, None),)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("import pynvml; pynvml.nvmlInit = None", "TypeError"),
        ("import sys; sys.modules['pynvml'] = None", "ModuleNotFoundError"),
    ],
)
def test_a_query_that_fails_is_no_driver_that_hangs_and_ends_nobody(fault: str, error: str) -> None:
    """It happens half through an upgrade. For a hung driver, a person has to power-cycle the machine."""
    program = f"{fault}; from sparkd.base.host import gpu; print(gpu.read_driver(), gpu.read_clocks())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "sparkd's own query failed" in done.stdout
    assert "Trouble.OTHER" in done.stdout
    assert done.stdout.endswith(" ()\n")
    assert error in done.stderr


def test_without_the_drivers_library_only_a_loaded_module_is_a_trouble(
    driver: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load_nothing(_name: str) -> object:
        raise OSError

    load(driver, None)
    driver.setattr(pynvml, "CDLL", load_nothing)
    assert nvml.query(str(tmp_path / "none")) == NO_GPU
    assert nvml.query(str(tmp_path)).trouble is Trouble.NO_LIBRARY
    assert nvml.query_clocks() == ()
