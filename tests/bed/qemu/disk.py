"""What every machine of QEMU starts from: Debian's kernel, an initial RAM disk, and a disk with Debian on it."""

import shutil
from pathlib import Path

from tests.bed import cache, debian, needs, nodebase
from tests.bed.command import run
from tests.bed.tree import Tree

SUITE = "trixie"
PACKAGES = [
    *nodebase.PLAIN,
    "linux-image-amd64",
    "qemu-guest-agent",
    "rdma-core",
    "ibverbs-utils",
    "iperf3",
    "perftest",
]
COMMANDS = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}
SIZE = "6G"
MODULES = ("virtio_pci", "virtio_blk", "ext4")
"""What the initial RAM disk needs to find the disk: emulated, each megabyte of it takes time."""
UNWANTED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
    "fstrim.timer", "systemd-networkd.service", "systemd-networkd.socket",
    "systemd-networkd-persistent-storage.service",
)  # fmt: skip
"""They cost a boot seconds, or would run while something is measured."""
UP_TO_DATE = ("etc/.updated", "var/.updated")
"""Otherwise the first boot rebuilds its caches."""
KERNEL, RAM_DISK, TREE, DISK = "vmlinuz", "initrd", "root", "disk.img"


def base() -> Path:
    """The folder with kernel, RAM disk and tree, built first when it is not there."""
    needs.ensure(COMMANDS)
    key = cache.recipe_key(Path(__file__), Path(debian.__file__), *PACKAGES)
    return cache.artefact("qemu", key, "", build)


def build(target: Path) -> None:
    target.mkdir()
    tree = Tree(target / TREE)
    debian.bootstrap(SUITE, PACKAGES, tree.root, "apt")
    (kernel,) = (tree.root / "boot").glob("vmlinuz-*")
    shutil.copy(kernel, target / KERNEL)
    shutil.copy(ram_disk(tree, kernel.name.removeprefix("vmlinuz-")), target / RAM_DISK)
    for path in (tree.root / "boot").iterdir():
        path.unlink()
    tree.run("systemctl", "mask", *UNWANTED)
    (tree.root / "etc/machine-id").write_text("uninitialized\n")
    (tree.root / "etc/fstab").write_text("")


def ram_disk(tree: Tree, version: str) -> Path:
    configuration = tree.root / "root/ram-disk"
    shutil.copytree(tree.root / "etc/initramfs-tools", configuration)
    (configuration / "conf.d/modules").write_text("MODULES=list\n")
    (configuration / "modules").write_text("\n".join(MODULES) + "\n")
    tree.run("mkinitramfs", "-d", "/root/ram-disk", "-o", "/root/initrd", version)
    return tree.root / "root/initrd"


def install(base: Path, package: Path, folder: Path) -> None:
    """A disk in `folder` with the package on it. Emulated, the installation would take minutes."""
    tree = Tree(folder / TREE)
    run("cp", "--archive", "--reflink=auto", base / TREE, tree.root)
    shutil.copy(package, tree.root / "root/sparkd.deb")
    tree.run("dpkg", "--install", "/root/sparkd.deb", env={"DEBIAN_FRONTEND": "noninteractive"})
    for name in UP_TO_DATE:
        (tree.root / name).touch()
    run("mkfs.ext4", "-q", "-d", tree.root, folder / DISK, SIZE)
    shutil.rmtree(tree.root)
