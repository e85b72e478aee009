"""What is written to the disk of a node that is off. Runs inside the space, in mounts of its own."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

from . import loops, namespaces
from .command import run
from .network import CLIENT, FABRIC_CARD, FABRIC_MTU, MANAGEMENT_CARD, Addresses

FILES = Path(__file__).parent / "files"
SIZE = "24G"  # sparse
MOST_NODES = 8
DAEMON = {
    "storage-driver": "overlay2",
    "runtimes": {"bed": {"path": "/usr/local/sbin/bed-runc"}},
    "default-runtime": "bed",
    "log-opts": {"max-size": "20m", "max-file": "5"},
}
MASKED = [
    "systemd-networkd-wait-online.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
    "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "man-db.timer", "getty.target",
    "console-getty.service", "systemd-resolved.service", "modprobe@.service", "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount", "systemd-firstboot.service",
]  # fmt: skip


def fill(root: Path, tree: Path, model: Path | None = None, docker: Path | None = None) -> None:
    """A new disk: the tree, the model, what makes of it a node of this bed, and another docker over it."""
    unpack(tree, root)
    if model is not None:
        unpack(model, root / "srv/models")
    system = root / "etc/systemd/system"
    for unit in MASKED:
        (system / unit).unlink(missing_ok=True)
        (system / unit).symlink_to("/dev/null")
    wants = system / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    networkd = wants / "systemd-networkd.service"
    networkd.unlink(missing_ok=True)
    networkd.symlink_to("/lib/systemd/system/systemd-networkd.service")
    for name in ("bed-init", "bed-runc"):
        shutil.copy(FILES / name, root / "usr/local/sbin" / name)
        (root / "usr/local/sbin" / name).chmod(0o755)
    write(root / "etc/docker/daemon.json", json.dumps(DAEMON, indent=1) + "\n")
    (root / "var/log/journal").mkdir(exist_ok=True)  # the journal outlives reboots
    if docker is not None:
        unpack(docker, root)


def unpack(archive: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    run("tar", "-C", target, "--auto-compress", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-xpf", archive)


def settle(root: Path) -> None:
    """After the images are in: no trace of the boot that loaded them."""
    shutil.rmtree(root / "var/log/journal")
    (root / "var/log/journal").mkdir()
    for name in ("var/lib/systemd/random-seed", "var/lib/dbus/machine-id"):
        (root / name).unlink(missing_ok=True)


def personalise(root: Path, name: str) -> None:
    """Which node this is."""
    own = Addresses(int(name.removeprefix("spark")))
    write(root / "etc/hostname", f"{name}\n")
    write(root / "etc/machine-id", hashlib.md5(name.encode(), usedforsecurity=False).hexdigest() + "\n")
    hosts = f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 {name}\n"
    for index in range(1, MOST_NODES + 1):
        other = Addresses(index)
        hosts += f"{other.management} spark{index}.local\n{other.fabric} spark{index}-fabric\n"
    write(root / "etc/hosts", hosts)
    # The bed has no DNS. A local address refuses a query at once; with an unreachable server, torch's rendezvous
    # waits 10 s for the name of each peer.
    write(root / "etc/resolv.conf", "nameserver 127.0.0.1\n")
    fabric = f"[Match]\nName={FABRIC_CARD}\n[Link]\nMTUBytes={FABRIC_MTU}\nRequiredForOnline=no\n"
    write(root / "etc/systemd/network/10-fabric.network", f"{fabric}[Network]\nAddress={own.fabric}/24\n")
    management = f"[Match]\nName={MANAGEMENT_CARD}\n[Network]\nAddress={own.management}/24\nGateway={CLIENT}\n"
    write(root / "etc/systemd/network/20-management.network", management)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main(words: list[str]) -> None:
    verb, image, *rest = words
    namespaces.own_mounts()
    root = Path("/run/bed/disk")
    if verb == "fill":
        run("truncate", "--size", SIZE, image)
        run("mkfs.ext4", "-q", "-F", "-m", "1", "-E", "lazy_itable_init=0,lazy_journal_init=1", "-L", "node", image)
    loops.mount(Path(image), root)
    try:
        match verb, rest:
            case "fill", archives:
                fill(root, *map(Path, archives))
            case "settle", []:
                settle(root)
            case "personalise", [name]:
                personalise(root, name)
            case _:
                sys.exit(f"disk: {words}?")
    finally:
        loops.unmount(root)


if __name__ == "__main__":
    main(sys.argv[1:])
