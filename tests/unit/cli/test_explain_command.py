"""`sparkd explain`: lines of engines and of the kernel, as words or on stdin."""

import io
import os
import tempfile
from pathlib import Path
from typing import IO

import pytest
from tests.unit.commands import Done, sparkd, stdin_of

from sparkd.base.vllm.log_lines import LINE_LIMIT_BYTES

LOGS = Path(__file__).parents[1] / "engine" / "engine-logs"


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("E5-worker", "--headless"),
        ("E6-head", "rendezvous"),
        ("E7-badjson", "no JSON"),
        ("E8-missing", "model"),
        ("E9-apiport", "port"),
        ("E9-kvsmall", "max-model-len"),
        ("E9-maxlen", "max-model-len"),
        ("tp1", "no error that sparkd knows"),
        ("tp2-worker", "no error that sparkd knows"),
    ],
)
def test_whole_logs_are_explained_on_stdin(log: str, text: str) -> None:
    with (LOGS / f"{log}.log").open() as file, stdin_of(file):
        done = sparkd("explain", "-")
    assert text in done.stdout
    assert done.returncode == 0


def explain_stdin(stdin: IO[str] | None) -> Done:
    with stdin_of(stdin):
        return sparkd("explain")


def test_a_closed_stdin_is_named() -> None:
    done = explain_stdin(None)
    assert done.returncode == 2
    assert done.stderr.startswith("sparkd: nothing came on stdin\n")


def test_an_empty_stdin_is_as_a_closed_one() -> None:
    with Path(os.devnull).open() as empty:
        assert explain_stdin(empty) == explain_stdin(None)


def test_a_line_is_explained_with_meaning_remedy_and_source() -> None:
    done = sparkd("explain", "OSError: [Errno 98] Address already in use\x1b[2J")
    first, means, do, known = done.stdout.splitlines()
    assert first == "OSError: [Errno 98] Address already in use\\x1b[2J"
    assert means == "  means: another process listens on the port"
    assert do.startswith("  do:    ")
    assert known.startswith("  known: seen with ")


def test_an_unknown_line_is_not_called_good() -> None:
    assert sparkd("explain", "all is well").stdout == "no error that sparkd knows; it may still be one\n"


def test_what_is_on_stdin_is_bounded_and_counted() -> None:
    text = b"ModuleNotFoundError: No module named 'deep_gemm'\n" * 3 + b"\xff\x00" * LINE_LIMIT_BYTES
    with tempfile.TemporaryFile() as file, io.TextIOWrapper(file) as stdin:
        file.write(text)
        file.seek(0)
        assert "'deep_gemm' (3 lines)" in explain_stdin(stdin).stdout


KERNEL = "Nov 22 10:00:00 spark1 kernel: "
XID = "NVRM: Xid (PCI:000F:01:00)"


@pytest.mark.parametrize(
    ("line", "means", "todo"),
    [
        (f"{KERNEL}{XID}: 119, pid=77, name=VLLM, Timeout after 6s of waiting for RPC", "firmware", "reboot: "),
        (f"[   84.738] {XID}: 79, GPU has fallen off the bus.", "fallen off the bus", "power-cycle: "),
        (f"[Fri Nov 20 10:00:00 2026] {XID}: 79, GPU has fallen off the bus.", "Xid 79", "power-cycle: "),
        (f"[Sun Nov  1 10:00:00 2026] {XID}: 43, pid=77", "ended a program", "restart: "),
        (f"{KERNEL}{XID}: 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)", "a reset", "reboot: "),
        (f"{XID}: 7777, of a later driver", "Xid 7777", "inspect: "),
        ("NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)", "", "none: "),
        (f"{KERNEL}Out of memory: Killed process 4848 (VLLM::EngineCor) total-vm:1kB", "killed", "restart: "),
    ],
)
def test_lines_of_the_kernel_are_explained_by_its_own_table_with_the_action(line: str, means: str, todo: str) -> None:
    _, meaning, do, _ = sparkd("explain", line).stdout.splitlines()
    assert means in meaning.removeprefix("  means: ")
    assert do.removeprefix("  do:    ").startswith(todo)


@pytest.mark.parametrize("line", [f"{KERNEL}{XID}: 119, pid=77", f"{KERNEL}Out of memory: Killed process 4848 (x)"])
def test_a_line_of_the_engine_is_none_of_the_kernels(line: str) -> None:
    engine = f"(EngineCore pid=9) ERROR 11-21 01:00:00 [core.py:1] {line}"
    assert "sparkd's table" not in sparkd("explain", engine).stdout
