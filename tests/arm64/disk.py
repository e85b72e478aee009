"""The disk of an arm64 machine: Debian with docker, and the stand-in engine as a root file system for docker."""

import os
import shutil
from pathlib import Path

from tests.bed import cache, debian, needs, nodebase
from tests.bed.command import run
from tests.bed.qemu.disk import KERNEL, SIZE, TREE, UNWANTED, UP_TO_DATE
from tests.bed.space import REPOSITORY

SUITE = "trixie"
PACKAGES = [
    *nodebase.PLAIN,
    "docker.io", "docker-cli", "iptables",
    "linux-image-cloud-arm64",  # NVMe and ext4 are built in: no initial RAM disk, whose making takes minutes
    "qemu-guest-agent",
]  # fmt: skip
COMMANDS = {
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-img": "qemu-utils",
    "qemu-aarch64-static": "qemu-user-static",
}
EMULATED = """\
types=/proc/sys/fs/binfmt_misc
mountpoint -q $types || mount -t binfmt_misc binfmt_misc $types
if test ! -e $types/qemu-aarch64; then
  trap "echo -1 >$types/qemu-aarch64" EXIT
  cat /usr/lib/binfmt.d/qemu-aarch64.conf >$types/register
fi
"$@"
"""
"""A command beside which the kernel runs programs of arm64 by QEMU: those of every process, until it ends."""
DISK = "disk.img"
ENGINE, ENGINE_TAR = "sparkd-test/alike:1", "root/engine.tar"
ENGINE_PACKAGES = (
    "base-files", "bash", "libc6", "libtinfo6", "python3-minimal", "python3.13-minimal", "libpython3.13-minimal",
    "libpython3.13-stdlib", "libexpat1", "libssl3t64", "zlib1g",
)  # fmt: skip
"""What a launch script and the stand-in need."""
ALIKE = (
    (REPOSITORY / "tests/bed/programs/vllm_alike.py", "usr/local/bin/vllm"),
    (REPOSITORY / "tests/integration/programs/endpoint_alike.py", "opt/alike/endpoint_alike.py"),
)


def base() -> Path:
    """The folder with kernel and tree, built first when it is not there."""
    needs.ensure(COMMANDS)
    return cache.artefact("arm64", cache.recipe_key(Path(__file__), *PACKAGES, *debian.SLIM), "", build)


def build(target: Path) -> None:
    target.mkdir()
    root = target / TREE
    options = ["--quiet", "--mode=root", "--variant=apt", "--architectures=arm64", "--skip=check/qemu", *debian.SLIM]
    options += [f"--keyring={needs.DEBIAN_KEYS}", f"--include={','.join(PACKAGES)}"]
    emulated = ("unshare", "--mount", "sh", "-ec", EMULATED, "sh")
    run(*emulated, "mmdebstrap", *options, SUITE, root, env={**os.environ, "INITRD": "No"})
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    shutil.copy(kernel, target / KERNEL)
    for path in (root / "boot").iterdir():
        path.unlink()
    run("systemctl", f"--root={root}", "mask", *UNWANTED)
    (root / "etc/machine-id").write_text("uninitialized\n")
    (root / "etc/fstab").write_text("")
    for name in UP_TO_DATE:
        (root / name).touch()


def make(base: Path, package: Path, folder: Path) -> None:
    """A disk in `folder` on which the package lies, and the engine's archive."""
    root = folder / TREE
    run("cp", "--archive", "--reflink=auto", base / TREE, root)
    shutil.copy(package, root / "root/sparkd.deb")
    engine = folder / "engine"
    listed = run("dpkg", f"--root={root}", "--listfiles", *ENGINE_PACKAGES).stdout.splitlines()
    files = sorted({f".{line}" for line in listed if line.startswith("/") and os.path.lexists(f"{root}{line}")})
    (folder / "files").write_text("\n".join([*files, "./etc/ld.so.cache"]))
    engine.mkdir()
    run("tar", "-C", root, "--no-recursion", "-T", folder / "files", "-cf", folder / "engine.tar")
    run("tar", "-C", engine, "-xpf", folder / "engine.tar")
    for source, place in ALIKE:
        (engine / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, engine / place)
        (engine / place).chmod(0o755)
    run("tar", "-C", engine, "-cf", root / ENGINE_TAR, ".")
    run("mkfs.ext4", "-q", "-d", root, folder / DISK, SIZE)
    shutil.rmtree(root)
