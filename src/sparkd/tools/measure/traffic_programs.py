"""The programs that carry a test's traffic for some seconds: iperf3 for TCP, perftest's ib_write_bw for RDMA.

Neither program checks the cluster's key. So each is started by a signed request alone, serves its first client only
(iperf3 on one fabric address), and listens for LISTEN_SECONDS at most: `timeout` kills it then, and the kernel kills it
as soon as its parent is gone.

What a stranger on the fabric can do with iperf3 in these seconds: connect before the other node does, which makes the
measurement fail; fill the cable, in both directions, with up to 128 streams and their memory; read the node's name and
the versions of iperf3 and of the kernel. It reads and writes no file, since a client can't name one. A fault in its
parser (it had some: CVE-2023-38403) gains the rights of the user `nobody`: the program runs as that user, without
privileges and without this process's environment. A stranger that answers in place of the other node can report any
figure, so iperf3's JSON is not trusted.

ib_write_bw has to lock memory, and runs as root. Its first client takes part in its exchange of keys and addresses, and
can write into the buffer that it registers.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sparkd.base.lib import prepared
from sparkd.base.lib.text import sanitize

IPERF3, IB_WRITE_BW = "iperf3", "ib_write_bw"
TCP_PORT, RDMA_PORT = 29513, 18515
"""iperf3's default port, 5201, may belong to a server that runs all the time. 18515 is perftest's default."""
STREAMS, SECONDS = 8, 3
"""iperf3 with 8 reached what an interface of a ConnectX-7 carries (110 Gb/s, MTU 9000: NVIDIA's forum, 367853)."""
RDMA_SECONDS, MARGIN_SECONDS, QUEUE_PAIRS = 4, 1, 8
"""Eight queue pairs found the known fault (NVIDIA/dgx-spark-playbooks, pull request 108)."""
START_SECONDS, TRIES, PAUSE_SECONDS = 10.0, 5, 0.5
"""Time for both sides to start, tries, and the pause before each: the listening side is slower than the other."""
LISTEN_SECONDS = {IPERF3: 20.0, IB_WRITE_BW: TRIES * START_SECONDS}
_NOBODY = ("--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
_RDMA_RESULT = re.compile(
    rb"^[ \t]*\d+[ \t]+\d+[ \t]+\d{1,9}\.\d+[ \t]+(\d{1,9}\.\d+)[ \t]+\d{1,9}\.\d+[ \t]*$", re.MULTILINE
)
"""Bytes, iterations, peak (0 in a test of some seconds), average, messages."""


class TrafficError(Exception):
    """There is no figure; the message gives the reason."""


class _Sum(Struct):
    """Part of iperf3's JSON, as the two that follow."""

    bits_per_second: Annotated[float, Meta(ge=0, le=1e13)]


class _End(Struct):
    sum_received: _Sum | None = None
    """Counted where it arrives, without data that are still in buffers."""


class _Report(Struct):
    end: _End
    error: str = ""


def tcp_command(own_address: str, to: str = "", *, reverse: bool = False) -> list[str]:
    """The command of the side that connects, or without `to` of the side that listens.

    `reverse`: the listening side sends.
    """
    words = [IPERF3, "-B", own_address, "-p", str(TCP_PORT), "-i", "0"]
    idle_limit = ["--rcv-timeout", str(SECONDS * 1000)]
    if not to:
        return [*words, "--server", "--one-off", *idle_limit]
    words += ["--client", to, "-t", str(SECONDS), "-P", str(STREAMS), "--connect-timeout", str(SECONDS * 1000)]
    return [*words, "--json", *(["--reverse", *idle_limit] if reverse else [])]


def rdma_command(device: str, to: str = "") -> list[str]:
    """The command for RDMA; without `to` that of the side that listens. rdma_cm finds the GID of the address."""
    duration = ["-D", str(RDMA_SECONDS), "-f", str(MARGIN_SECONDS)]
    words = [IB_WRITE_BW, "-R", "-F", "-d", device, "-p", str(RDMA_PORT), "-q", str(QUEUE_PAIRS), *duration]
    return [*words, "--report_gbits", *([to] if to else [])]


def parse_tcp(printed: bytes) -> float:
    """Gb/s that arrived. Raises TrafficError."""
    try:
        report = msgspec.json.decode(printed[printed.find(b"{") : printed.rfind(b"}") + 1], type=prepared(_Report))
    except (ValueError, RecursionError):
        raise TrafficError(_describe_output(IPERF3, printed)) from None
    if report.error or report.end.sum_received is None:
        raise TrafficError(f"{IPERF3}: {sanitize(report.error) or 'it ended early'}")
    return report.end.sum_received.bits_per_second / 1e9


def parse_rdma(printed: bytes) -> float:
    """Gb/s on average. Raises TrafficError."""
    averages = _RDMA_RESULT.findall(printed)
    if len(averages) != 1:
        raise TrafficError(_describe_output(IB_WRITE_BW, printed))
    return float(averages[0])


def _describe_output(program: str, printed: bytes) -> str:
    last_line = printed[-500:].decode(errors="replace").strip("- \n").rpartition("\n")[2]
    return f"{program} printed no figure, but ends in: {sanitize(last_line)}"


def measure_tcp(own: str, to: str, *, reverse: bool = False, pause_seconds: float = PAUSE_SECONDS) -> float:
    """Gb/s to the other address, or with `reverse` from there. Raises TrafficError, OSError."""
    return measure(tcp_command(own, to, reverse=reverse), SECONDS + START_SECONDS, parse_tcp, pause_seconds)


def measure_rdma(device: str, to: str, pause_seconds: float = PAUSE_SECONDS) -> float:
    """Gb/s that this node writes to the other. Raises TrafficError, OSError."""
    return measure(rdma_command(device, to), RDMA_SECONDS + START_SECONDS, parse_rdma, pause_seconds)


def measure(words: list[str], limit_seconds: float, parse: Callable[[bytes], float], pause_seconds: float) -> float:
    """Gb/s that the program prints within the limit, in the first of TRIES that succeeds.

    Raises TrafficError; OSError where the program can't be started.
    """
    failure = TrafficError()
    for _ in range(TRIES):
        time.sleep(pause_seconds)
        began = time.monotonic()  # before the program's own limit begins, so that this one is never the shorter
        process = _start(words, limit_seconds, subprocess.PIPE)
        assert process.stdout is not None
        try:
            return parse(process.stdout.read(1 << 16))  # iperf3 prints 10 KB
        except TrafficError as error:
            is_late = time.monotonic() - began >= limit_seconds  # its last line says nothing of the reason then
            failure = TrafficError(f"{words[0]}: no figure within {limit_seconds:g} s") if is_late else error
        finally:
            end(process)
    raise failure


def listen(words: list[str], seconds: float | None = None) -> subprocess.Popen[bytes]:
    """Start a program that listens, by default for its LISTEN_SECONDS; `end` has to end it. Raises OSError."""
    return _start(words, LISTEN_SECONDS[words[0]] if seconds is None else seconds, subprocess.DEVNULL)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the program, and wait for it."""
    with process:  # waits for it, and closes its output
        if process.returncode is None:  # the whole group: a child that has just begun does not end with its parent yet
            os.killpg(process.pid, signal.SIGKILL)


def _start(words: list[str], seconds: float, output: int) -> subprocess.Popen[bytes]:
    """Start a program that is killed after `seconds`, even if this process hangs, and together with this process.

    Raises OSError.
    """
    user = _NOBODY if words[0] == IPERF3 and os.geteuid() == 0 else ()
    with_parent, limit = ("setpriv", "--pdeathsig=KILL"), ("timeout", "--signal=KILL", f"{seconds:g}")
    command, env = (*with_parent, "--", *limit, *with_parent, *user, "--", *words), {"PATH": os.environ["PATH"]}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env, process_group=0
    )
