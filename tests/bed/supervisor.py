"""The power supply of one node: it boots the node's disk, and boots it again when the node requests a reboot.

Runs inside the space, in mounts of its own: the node's disk is mounted only here.
"""

import os
import subprocess
import sys
from pathlib import Path

from . import loops, namespaces, network
from .cgroups import NodeGroup
from .pool import RUNS

REBOOT = 133  # what nspawn exits with when its machine calls reboot(2)
SYSTEM_CALLS = "@keyring bpf perf_event_open @mount"  # beyond nspawn's own: docker needs them
LXCFS = Path("/run/bed/lxcfs")


def main(bed: str, node: str) -> int:
    namespaces.own_mounts()
    place = Path("/run/bed") / node
    place.mkdir(exist_ok=True)
    addresses = network.Addresses(int(node.removeprefix("spark")))
    group = NodeGroup(bed, node)
    while True:
        code = power_on(RUNS / bed / f"{node}.img", place, group, addresses)
        print(f"\nbed: {node}: off ({code})", flush=True)
        if code != REBOOT:
            return code


def power_on(image: Path, place: Path, group: NodeGroup, addresses: network.Addresses) -> int:
    """From power on until the machine is off or wants to reboot."""
    root = place / "root"
    group.clear()
    loops.mount(image, root, ["errors=remount-ro"])
    namespaces.unshare(namespaces.NEW_NET)
    network.plug(addresses)
    (place / "drop_caches").write_text("0\n")
    try:
        return subprocess.run(group.entered("machine", *nspawn(root, place, group.node)), env=environment()).returncode
    finally:
        loops.unmount(root)


def nspawn(root: Path, place: Path, name: str) -> list[str]:
    binds = [f"--bind={place}/drop_caches:/run/bed/drop_caches"]
    if os.path.ismount(LXCFS):
        binds.append(f"--bind-ro={LXCFS}/proc:/run/bed/proc")
    return [
        "systemd-nspawn",
        "--quiet",
        f"--directory={root}",
        f"--machine={name}",
        "--register=no",
        "--keep-unit",
        "--network-namespace-path=/proc/self/ns/net",
        "--capability=all",
        f"--system-call-filter={SYSTEM_CALLS}",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--console=pipe",
        *binds,
        "/usr/local/sbin/bed-init",
    ]


def environment() -> dict[str, str]:
    """/sys stays read-only, as in any container: writable, udev would run and networkd wait for it for ever."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
    return {**kept, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
