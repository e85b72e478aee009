"""A node with a systemd of its own on this machine: Debian's tree, its docker, the .deb installed there, and the GPUs.

What the stand-in of `units` leaves out is real there: the unit's sandbox, its control group, its times. The acceptance
test of an owner's node then runs inside.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import machine
from .results import Results
from .rows import LOAD_SECONDS, wait_for
from .view import View

TREE = machine.HOME / "node"
GROUP = Path("/sys/fs/cgroup", *(("unified",) if machine.ON_CPU else ()), "sparkd-gpu-node")
CHECKOUT = Path(__file__).parents[2]
UNIT = "sparkd-head"
BOOT_SECONDS = 120.0
SYSTEM_CALLS = "@keyring bpf perf_event_open @mount"
"""Beyond those of nspawn: docker needs them."""


def measure(results: Results, folder: Path) -> None:
    """Rows of the node's boot, its package and its unit, then those of `owner`."""
    _furnish()
    began = time.monotonic()
    with _booted() as pid:
        node = View(Path(f"/proc/{pid}/root"), pid)
        wait_for(lambda: _says(node, "systemctl", "is-system-running") in ("running", "degraded"), BOOT_SECONDS, "boot")
        wait_for(lambda: (node.root / machine.DOCKER_SOCKET).exists(), BOOT_SECONDS, "docker")
        results.add("boot", f"{time.monotonic() - began:.1f} s; failed: {_failed_units(node) or 'none'}", True)
        (package,) = TREE.glob("root/sparkd_*.deb")
        machine.run(*node.enter(), "dpkg", "--install", Path("/root", package.name))
        _keep(node, folder / "package.txt", "sparkd", "--version")
        _start(results, node, folder)
        inside = Path("/root/results")
        command = ("env", f"OUT={inside}", f"PYTHONPATH={CHECKOUT}", "python3", "-m", "tests.gpu", "owner", "--yes")
        subprocess.run([*node.enter(), *command], check=False)
        _add_rows(results, TREE / "root/results/results.json")
        _keep(node, folder / "journal.txt", "journalctl", "--no-pager", "--output=short-monotonic", f"--unit={UNIT}")


def _add_rows(results: Results, path: Path) -> None:
    """Those of `owner`. One of them can't pass: the image holds no PyTorch, which is mounted into the rank alone."""
    for row in json.loads(path.read_text())["rows"]:
        lacks_torch = row["name"] == "`sparkd preflight --deep`" and row["measured"].endswith(": unknown (1 unknown)")
        results.add(row["name"], row["measured"], row["good"] or lacks_torch, **row["figures"])


def _start(results: Results, node: View, folder: Path) -> None:
    """The unit's first start, in the node's own sandbox."""
    began = time.monotonic()
    machine.run(*node.enter(), "systemctl", "enable", UNIT)
    machine.run(*node.enter(), "systemctl", "start", "--no-block", UNIT)
    with suppress(TimeoutError):
        wait_for(
            lambda: _says(node, "systemctl", "is-active", UNIT) in ("active", "failed"), LOAD_SECONDS, "READY", 0.2
        )
    seconds = time.monotonic() - began
    results.add("READY, cold caches", f"{seconds:.1f} s", node.complete(), seconds=seconds)
    for name in ("status", "preflight --dry-run --all"):
        _keep(node, folder / f"{name.split()[0]}.txt", "sparkd", *name.split())


def _furnish() -> None:
    """Debian's tree with the machine's recipe and model, and with docker's programs."""
    machine.stop_docker()
    for program in (machine.HOME / "docker/bin").glob("*"):
        shutil.copy(program, TREE / "usr/bin")
    dockerd = TREE / "usr/sbin/dockerd"  # where Debian's unit has it
    dockerd.unlink(missing_ok=True)
    dockerd.symlink_to("../bin/dockerd")
    settings = machine.DOCKER_SETTINGS | {"init-path": "/usr/bin/docker-init"}
    _write(TREE / "etc/docker/daemon.json", json.dumps(settings))
    if machine.CDI.exists():
        _write(TREE / machine.CDI.relative_to("/"), machine.CDI.read_text())
    machine.write_configuration(root=TREE)
    shutil.copy(sorted(machine.BUNDLES.glob("sparkd_*.deb"))[-1], TREE / "root")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@contextmanager
def _booted() -> Iterator[int]:
    """The pid of the node's systemd, as this machine counts."""
    with suppress(FileExistsError):
        GROUP.mkdir()
    (loader,) = TREE.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")
    libraries = f"{loader.parent / 'systemd'}:{loader.parent}"
    nspawn = [loader, "--library-path", libraries, TREE / "usr/bin/systemd-nspawn", *_options()]
    command = ["sh", "-c", 'echo 0 >"$0/cgroup.procs"; exec "$@"', GROUP, *nspawn, "/sbin/init"]
    env = {
        "PATH": os.environ["PATH"], "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
    }  # fmt: skip
    with subprocess.Popen([str(word) for word in command], env=env, stdin=subprocess.DEVNULL) as process:
        try:
            yield _await_init(process)
        finally:
            process.terminate()  # as at a machine's power switch
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def _options() -> Iterator[str]:
    yield from ("--quiet", f"--directory={TREE}", "--machine=spark1", "--register=no", "--keep-unit")
    yield from ("--capability=all", f"--system-call-filter={SYSTEM_CALLS}", "--resolv-conf=off", "--timezone=off")
    yield from ("--link-journal=no", "--console=pipe", f"--bind-ro={CHECKOUT}", f"--bind-ro={machine.MODEL.parent}")
    yield "--bind=/var/lib/docker"
    yield from (f"--bind-ro={folder}" for folder in machine.mounts())
    yield from (f"--bind={path}" for path in sorted(Path("/dev").glob("nvidia*")))
    for name in machine.DRIVER_LIBRARIES:
        if library := machine.find_library(name):
            yield f"--bind-ro={library}"  # as the CDI file names it
            yield f"--bind-ro={library}:/usr/lib/{os.uname().machine}-linux-gnu/{name}"
    if smi := shutil.which("nvidia-smi"):
        yield f"--bind-ro={Path(smi).resolve()}:/usr/bin/nvidia-smi"


def _await_init(process: subprocess.Popen[bytes]) -> int:
    """Raises RuntimeError, TimeoutError."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def booted() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"systemd-nspawn ended with {process.returncode}")
        return any(_name(pid) == "systemd" for pid in children.read_text().split())

    wait_for(booted, BOOT_SECONDS, "systemd")
    return next(int(pid) for pid in children.read_text().split() if _name(pid) == "systemd")


def _name(pid: str) -> str:
    try:
        return Path("/proc", pid, "comm").read_text().strip()
    except OSError:
        return ""


def _says(node: View, *command: str) -> str:
    done = subprocess.run([*node.enter(), *command], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _failed_units(node: View) -> str:
    listed = _says(node, "systemctl", "list-units", "--failed", "--output=json")
    return ", ".join(unit["unit"] for unit in json.loads(listed or "[]"))


def _keep(node: View, path: Path, *command: str) -> None:
    """What it prints, beside its exit code."""
    done = subprocess.run(
        [*node.enter(), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    path.write_text(f"{done.stdout}[{done.returncode}]\n")
    print(f"{' '.join(command)}: {done.returncode}", file=sys.stderr)
