"""Memory beyond the sum: swap, limits, who holds much."""

from tests.machines.areas import base, docker, gpu
from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level

SHM = "tmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64{size} 0 0\n"
CONTAINER = "5d" * 32
MEMORY_STAT = """anon 2147483648
file 4294967296
kernel 943718400
kernel_stack 12582912
pagetables 52428800
sec_pagetables 0
percpu 16777216
sock 65536
vmalloc 4194304
shmem 8388608
zswap 0
slab 838860800
"""
"""As cgroup v2 has it: nearly all of the kernel's part is slab."""
SYSCTLS = {
    "vm.min_free_kbytes": "90112",
    "vm.overcommit_memory": "0",
    "vm.swappiness": "60",
    "kernel.pid_max": "4194304",
}
"""As Ubuntu 24.04 sets them by itself on a machine of this size."""


def healthy(tree: Tree, rank: int) -> None:
    tree.file("/proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
    mounts(tree)
    tree.file("/sys/fs/cgroup/memory.stat", MEMORY_STAT)
    for name, value in SYSCTLS.items():
        sysctl(tree, name, value)
    tree.file("/usr/lib/systemd/systemd-logind", "", mode=0o755)
    tree.file("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes\n")
    tree.file("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nspark:x:1000:1000::/home/spark:/bin/bash\n")
    tree.process(900, "containerd", cgroup="0::/system.slice/containerd.service", private_kib=52_000)
    tree.process(1500, "gnome-shell", cgroup=session("app-gnome-shell.scope"), private_kib=310_000)


def mounts(tree: Tree, size: str = "") -> None:
    before = "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\ntmpfs /run tmpfs rw,nosuid,nodev,size=12753524k,mode=755 0 0\n"
    tree.file("/proc/self/mounts", before + SHM.format(size=size))


def sysctl(tree: Tree, name: str, value: str) -> None:
    tree.file(f"/proc/sys/{name.replace('.', '/')}", f"{value}\n")


def session(unit: str) -> str:
    return f"0::/user.slice/user-1000.slice/user@1000.service/app.slice/{unit}"


def recipe(tree: Tree, text: str) -> None:
    """The recipe of the node, changed."""
    name = "deepseek-v4-flash-balanced"
    tree.file(f"/etc/sparkd/recipes/{name}.yaml", f"schema: 1\nname: {name}\nextends: {name}\n{text}")


def unprivileged(tree: Tree, ulimits: str) -> None:
    recipe(tree, f"container: {{ulimits: {ulimits}}}\n")


def _swap_on(tree: Tree) -> None:
    with (tree.root / "proc/swaps").open("a") as swaps:
        swaps.write("/swap.img                               file\t\t16777212\t\t1048576\t\t-2\n")


def _zram(tree: Tree) -> None:
    with (tree.root / "proc/swaps").open("a") as swaps:
        swaps.write("/dev/zram0                              partition\t63767612\t0\t\t100\n")


def _driver_holds_a_part(tree: Tree) -> None:
    """The plan of its recipe would no longer fit; this smaller one does."""
    recipe(tree, "memory_bytes: 85899345920\n")
    base.memory(tree, free=92.0, available=92.5)


def _driver_holds_it_beside_a_desktop(tree: Tree) -> None:
    base.memory(tree, free=12.0, available=13.0)
    tree.process(1400, "Xorg", cgroup=session("session.slice"), opened=("/dev/nvidia0",))
    tree.process(
        1600, "nvidia-persiste", cgroup="0::/system.slice/nvidia-persistenced.service", opened=("/dev/nvidia0",)
    )
    tree.process(1700, "dcgm-exporter", cgroup="0::/system.slice/dcgm-exporter.service", opened=("/dev/nvidia0",))
    gpu.answer(tree, names=["NVIDIA GB10"], driver=gpu.DRIVER, processes=[{"pid": 1400, "used_bytes": 43 << 20}])


def _little_free(tree: Tree) -> None:
    """As when page cache fills the rest, after another load."""
    base.memory(tree, free=3.5, available=113.0, Cached=110.0)
    tree.buddyinfo(large_gib=3.4, small_gib=0.1)


def _fragmented(tree: Tree) -> None:
    """Seven days of serving: 112 GiB are free, and hardly any block of 2 MiB."""
    tree.buddyinfo(large_gib=0.5, small_gib=112)


def _tenants(tree: Tree) -> None:
    base.memory(tree, free=78.0, available=79.0, AnonPages=36.0)
    tree.process(2100, "ollama", cgroup="0::/system.slice/ollama.service", private_kib=20 << 20)
    tree.process(2200, "firefox", cgroup=session("app-gnome-firefox-2200.scope"), private_kib=3 << 20)
    tree.process(2201, "Web Content", cgroup=session("app-gnome-firefox-2200.scope"), private_kib=2 << 20)
    tree.process(2300, "python3", cgroup=f"0::/system.slice/docker-{CONTAINER}.scope", private_kib=9 << 20)


def _shm_remounted_tiny(tree: Tree) -> None:
    mounts(tree, ",size=65536k")


def _shm_small(tree: Tree) -> None:
    mounts(tree, ",size=524288k")


def _own_shm_small(tree: Tree) -> None:
    recipe(tree, "container: {ipc: private, shm_bytes: 67108864}\n")


def _orphaned_segments(tree: Tree) -> None:
    """Left by a killed engine: no process has them open or mapped."""
    for name in ("psm_0a1b2c3d", "sem.mp-a8x_0lk2", "nccl-Ab12cD"):
        tree.segment(name, "x" * (1 << 20))


def _memlock(tree: Tree) -> None:
    unprivileged(tree, "{memlock: 8388608}")


def _memlock_of_docker(tree: Tree) -> None:
    unprivileged(tree, "{memlock: null}")


def _too_much_kept_free(tree: Tree) -> None:
    sysctl(tree, "vm.min_free_kbytes", "12582912")


def _never_overcommitted(tree: Tree) -> None:
    sysctl(tree, "vm.overcommit_memory", "2")


def _sysctl_differs(tree: Tree) -> None:
    recipe(tree, "host: {sysctls: {vm.swappiness: 10, vm.overcommit_memory: 0}}\n")


def _sysctl_unknown(tree: Tree) -> None:
    recipe(tree, "host: {sysctls: {vm.compaction_proactiveness: 0}}\n")


def _unreadable_setting(tree: Tree) -> None:
    sysctl(tree, "kernel.pid_max", "many")


def _segments_of_who_logs_out(tree: Tree) -> None:
    path = tree.root / f".sparkd/docker/images/{docker.IMAGE}/json.json"
    path.write_text(path.read_text().replace('"Config": {', '"Config": {"User": "1000:1000", '))


FAULTS = (
    Fault("swap-on", _swap_on, Level.WARN, "swap", says="sudo swapoff -a"),
    Fault("swap-in-memory", _zram, Level.WARN, "swap", says="in memory", rank=1),
    Fault("driver-holds-a-part", _driver_holds_a_part, Level.WARN, "memory-held", says="reboot"),
    Fault(
        "driver-holds-it-beside-a-desktop",
        _driver_holds_it_beside_a_desktop,
        Level.BLOCK,
        "unified-memory",
        says="end pid 1400 (Xorg), pid 1700 (dcgm-exporter)",
        also=("memory-held",),
    ),
    Fault("memory-fragmented", _fragmented, Level.WARN, "memory-fragmented", says="512 MiB of 112.5 GiB"),
    Fault(
        "little-free",
        _little_free,
        Level.WARN,
        "memory-fragmented",
        says="too little is free",
        also=("page-cache", "unified-memory"),
    ),
    Fault("others-hold-much", _tenants, Level.WARN, "other-tenants", says="ollama.service", also=("unified-memory",)),
    Fault("shm-remounted-tiny", _shm_remounted_tiny, Level.BLOCK, "shm-size", says="remount"),
    Fault("shm-remounted-tiny-on-a-worker", _shm_remounted_tiny, Level.WARN, "shm-size", rank=1),
    Fault("shm-small", _shm_small, Level.WARN, "shm-size", says="NCCL"),
    Fault("shm-of-its-own-small", _own_shm_small, Level.BLOCK, "shm-size", says="container.shm_bytes"),
    Fault("orphaned-segments", _orphaned_segments, Level.WARN, "shared-memory", says="unlink", of_root=True),
    Fault("memlock-small", _memlock, Level.WARN, "memlock", says="may lock 8 MiB"),
    Fault("memlock-left-to-docker", _memlock_of_docker, Level.WARN, "memlock", says="by null in the recipe"),
    Fault("too-much-kept-free", _too_much_kept_free, Level.WARN, "kernel-settings", says="12.0 GiB"),
    Fault("never-overcommitted", _never_overcommitted, Level.WARN, "kernel-settings", says="overcommit"),
    Fault("sysctl-not-as-in-the-recipe", _sysctl_differs, Level.WARN, "kernel-settings", says="sparkd tune apply"),
    Fault("sysctl-of-another-kernel", _sysctl_unknown, Level.WARN, "kernel-settings", says="no such"),
    Fault("odd-kernel-setting", _unreadable_setting, Level.UNKNOWN, "kernel-settings", says="many"),
    Fault(
        "segments-of-who-logs-out",
        _segments_of_who_logs_out,
        Level.WARN,
        "remove-ipc",
        says="enable-linger",  # words: keep
        also=("compile-cache",),
    ),
)
