"""The acceptance test of an owner's node: what is installed there, under its own systemd, with the recipe and image in
force. It acts by `sparkd` and `systemctl` alone, and changes no setting, neither of docker nor of a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from . import machine
from .rows import Proof, answers, compare_nvml, keep_output

UNIT = "sparkd-head"
PLAN = f"""\
What it does on this node, which serves:
  sparkd preflight --dry-run; NVML beside nvidia-smi
  sparkd drill agent; systemctl reload {UNIT}: the engine serves on
  sparkd drill rank: the endpoint comes back by itself
  systemctl stop {UNIT}; sparkd preflight --deep; systemctl start
  sparkd drill core: the endpoint comes back by itself
  sparkd smoke; sparkd bench
The endpoint, of all nodes, is away for three loads. No setting is changed, and
no cache is deleted. Results: build/gpu/results.md"""
FAULTS = {
    "agent": ("sparkd", "drill", "agent", "--yes"), "reload": ("systemctl", "reload", UNIT),
    "rank": ("sparkd", "drill", "rank", "--yes"), "core": ("sparkd", "drill", "core", "--yes"),
}  # fmt: skip
OUTLIVED = ("agent", "reload")
"""Faults after which the same engine serves."""
LIMIT_SECONDS = 7200.0
"""Of a load or a measurement, which sparkd itself ends sooner."""


def refuse() -> str:
    """Why it can't begin, and what to do; empty where it can."""
    if shutil.which("sparkd") is None:
        return "sparkd is not installed on this node: README.md"
    serves, report = read_status()
    if report.get("role") == "worker":
        return f"this node is a worker: run it on the head, {''.join(peer['address'] for peer in report['peers'][:1])}"
    if not serves:
        return "this node does not serve: sparkd status"
    return "only root can do this: sudo python3 -m tests.gpu owner" if os.geteuid() else ""


def read_status() -> tuple[bool, dict[str, Any]]:
    """Whether it serves, and its report."""
    done = subprocess.run(["sparkd", "status", "--json"], capture_output=True, text=True, check=False)
    return done.returncode == 0, json.loads(done.stdout)


def describe_plan() -> dict[str, str]:
    plan, engine = json.loads(machine.run("sparkd", "plan", "--json")), read_status()[1]["engine"]
    return {"recipe": plan["recipe"], "image": f"{plan['image']}, {engine['image']}"}


def look(proof: Proof) -> None:
    _examine(proof, "--dry-run")
    if shutil.which("nvidia-smi"):
        compare_nvml(proof, "idle")


def fault(name: str, proof: Proof) -> None:
    """Seconds until the endpoint serves again, with sparkd's pause after earlier faults, and by which engine."""
    engine, began = _find_engine(proof), time.monotonic()
    done = keep_output(proof, f"{name}.txt", *FAULTS[name], limit_seconds=LIMIT_SECONDS)
    reported = re.search(r" after ([\d.]+) s", done.stdout)
    seconds = float(reported[1]) if reported else time.monotonic() - began
    same = _find_engine(proof) == engine
    good = done.returncode == 0 and read_status()[0] and same == (name in OUTLIVED)
    measured = f"{seconds:.1f} s, then {'the same' if same else 'another'} engine; core {engine[1]} before"
    measured += "" if good else f"; {_end_of(done)}"
    proof.results.add(f"`{' '.join(FAULTS[name])}`", measured, good, seconds=seconds)


def restart(proof: Proof) -> None:
    segments, began = _list_mapped(_find_engine(proof)[0]), time.monotonic()
    try:
        done = keep_output(proof, "stop.txt", "systemctl", "stop", UNIT, limit_seconds=LIMIT_SECONDS)
        seconds, containers = time.monotonic() - began, _find_containers(proof, stopped=True)
        listed = machine.run("find", "/dev/shm", "-ignore_readdir_race", "-printf", r"%D %i\n")
        left = segments.intersection(listed.splitlines())
        measured = f"{seconds:.1f} s; left: {len(containers)} containers, {len(left)} of {len(segments)} segments"
        good = done.returncode == 0 and not containers and not left
        proof.results.add(f"`systemctl stop {UNIT}`", measured, good, seconds=seconds)
        _examine(proof, "--deep")
    finally:  # also where this program is ended
        began = time.monotonic()
        machine.run("systemctl", "start", "--no-block", UNIT)
    done = keep_output(proof, "start.txt", "systemctl", "start", UNIT, limit_seconds=LIMIT_SECONDS)
    seconds = time.monotonic() - began
    good = done.returncode == 0 and read_status()[0]
    proof.results.add("READY, warm caches", f"{seconds:.1f} s {_end_of(done)}".rstrip(), good, seconds=seconds)


def _examine(proof: Proof, option: str) -> None:
    done = keep_output(proof, f"preflight{option}.txt", "sparkd", "preflight", option, limit_seconds=LIMIT_SECONDS)
    proof.results.add(f"`sparkd preflight {option}`", _end_of(done), done.returncode == 0)


def _find_engine(proof: Proof) -> tuple[list[str], list[int]]:
    """Its container, and its core."""
    return _find_containers(proof), proof.view.processes("VLLM::EngineCor")


def _find_containers(proof: Proof, *, stopped: bool = False) -> list[str]:
    containers = proof.view.containers(stopped=stopped)
    return [identity for name, identity in containers.items() if name.startswith("sparkd-")]


def _list_mapped(containers: list[str]) -> set[str]:
    """Device and inode of each segment that a process of the containers has mapped. Names change: sem.mp-*."""
    lines = list[str]()
    for group in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if any(identity in group.read_text() for identity in containers):
                lines += group.with_name("maps").read_text().splitlines()
    fields = [line.split()[3:5] for line in lines if " /dev/shm/" in line]
    return {f"{os.makedev(*(int(part, 16) for part in device.split(':')))} {inode}" for device, inode in fields}


def _end_of(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(" ".join(done.stdout.splitlines()[-2:]).split())


def end(proof: Proof) -> None:
    serves = read_status()[0]
    proof.results.add(
        "at the end", "the endpoint serves" if serves else "it does NOT serve; what to do: sparkd status", serves
    )


STEPS: dict[str, Callable[[Proof], None]] = {
    "look": look, "agent": partial(fault, "agent"), "reload": partial(fault, "reload"), "rank": partial(fault, "rank"),
    "restart": restart, "core": partial(fault, "core"),
    "answers": partial(answers, limit_seconds=LIMIT_SECONDS),
}  # fmt: skip
