"""sparkd on a real GPU, step by step.

python3 -m tests.gpu bundle [CAPABILITY]   build/gpu/*.tar.xz, for GPUs of this compute capability (9.0)
python3 -m tests.gpu docker                there, as root: docker and the .deb installed, image and model made
python3 -m tests.gpu engine                there: vLLM unpacked
python3 -m tests.gpu STEP...               there: rows of results, into build/gpu/results.json and .md
python3 -m tests.gpu all                   there: all of these
python3 -m tests.gpu booted                there, after docker and engine: a node with its own systemd; `owner` in it
python3 -m tests.gpu pair                  there, with two GPUs: two nodes unpacked, and all of a pair's steps
python3 -m tests.gpu pair STEP...          there, once all was unpacked
python3 -m tests.gpu owner --yes           on an owner's node that serves, as root: what is installed there
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from . import booted, machine, owner
from .pair import PAIR_STEPS, Pair
from .results import Results
from .rows import STEPS, Proof
from .view import View


def prepare_docker() -> None:
    _timed("docker unpacked", lambda: machine.unpack("docker"))
    _timed("package", machine.install_package)
    _timed("docker", machine.start_docker)
    _timed("image", machine.make_image)
    _timed("model", machine.make_model)


def prepare_engine() -> None:
    _timed("vLLM unpacked", lambda: machine.unpack("engine"))


def _timed(name: str, work: Callable[[], object]) -> None:
    began = time.monotonic()
    made = work()
    print(f"{name}: {time.monotonic() - began:.1f} s {made or ''}".rstrip(), flush=True)


def describe_machine() -> dict[str, str]:
    versions = machine.run(
        machine.torch_python(), "-c", "import torch, vllm; print('versions', torch.__version__, vllm.__version__)",
        env={} if machine.ON_CPU else {"PYTHONPATH": str(machine.HOME / "engine")},
    )  # fmt: skip
    _, torch, vllm = next(line for line in versions.splitlines() if line.startswith("versions ")).split()
    return {**describe_node(), "vLLM": vllm, "PyTorch": torch}


def describe_node() -> dict[str, str]:
    fields = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpu = "; ".join(machine.run(*fields).splitlines()) if shutil.which("nvidia-smi") else "none"
    return {
        "date": time.strftime("%Y-%m-%d"), "GPU, driver, memory": gpu, "kernel": os.uname().release,
        "cores": str(os.cpu_count()), "sparkd": machine.run("sparkd", "--version").strip(),
    }  # fmt: skip


def measure(steps: Iterable[str], folder: Path) -> int:
    """The number of failed rows. A step that breaks off is one."""
    results = Results(folder, describe_machine())
    proof = Proof(results, folder, View())
    _run({name: partial(STEPS[name], proof) for name in steps}, results)
    if proof.agent is not None:
        proof.agent.stop()
    return sum(not row.good for row in results.rows)


def measure_pair(steps: Iterable[str], folder: Path) -> int:
    """The same of two nodes. Each call makes both again, so that they begin with cold caches."""
    results = Results(folder, describe_machine())
    pair = Pair(results, folder)
    try:
        _run({name: partial(PAIR_STEPS[name], pair) for name in dict.fromkeys(("cold", *steps))}, results)
    finally:
        pair.end()
    return sum(not row.good for row in results.rows)


def measure_booted(folder: Path) -> int:
    """The same of a node with a systemd of its own."""
    results = Results(folder, describe_machine())
    _run({"node": lambda: machine.unpack("node"), "booted": lambda: booted.measure(results, folder)}, results)
    return sum(not row.good for row in results.rows)


def measure_owner(folder: Path) -> int:
    """The same of this node as its owner runs it. A signal that ends it leaves the unit started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not below nohup
            signal.signal(number, signal.default_int_handler)
    results = Results(folder, describe_node() | owner.describe_plan())
    proof = Proof(results, folder, View())
    try:
        _run({name: partial(step, proof) for name, step in owner.STEPS.items()}, results)
    except KeyboardInterrupt:
        results.add("all steps", "ended by a signal", False)
    finally:
        owner.end(proof)
    return sum(not row.good for row in results.rows)


def _run(steps: Mapping[str, Callable[[], None]], results: Results) -> None:
    for name, step in steps.items():
        began = time.monotonic()
        print(f"== {name}", flush=True)
        try:
            step()
        except (RuntimeError, OSError, ValueError, KeyError, StopIteration, subprocess.SubprocessError) as error:
            traceback.print_exc()
            results.add(name, f"broke off: {error}"[:500], False)
        print(f"== {name}: {time.monotonic() - began:.1f} s", flush=True)


def main(words: list[str]) -> int:
    folder = Path(os.environ.get("OUT", machine.BUNDLES))
    folder.mkdir(parents=True, exist_ok=True)
    match words:
        case ["bundle", *rest]:
            from .bundle import bundle  # needs the project's environment

            bundle(int(float(rest[0] if rest else "9.0") * 10))
            return 0
        case ["docker"]:
            prepare_docker()
            return 0
        case ["engine"]:
            prepare_engine()
            return 0
        case ["all"]:
            prepare_docker()
            prepare_engine()
            return measure(STEPS, folder)
        case ["booted"]:
            return measure_booted(folder)
        case ["pair", *steps] if all(step in PAIR_STEPS for step in steps):
            if not steps:
                machine.unpack("docker")
                machine.install_package()
                machine.make_model()
                prepare_engine()
            return measure_pair(steps or PAIR_STEPS, folder)
        case ["owner"] | ["owner", "--yes"]:
            if refusal := owner.refuse():
                print(refusal, file=sys.stderr)
                return 2
            print(owner.PLAN, flush=True)
            if words[1:]:
                return measure_owner(folder)
            print("nothing was touched; to begin: sudo python3 -m tests.gpu owner --yes")
            return 2
        case [_, *_] if all(word in STEPS for word in words):
            return measure(words, folder)
    print(f"{__doc__}\nsteps: {' '.join(STEPS)}\nof a pair: {' '.join(PAIR_STEPS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of the stand-ins wait for ever
