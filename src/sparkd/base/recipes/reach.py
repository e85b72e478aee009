"""Files and devices of the node that a recipe's container reaches: warnings, since a person may want that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from posixpath import normpath
from typing import TYPE_CHECKING

from sparkd.base.vllm.container_paths import is_below
from sparkd.base.vllm.lint.rules import Issue

if TYPE_CHECKING:
    from sparkd.base.recipes.schema import Container

READ, WRITTEN = False, True
"""The access of a container to a path; in REACHES, the least that is dangerous."""
REACHES: tuple[tuple[bool, str, str], ...] = (
    (READ, "who reaches docker's socket, or one as strong, is root on the node",
     ("/run/docker.sock /run/docker /run/containerd /run/podman /run/crio /run/libvirt /run/snapd.socket /run/dbus "
      "/run/systemd/private /run/user/*/docker.sock /run/user/*/podman /run/user/*/bus /run/user/*/systemd")),
    (READ, "sparkd's keys or state are there",
     "/run/sparkd /var/lib/sparkd /etc/sparkd/cluster.key /etc/sparkd/head.key /etc/sparkd/webhook"),
    (READ, "who reaches LXD's or Incus' socket is root on the node",
     "/var/lib/lxd/unix.socket /var/lib/incus/unix.socket /var/snap/lxd/common/lxd/unix.socket"),
    (READ, "others can log in as the node's users with it",
     "/etc/shadow* /etc/gshadow* /etc/ssh /root/.ssh /home/*/.ssh"),
    (READ, "it has the processes of the node, with their files and variables", "/proc"),
    (READ, "it has all images and containers of the node",
     "/var/lib/docker /var/lib/containerd /var/lib/containers /var/lib/kubelet"),
    (READ, "the node boots from it", "/boot"),
    (READ, "it is the memory or the ports of the node itself", "/dev/mem /dev/kmem /dev/port"),
    (READ, "it is a disk of the node, with all files",
     ("/dev/sd* /dev/vd* /dev/nvme* /dev/ng* /dev/sg* /dev/bsg /dev/mmcblk* /dev/nbd* /dev/dm-* /dev/md* /dev/loop* "
      "/dev/mapper /dev/disk /dev/block")),
    (READ, "it has what is typed at the node", "/dev/input /dev/uinput"),
    (WRITTEN, "what is written there runs as root on the node",
     ("/etc /usr /lib64 /opt /run/systemd /run/udev /root/.profile /root/.bashrc /root/.config/systemd "
      "/var/spool/cron /var/spool/anacron /var/lib/cloud /var/lib/dkms /var/lib/dpkg /var/lib/snapd")),
    (WRITTEN, "what is written there runs as a user of the node",
     "/home/*/.profile /home/*/.bashrc /home/*/.config/systemd"),
    (WRITTEN, "what is written there changes the node's kernel and devices", "/sys"),
)  # fmt: skip
"""Access, danger, and places. A path counts if it is a place, lies in one or holds one. `*` is any part of one name."""
DEVICES = "container.devices"
HEAD_FILES = "/var/lib/sparkd/head-files"
"""Folder of files that the head of a cluster has sent with its recipe. It holds none of this node's own."""
_ALIASES = {"/var/run": "/run", **{f"/{name}": f"/usr/{name}" for name in ("bin", "lib", "sbin")}}
"""Folders that are symlinks on each node."""


def find_reach(
    container: Container, readable: Mapping[str, str], resolve: Callable[[str], str] = str
) -> Iterator[Issue]:
    """Warn of what the container reaches. `readable`: further paths, by key. `resolve` follows symlinks."""
    if container.privileged:
        reason = "the container is privileged: root in it is root on the node, with every device"
        hint = "RDMA needs no more than devices: [/dev/infiniband]"
        yield Issue("reach", False, "container.privileged", reason, hint)
    paths = [(key, path, READ) for key, path in readable.items()]
    for key, path, written in dict.fromkeys((*paths, *given_paths(container))):
        if path.startswith(f"{HEAD_FILES}/"):
            continue
        if danger := _find_danger(path, written) or _find_danger(resolve(path), written):
            reason = f"the container gets {path} of the node: {danger}"
            yield Issue("reach", False, key, reason, "give it no more than the engine needs")


def given_paths(container: Container) -> Iterator[tuple[str, str, bool]]:
    """Files and devices of the node that the container gets: key, path, and whether it may write there."""
    for volume in container.volumes:
        yield "container.volumes", volume.source, not volume.read_only
    for path in container.devices:
        yield DEVICES, path, WRITTEN


def _find_danger(path: str, written: bool) -> str:
    path = f"/{normpath(path).lstrip('/')}"
    if path == "/":
        return "it is all of its files"
    for alias, folder in _ALIASES.items():
        if is_below(path, alias):
            path = folder + path.removeprefix(alias)
    for access, danger, places in REACHES:
        if (written or access is READ) and any(_overlap(path, place) for place in places.split()):
            return danger
    return ""


def _overlap(path: str, place: str) -> bool:
    """Whether both are the same, or one lies in the other: only as many parts are compared as the shorter one has."""
    return all(map(fnmatchcase, path.split("/"), place.split("/")))
