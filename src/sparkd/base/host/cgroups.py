"""Control groups: the container and the systemd unit that a process runs in, and the kernel's memory charged to groups.

A user may give the groups below his own (user@1000.service) any name, that of a container too. So the owner of a
group's folder counts: docker's groups and systemd's own belong to root.
"""

import re
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from sparkd.base.host.files import Files

ROOT = "/sys/fs/cgroup"
_CONTAINER = re.compile(r"(?<![^/:-])[0-9a-f]{64}(?=(?:\.scope)?(?:/|$))")
"""docker/ID (cgroupfs), docker-ID.scope (systemd), libpod-ID.scope, cri-containerd-ID.scope: cgroup v1 and v2."""
_COUNT = re.compile(r"^(\w{1,40}) (\d{1,18})$", re.MULTILINE)
_LISTED = ("slab", "kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc", "zswap")
"""Parts of `kernel` in memory.stat that /proc/meminfo has, too."""
_UNIT = re.compile(r"(?!-)[A-Za-z0-9:_.\\@-]+\.(?:service|scope)")
"""A name that systemd accepts, and that is no option."""
_GROUP = re.compile(rf"{_UNIT.pattern}|(?!-)[A-Za-z0-9:_.\\@-]+\.slice")
_USER_MANAGER = re.compile(r"user@(\d{1,10})\.service")


class Group(Struct, frozen=True):
    container_id: str = ""
    """Full id of the innermost container; empty outside of containers, and where a user gave his group such a name."""
    unit: str = ""
    """A service or a scope."""
    manager_uid: str = ""
    """The user whose own manager runs that unit; empty for the system's. Its processes may have other uids."""


def read_group(files: Files, pid: int) -> Group:
    """The control group of a process. Raises OSError, such as one of `processes.GONE`."""
    text = files.text(f"/proc/{pid}/cgroup", limit=65536)
    container_id, _ = find_container(files, text)
    return Group(container_id, *systemd_unit(text))


def _parse_rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Number, controllers and path of each hierarchy in the text of /proc/PID/cgroup."""
    for line in filter(None, text.split("\n")):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield number, controllers, path


def find_container(files: Files, text: str) -> tuple[str, str]:
    """The innermost container in the text of /proc/PID/cgroup, and the folder of its group; empty outside of one."""
    for _, controllers, path in _parse_rows(text):
        if matches := list(_CONTAINER.finditer(path)):
            last_match = matches[-1]
            scope = ".scope" if path.startswith(".scope", last_match.end()) else ""
            if folder := _find_root_owned(files, controllers.removeprefix("name="), path[: last_match.end()] + scope):
                return last_match[0], folder
    return "", ""


def _find_root_owned(files: Files, hierarchy: str, path: str) -> str:
    """The folder of a group that root owns. Empty where another user does, and where there is no such group."""
    for mount_point in (f"{ROOT}/{hierarchy}", f"{ROOT}/unified"):
        with suppress(OSError):  # no such folder, or a user's that is too deep for a path
            return mount_point + path if files.stat(mount_point + path).uid in (0, files.stat(ROOT).uid) else ""
    return ""


def read_charged_bytes(files: Files) -> int | None:
    """Memory of the kernel for processes that /proc/meminfo has in no line: buffers of sockets and pipes, and
    CUDA's managed memory that a CPU has touched (uvm_linux.h of NVIDIA's open modules).

    Any user's processes may take it. cudaMalloc on a GB10 is charged to no group
    (Blackwellboy/model-serving-minefield#57). None without this counter: cgroup v1, Linux before 5.18, or a kernel
    whose command line leaves it out.
    """
    is_left_out = "cgroup.memory=" in (files.text_if_any("/proc/cmdline", limit=65536) or "")
    return None if is_left_out else _read_charge(files, ROOT)


def _read_charge(files: Files, folder: str) -> int | None:
    """Memory charged to one group and those below it, by the rules of `read_charged_bytes`."""
    counts = dict(_COUNT.findall(files.text_if_any(f"{folder}/memory.stat", limit=65536) or ""))
    if counts.get("kernel", "0") == "0":
        return None
    charged_bytes = {name: int(count) for name, count in counts.items()}
    listed_bytes = sum(charged_bytes.get(name, 0) for name in _LISTED)
    return max(0, charged_bytes["kernel"] - listed_bytes) + charged_bytes.get("sock", 0)


def find_charged(files: Files) -> tuple[str, int]:
    """The unit below a slice of the system to which most of `read_charged_bytes` is charged, and its bytes; ("", 0) if
    none can be read.
    """
    charged = [("", 0)]
    with suppress(OSError):
        slices = [f"{ROOT}/{name}" for name in files.names(ROOT) if name.endswith(".slice")]
        for folder in slices:
            charged += _list_charged(files, folder)
    return max(charged, key=lambda pair: pair[1])


def _list_charged(files: Files, folder: str) -> Iterator[tuple[str, int]]:
    with suppress(OSError):
        for unit in filter(_GROUP.fullmatch, files.names(folder)):
            with suppress(OSError):  # it has just ended
                yield unit, _read_charge(files, f"{folder}/{unit}") or 0


def is_frozen(files: Files, pid: int) -> bool:
    """Whether the kernel has frozen the process's group, as by `docker pause`; False after its end. Raises OSError."""
    for _, controllers, path in _parse_rows(files.text_if_any(f"/proc/{pid}/cgroup", limit=65536) or ""):
        states = [f"{ROOT}{path}/cgroup.events", f"{ROOT}/unified{path}/cgroup.events"]
        if "freezer" in controllers.split(","):  # of cgroup v1
            states = [f"{ROOT}/freezer{path}/freezer.state"]
        texts = [files.text_if_any(state, limit=4096) or "" for state in states]
        if any({"frozen 1", "FROZEN"} & {*text.splitlines()} for text in texts):
            return True
    return False


def systemd_unit(text: str) -> tuple[str, str]:
    """The unit in the text of /proc/PID/cgroup, empty outside of one, and the uid of the manager's user, if any."""
    for number, controllers, path in _parse_rows(text):
        parts = [part for part in path.split("/") if _UNIT.fullmatch(part)]
        if parts and (number == "0" or controllers == "name=systemd"):
            # Groups below a unit belong to it, except below a user's manager, which has units of its own.
            manager = _USER_MANAGER.fullmatch(parts[0]) if len(parts) > 1 else None
            return (parts[1], manager[1]) if manager else (parts[0], "")
    return "", ""
