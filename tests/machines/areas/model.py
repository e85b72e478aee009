"""The weights, the disks, and how the last boots ended."""

import json
import os
import shutil
from collections.abc import Mapping

from tests.machines.areas.base import MODEL, launches
from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level

SHARDS = tuple(f"model-{number:05}-of-00046.safetensors" for number in range(1, 47))
"""DeepSeek-V4-Flash: 149 GB in 46 shards ("DeepSeek V4 Flash on Dual DGX Spark: What Broke", Echo)."""
SHARD_BYTES = 3_240_000_000
INDEX = f"{MODEL}/model.safetensors.index.json"
GIB = 1 << 30
BOOT = "4be1a0d7-5c0e-4c39-9a86-0d8f7a4c1e02"
MOUNTS = """\
/dev/nvme0n1p2 / ext4 rw,relatime 0 0
/dev/nvme0n1p1 /boot/efi vfat rw,relatime 0 0
tmpfs /run tmpfs rw,nosuid,nodev,size=12753524k,mode=755 0 0
"""


def healthy(tree: Tree, rank: int) -> None:
    for shard in SHARDS:
        tree.safetensors(f"{MODEL}/{shard}", SHARD_BYTES)
    weight_map = {f"layers.{number}.w": shard for number, shard in enumerate(SHARDS)}
    tree.file(INDEX, json.dumps({"metadata": {"total_size": len(SHARDS) * SHARD_BYTES}, "weight_map": weight_map}))
    tree.file(f"{MODEL}/config.json", '{"architectures": ["DeepseekV4ForCausalLM"]}')
    tree.file(f"{MODEL}/tokenizer.json", "{}")
    tree.file(f"{MODEL}/tokenizer_config.json", "{}")
    for folder in ("/var/log", "/var/lib/docker", "/var/lib/containerd"):
        tree.folder(folder)
    mounts(tree, MOUNTS)
    disks(tree, free_gib=1900)
    tree.file("/proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    boots(tree, (False, "loading"), good={"kernel": "6.17.0-1014-nvidia"})


def mounts(tree: Tree, text: str) -> None:
    for process in ("1", "self"):
        tree.file(f"/proc/{process}/mounts", text)


def disks(tree: Tree, **free_gib: float) -> None:
    """Room by mount: `free_gib` is that of /, any other name that of a folder below it, with _ for /."""
    places = {"/" if name == "free_gib" else "/" + name.replace("_", "/"): gib for name, gib in free_gib.items()}
    record = {
        place: {"total_bytes": 3755 * GIB, "free_bytes": round(gib * GIB), "free_inodes": 240_000_000}
        for place, gib in places.items()
    }
    tree.file("/.sparkd/disks.json", json.dumps(record))


def boots(
    tree: Tree, *ended: tuple[bool, str], good: Mapping[str, str], tried: Mapping[str, str] | None = None
) -> None:
    """Boots before this one: whether the launch was left open, and in which phase."""
    made = [
        {"boot_id": f"before-{number}", "digest": _digest(tree), "phase": phase, "open": left_open}
        for number, (left_open, phase) in enumerate(ended)
    ]
    launches(tree, boots=made, tried=dict(tried or good), good=dict(good))


def _digest(tree: Tree) -> str:
    """Of the plan that the machine's configuration makes."""
    from sparkd.base.cluster.membership import resolve_context
    from sparkd.base.config import load_settings
    from sparkd.base.host import Host

    return resolve_context(load_settings({}, tree.root), None, Host(tree.root)).plan.digest


def _of(tree: Tree, name: str) -> str:
    return str(tree.root / f"{MODEL}/{name}".lstrip("/"))


def _shard_missing(tree: Tree) -> None:
    for shard in SHARDS[40:]:
        os.unlink(_of(tree, shard))
    tree.file(f"{MODEL}/.cache/huggingface/download/{SHARDS[40]}.9f1c.incomplete")


def _shard_cut_off(tree: Tree) -> None:
    os.truncate(_of(tree, SHARDS[7]), SHARD_BYTES // 2)


def _lfs_pointers(tree: Tree) -> None:
    for shard in SHARDS:
        tree.file(f"{MODEL}/{shard}", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3240000000\n")


def _download_cache(tree: Tree) -> None:
    folder = f"{MODEL}/snapshots/86f8a1"
    shutil.move(_of(tree, ""), _of(tree, "") + "-moved")
    tree.folder(MODEL)
    tree.folder(folder)
    tree.file(f"{MODEL}/refs/main", "86f8a1")


def _linked_away(tree: Tree) -> None:
    """The model lies on another disk, and a link below models_dir leads there: the container does not see it."""
    tree.folder("/mnt/nvme")
    shutil.move(_of(tree, ""), tree.root / "mnt/nvme/DeepSeek-V4-Flash")
    tree.link(MODEL, "/mnt/nvme/DeepSeek-V4-Flash")


def _copy_under_way(tree: Tree) -> None:
    tree.file(f"{MODEL}/.{SHARDS[0]}.Xa81bQ")


def _disk_full(tree: Tree) -> None:
    disks(tree, free_gib=0.01)


def _little_room(tree: Tree) -> None:
    disks(tree, free_gib=4)


def _read_only(tree: Tree) -> None:
    mounts(tree, MOUNTS.replace("ext4 rw,relatime", "ext4 ro,relatime,emergency_ro"))


def _power_cuts_while_serving(tree: Tree) -> None:
    boots(tree, *[(True, "serving")] * 4, good={"kernel": "6.17.0-1014-nvidia"})


def _froze_while_loading(tree: Tree) -> None:
    boots(tree, (True, "loading"), good={"kernel": "6.17.0-1014-nvidia"})


def _freezes_at_each_load(tree: Tree) -> None:
    good = {"kernel": "6.17.0-1014-nvidia", "driver": "580.142", "args.gpu-memory-utilization": "0.85"}
    tried = good | {"kernel": "7.0.0-1019-nvidia", "args.gpu-memory-utilization": "0.90"}
    boots(tree, *[(True, "loading")] * 3, good=good, tried=tried)


FAULTS = (
    Fault("shards-missing", _shard_missing, Level.BLOCK, "weights", says="(and 5 more)", also=("model-memory",)),
    Fault("shard-cut-off", _shard_cut_off, Level.BLOCK, "weights", says="is cut off"),
    Fault("git-lfs-pointers", _lfs_pointers, Level.BLOCK, "weights", says="lfs pull", also=("model-memory",)),
    Fault(
        "download-cache-as-model",
        _download_cache,
        Level.BLOCK,
        "weights",
        says="snapshots/86f8a1",
        also=("model-memory",),
    ),
    Fault("model-linked-away", _linked_away, Level.BLOCK, "weights", says="/mnt/nvme"),
    Fault("copy-under-way", _copy_under_way, Level.WARN, "weights"),
    Fault("disk-full", _disk_full, Level.BLOCK, "disk", says="10 MiB free on /"),
    Fault("little-room", _little_room, Level.WARN, "disk", says="compile caches"),
    Fault("read-only-disk", _read_only, Level.BLOCK, "disk", says="read-only"),
    Fault("power-cuts-while-serving", _power_cuts_while_serving, Level.WARN, "last-boot", says="serving"),
    Fault("froze-while-loading", _froze_while_loading, Level.WARN, "last-boot", says="loading"),
    Fault("freezes-at-each-load", _freezes_at_each_load, Level.BLOCK, "last-boot", says="7.0.0-1019-nvidia"),
)
