"""The Debian packages that the machine under the bed needs."""

import os
import shutil
from collections.abc import Mapping

from .cache import say
from .command import BedError, run

COMMANDS = {  # a command of each package, by which its presence is known
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "mkfs.xfs": "xfsprogs",
    "mkfs.ext4": "e2fsprogs",
    "lxcfs": "lxcfs",
    "zstd": "zstd",
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "losetup": "mount",
}
DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
MODULES = ("loop", "xfs", "ext4", "overlay", "bridge", "br_netfilter", "veth", "fuse", "nft_numgen")


def ensure(more: Mapping[str, str] | None = None) -> None:
    """Install what is missing, of `more` too; fail clearly when that cannot be."""
    commands = {**COMMANDS, **(more or {})}
    if os.geteuid() != 0:
        raise BedError("the bed needs root (it boots machines): run it with sudo")
    absent = missing(commands)
    if absent:
        say(f"installing {' '.join(absent)}")
        install(absent)
        if still := missing(commands):
            raise BedError(f"installed, but still not found: {' '.join(still)}")
    if shutil.which("modprobe", path=search_path()):  # a kernel with all of it built in may come without
        run("modprobe", "--all", "--quiet", *MODULES, check=False)


def missing(commands: Mapping[str, str]) -> list[str]:
    absent = [package for command, package in commands.items() if shutil.which(command, path=search_path()) is None]
    return absent if os.path.exists(DEBIAN_KEYS) else [*absent, "debian-archive-keyring"]


def search_path() -> str:
    return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"


def install(packages: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise BedError(f"needs the packages {' '.join(packages)}, and this machine has no apt-get to install them")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        run("apt-get", "-qq", "update", env=env)
        run("apt-get", "-qq", "install", "--yes", "--no-install-recommends", *packages, env=env)
    except BedError as error:
        raise BedError(f"cannot install {' '.join(packages)}: {error}") from error
