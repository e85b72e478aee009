"""RDMA's figure, read from what perftest prints."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sparkd.cluster import rdma_traffic
from sparkd.cluster.rdma_traffic import RdmaError, command, parse

PRINTED = """\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      556123           0.00               97.28  \t\t   0.185547
---------------------------------------------------------------------------------------
"""


def test_the_average_is_read() -> None:
    assert parse(PRINTED) == 97.28


@pytest.mark.parametrize("text", ["", "97.28", PRINTED * 2, PRINTED.replace("97.28", "nan"), "1 " * 100_000])
def test_anything_else_is_no_figure(text: str) -> None:
    with pytest.raises(RdmaError, match="no figure"):
        parse(text)


def test_the_side_that_connects_names_the_other() -> None:
    assert command("rocep1s0f0", "10.0.0.2") == [*command("rocep1s0f0"), "10.0.0.2"]


def test_what_listens_is_ended_with_its_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / rdma_traffic.PROGRAM
    program.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    process = rdma_traffic.listen("rocep1s0f0")
    end = time.monotonic() + 10
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    pid = int((tmp_path / "pid").read_text())
    assert pid != process.pid, "its guard, which ends it where this process can't"
    rdma_traffic.end(process)
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    rdma_traffic.end(process)  # a second time ends nobody else


def test_a_program_that_fails_is_tried_again_and_its_last_line_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = tmp_path / "tries"
    (tmp_path / rdma_traffic.PROGRAM).write_text(f"#!/bin/sh\necho x >>{tries}\necho 'Unable to connect' >&2\nexit 1\n")
    (tmp_path / rdma_traffic.PROGRAM).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(rdma_traffic, "TRY_AGAIN_SECONDS", 0.01)
    with pytest.raises(RdmaError, match="ib_write_bw: Unable to connect"):
        rdma_traffic.measure("rocep1s0f0", "10.0.0.2")
    assert len(tries.read_text().splitlines()) == rdma_traffic.TRIES
