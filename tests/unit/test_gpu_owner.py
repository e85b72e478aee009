"""The acceptance test of an owner's node, where no node is: what it refuses, and a GPU without memory of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.machine import containers
from tests.unit.docker_server import dockerd, json_response

CHECKOUT = Path(__file__).parents[2]
GB10 = """\
from types import SimpleNamespace as Facts
def read_driver(): return Facts(total_bytes=None, processes=[Facts(pid=7, used_bytes=3 << 20)])
def read_clocks():
    return [Facts(sm_mhz=208, power_watts=4.5, utilization_percent=0, temperature_celsius=40, held_by=())]
"""
SMI = """\
case $1 in *gpu=*) echo '[N/A], 208, 4.50, 0, 40' ;; *) echo '7, 3' ;; esac
"""


def run(folder: Path, programs: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """The words, with these shell scripts in the path."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": str(folder), "OUT": str(folder)}
    return subprocess.run(
        [sys.executable, *words], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("report", "code", "reason"), [
    ({"role": "worker", "peers": [{"address": "10.0.0.1"}]}, 0, "this node is a worker: run it on the head, 10.0.0.1"),
    ({"role": "head"}, 20, "this node does not serve: sparkd status"),
    ({"error": {}}, 21, "this node does not serve: sparkd status"),
])  # fmt: skip
def test_it_begins_only_on_a_head_that_serves(report: object, code: int, reason: str, tmp_path: Path) -> None:
    sparkd = f"[ \"$*\" = 'status --json' ] && echo '{json.dumps(report)}'; exit {code}"
    done = run(tmp_path, {"sparkd": sparkd}, "-m", "tests.gpu", "owner", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{reason}\n")


def test_figures_that_the_driver_of_a_gb10_does_not_report_are_none(tmp_path: Path) -> None:
    package = tmp_path / "sparkd/base/host"
    package.mkdir(parents=True)
    (package / "gpu.py").write_text(GB10)
    done = run(tmp_path, {"nvidia-smi": SMI}, "-S", "tests/gpu/files/nvml-beside")
    figures = json.loads(done.stdout)
    assert figures["total_mib"] == figures["smi_total_mib"] == 0
    assert figures["smi_processes"] == figures["processes"] == {"7": 3}
    assert figures["smi"] == figures["sparkd"][0] == [208, 4.5, 0, 40]


def test_a_container_that_stopped_is_left_too(tmp_path: Path) -> None:
    listed = [{"Names": ["/sparkd-rank0"], "Id": "c"}]
    (tmp_path / "run").mkdir()
    answer = {"GET /containers/json?all=1": json_response(listed), "GET /containers/json?all=0": json_response([])}
    with dockerd(answer.__getitem__, f"{tmp_path}/run/docker.sock"):
        assert containers(tmp_path) == {}
        assert containers(tmp_path, stopped=True) == {"sparkd-rank0": "c"}
