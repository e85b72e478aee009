"""The programs of a traffic test: what they print, and that they end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.traffic_programs import IPERF3_PRINTED, Programs

from sparkd.tools.measure import traffic_programs
from sparkd.tools.measure.traffic_programs import (
    IB_WRITE_BW,
    IPERF3,
    TrafficError,
    end,
    listen,
    measure,
    measure_rdma,
    measure_tcp,
    parse_rdma,
    parse_tcp,
    rdma_command,
    tcp_command,
)

RDMA_PRINTED = b"""\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      556123           0.00               97.28  \t\t   0.185547
---------------------------------------------------------------------------------------
"""
HERE = "127.0.0.1"


def test_the_figure_of_iperf3_is_what_arrived() -> None:
    assert parse_tcp(IPERF3_PRINTED) == pytest.approx(19.301117596153656)


@pytest.mark.parametrize("gbps", ["NaN", "Infinity", "-1", "1e30", '"1"', "null", "{}"])
def test_a_value_of_iperf3_that_is_no_plausible_number_is_no_figure(gbps: str) -> None:
    with pytest.raises(TrafficError, match="no figure"):
        parse_tcp(b'{"end": {"sum_received": {"bits_per_second": %s}}}' % gbps.encode())


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b"iperf3: command not found", b"[" * 60_000, b'{"end":' * 9000])
def test_other_text_of_iperf3_is_no_figure(text: bytes) -> None:
    with pytest.raises(TrafficError, match="no figure"):
        parse_tcp(text)


def test_an_error_of_iperf3_is_quoted_in_one_short_line() -> None:
    with pytest.raises(TrafficError, match="iperf3: the server is busy"):
        parse_tcp(json.dumps({"end": {}, "error": "the server is busy running a test. try again later"}).encode())
    with pytest.raises(TrafficError) as raised:
        parse_tcp(json.dumps({"end": {}, "error": "\x1b[31m\n" * 10_000}).encode())
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 300
    with pytest.raises(TrafficError, match="ended early"):
        parse_tcp(b'{"end": {}}')


def test_a_warning_beside_the_figures_is_passed_over() -> None:
    assert parse_tcp(b"warning: slow\n" + IPERF3_PRINTED + b"warning: slow\n") == parse_tcp(IPERF3_PRINTED)


def test_the_average_of_rdma_is_read() -> None:
    assert parse_rdma(RDMA_PRINTED) == 97.28


@pytest.mark.parametrize(
    "text", [b"", b"97.28", RDMA_PRINTED * 2, RDMA_PRINTED.replace(b"97.28", b"nan"), b"1 " * 100_000]
)
def test_other_text_of_ib_write_bw_is_no_figure(text: bytes) -> None:
    with pytest.raises(TrafficError, match="no figure"):
        parse_rdma(text)


def test_the_side_that_connects_names_the_other() -> None:
    assert rdma_command("rocep1s0f0", "10.0.0.2") == [*rdma_command("rocep1s0f0"), "10.0.0.2"]
    there, back = tcp_command("10.0.0.1", "10.0.0.2"), tcp_command("10.0.0.1", "10.0.0.2", reverse=True)
    assert set(back) - set(there) == {"--reverse", "--rcv-timeout"}
    assert "--one-off" in tcp_command("10.0.0.2")
    assert "--one-off" not in there


@pytest.mark.parametrize(("name", "command"), [(IPERF3, tcp_command(HERE)), (IB_WRITE_BW, rdma_command("rocep1s0f0"))])
def test_a_listening_program_is_ended_with_its_guard(programs: Programs, name: str, command: list[str]) -> None:
    process = listen(command)
    pid = programs.pid(name)
    assert pid != process.pid, "its guard, which ends it where this process can't"
    end(process)
    assert not programs.lives(pid)
    end(process)  # a second time ends nobody else


def test_a_listening_program_that_has_only_begun_is_ended_too(programs: Programs) -> None:
    slow = f'echo $$ >>{programs.folder}/begun; sleep 0.3; exec /usr/bin/setpriv "$@"'
    programs.write("setpriv", slow)
    process = listen(tcp_command(HERE))
    begun, deadline = programs.folder / "begun", time.monotonic() + 10
    while not (begun.exists() and len(begun.read_text().split()) == 2):
        assert time.monotonic() < deadline, "the guard and the program begin"
        time.sleep(0.01)
    end(process)
    _, pid = begun.read_text().split()
    assert not programs.lives(int(pid), 1)


def test_iperf3_runs_as_nobody_and_knows_no_variable_of_this_process(programs: Programs) -> None:
    process = listen(tcp_command(HERE))
    pid = programs.pid(IPERF3)
    status = Path(f"/proc/{pid}/status").read_text()
    names = {entry.partition(b"=")[0] for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if entry}
    end(process)
    assert names <= {b"PATH", b"PWD"}
    if os.geteuid() == 0:
        assert "Uid:\t65534\t65534\t65534\t65534" in status
        assert "Groups:\t \n" in status
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status


def test_a_listening_program_ends_at_its_deadline(programs: Programs) -> None:
    process = listen(tcp_command(HERE), 0.5)
    pid = programs.pid(IPERF3)
    process.wait(10)
    assert not programs.lives(pid)


def test_a_listening_program_ends_with_its_parent(programs: Programs) -> None:
    code = """
import os, signal, sys, time
from sparkd.tools.measure.traffic_programs import listen, tcp_command
listen(tcp_command("127.0.0.1"))
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", code, str(programs.folder / f"{IPERF3}.pid")]
    source = Path(traffic_programs.__file__).parents[3]
    parent = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, timeout=60, check=False)
    assert parent.returncode == -signal.SIGKILL
    assert not programs.lives(programs.pid(IPERF3))


def test_output_without_end_is_not_kept(programs: Programs) -> None:
    programs.write(IPERF3, f"exec yes {'x' * 1000}")
    with pytest.raises(TrafficError, match="no figure, but ends in: xxx"):
        measure_tcp(HERE, HERE, pause_seconds=0.01)


def test_a_program_that_its_limit_ends_is_not_quoted(programs: Programs) -> None:
    """perftest warns before it measures."""
    programs.write(IB_WRITE_BW, 'echo "BW peak won\'t be measured in this run."; exec sleep 60')
    with pytest.raises(TrafficError, match=r"^ib_write_bw: no figure within 0\.2 s$"):
        measure(rdma_command("rocep1s0f0", HERE), 0.2, parse_rdma, 0.01)


@pytest.mark.parametrize(
    ("program", "run"),
    [
        (IPERF3, lambda: measure_tcp(HERE, HERE, pause_seconds=0.01)),
        (IB_WRITE_BW, lambda: measure_rdma("rocep1s0f0", "10.0.0.2", 0.01)),
    ],
    ids=[IPERF3, IB_WRITE_BW],
)
def test_a_program_that_fails_is_tried_again_and_its_last_line_is_quoted(
    programs: Programs, program: str, run: Callable[[], float]
) -> None:
    programs.write(program, f"echo x >>{programs.folder}/tries; echo 'Unable to connect' >&2; exit 1")
    with pytest.raises(TrafficError, match=f"{program} printed no figure, but ends in: Unable to connect"):
        run()
    assert len((programs.folder / "tries").read_text().splitlines()) == traffic_programs.TRIES
