"""sparkd on a real GPU, step by step.

python3 -m tests.gpu bundle [CAPABILITY]   build/gpu/*.tar.xz, for GPUs of this compute capability (9.0)
python3 -m tests.gpu docker                there, as root: docker and the .deb installed, image and model made
python3 -m tests.gpu engine                there: vLLM unpacked
python3 -m tests.gpu STEP...               there: rows of results, into build/gpu/results.json and .md
python3 -m tests.gpu all                   there: all of these
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from . import machine
from .results import Results
from .rows import STEPS, Proof


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
    fields = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    gpu = "none" if machine.ON_CPU else machine.run(*fields).splitlines()[0]
    sparkd = machine.run("sparkd", "--version").strip()
    return {
        "date": time.strftime("%Y-%m-%d"), "GPU, driver, memory": gpu, "kernel": os.uname().release,
        "cores": str(os.cpu_count()), "vLLM": vllm, "PyTorch": torch, "sparkd": sparkd,
    }  # fmt: skip


def measure(steps: Iterable[str], folder: Path) -> int:
    """The number of failed rows. A step that breaks off is one."""
    results = Results(folder, describe_machine())
    proof = Proof(results, folder)
    for step in steps:
        began = time.monotonic()
        print(f"== {step}", flush=True)
        try:
            STEPS[step](proof)
        except (RuntimeError, OSError, ValueError, KeyError, StopIteration, subprocess.SubprocessError) as error:
            traceback.print_exc()
            results.add(step, f"broke off: {error}"[:500], False)
        print(f"== {step}: {time.monotonic() - began:.1f} s", flush=True)
    if proof.agent is not None:
        proof.agent.stop()
    return sum(not row.good for row in results.rows)


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
        case [_, *_] if all(word in STEPS for word in words):
            return measure(words, folder)
    print(f"{__doc__}\nsteps: {' '.join(STEPS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of the stand-ins wait for ever
