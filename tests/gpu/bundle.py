"""Archives for a machine that can download nothing: a dockerd, a vLLM for the PyTorch that is there, and a Debian."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bed.debian import bootstrap
from tests.bed.demo import newest_package
from tests.bed.needs import ensure

from .fat_binary import keep_only

FOLDER = Path("build/gpu")
MOST_BYTES = 60 << 20
PACKAGES = Path(__file__).with_name("files") / "packages.txt"
SUITE = "trixie"
"""The first Debian whose docker passes on CDI devices."""
NODE = ("systemd-sysv", "systemd-container", "python3", "procps", "docker.io")
UNNEEDED = (
    "var/cache",
    "var/lib/apt",
    "usr/share/zoneinfo",
    "usr/share/i18n",
    "usr/lib/*-linux-gnu/gconv",
    "usr/libexec/docker",
)
"""Of a node's tree; what the bundle `docker` has goes too."""
DOCKER = ("dockerd", "containerd", "containerd-shim-runc-v2", "runc", "ip")
PYTHON = "3.12"
PLATFORMS = (*(f"manylinux_2_{number}_x86_64" for number in range(5, 40)), "manylinux2014_x86_64", "linux_x86_64")
LEFT_OUT = (
    "vllm/vllm_flash_attn/_vllm_fa2_C", "vllm/vllm-rs", "vllm/third_party/deep_gemm/", "vllm/third_party/fmha_sm100/",
)  # fmt: skip
"""Of the wheel: attention for older GPUs, another front end, and sources of kernels for other models."""
FAT = ("_C_stable_libtorch.abi3.so", "_moe_C_stable_libtorch.abi3.so")


def bundle(architecture: int) -> list[Path]:
    """Write them below FOLDER. Raises ValueError where one is too large."""
    ensure({"xz": "xz-utils", "strip": "binutils", "ldd": "libc-bin"})
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    shutil.copy(newest_package(Path("dist")), FOLDER)
    with TemporaryDirectory(prefix="sparkd-gpu-") as scratch:
        made = [
            _pack("docker", _collect_docker(Path(scratch))),
            _pack("engine", _collect_engine(Path(scratch), architecture)),
            _pack("node", _collect_node(Path(scratch))),
        ]
    for path in made:
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path} is larger than {MOST_BYTES >> 20} MiB")
    return made


def _pack(name: str, folder: Path) -> Path:
    target = FOLDER / f"{name}.tar.xz"  # xz, which Python's standard library unpacks
    subprocess.run(["tar", "-C", folder, "-I", "xz -9 -T2", "-cf", target, "."], check=True)
    return target


def _collect_docker(scratch: Path) -> Path:
    root, folder = scratch / "debian", scratch / "docker"
    bootstrap(SUITE, ["docker.io", "containerd", "runc", "tini", "iproute2"], root, "extract")
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    for name in (*DOCKER, "tini-static"):
        source = next(root / place / name for place in ("usr/sbin", "usr/bin") if (root / place / name).exists())
        target = folder / "bin" / name.replace("tini-static", "docker-init")
        shutil.copy(source, target)
        subprocess.run(["strip", target], check=True)
        for line in subprocess.run(["ldd", target], capture_output=True, text=True, check=False).stdout.splitlines():
            library = next(iter(root.glob(f"usr/lib/*-linux-gnu/{line.split()[0]}")), None)
            if library is not None:
                shutil.copy(library, folder / "lib")
    return folder


def _collect_node(scratch: Path) -> Path:
    root = scratch / "node"
    bootstrap(SUITE, NODE, root, "essential")
    for pattern in (*UNNEEDED, *(f"usr/*bin/{name}" for name in DOCKER)):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(root / "dev")  # nspawn makes its own; devices are no files that everybody may unpack
    (root / "dev").mkdir()
    return root


def _collect_engine(scratch: Path, architecture: int) -> Path:
    wheels, site = scratch / "wheels", scratch / "engine"
    options = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    options += [f"--abi={abi}" for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none")]
    options += [f"--platform={platform}" for platform in PLATFORMS]
    subprocess.run([sys.executable, "-m", "pip", "-qq", "download", "-d", wheels, *options, "-r", PACKAGES], check=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [name for name in archive.namelist() if not name.startswith(LEFT_OUT)])
    for name in FAT:
        kept, cleared = keep_only(site / "vllm" / name, architecture)
        print(f"{name}: {kept >> 20} MiB of code kept, {cleared >> 20} cleared")
    return site
