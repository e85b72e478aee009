"""The compilation of custom_ops ["all"]: the caches that spare it, and the memory that it takes while weights load."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparkd.agent.preflight.check import Verdict, block, warn
from sparkd.base.host import caches
from sparkd.base.host.caches import Folder
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.model import Cache
from sparkd.base.recipes.schema import Volume
from sparkd.base.vllm.container_paths import CUSTOM_OPS_CACHES, cache_folders, is_below

COMPILE_BYTES = 3 * GIB
"""Memory beside the engine's share that a start needs, to compile custom_ops ["all"]: with no more it is blocked.

"Only ~3 GiB RAM available during model load": two machines froze ("Two-Node DGX Spark Cluster: Running DeepSeek V4
Flash at 16 TPS", Tobias Weiss). No report shows a need of more. A pair just booted compiled a wiped cache at a share
of 0.85 of 121 GiB ("Another dual-Spark data point", NVIDIA developer forum). A third, which kept vLLM's cache alone,
reports 16 s of torch.compile and a start of 8 minutes at 0.90; 116 GiB were free, and 107.7 were the share ("DeepSeek
V4 Flash on Dual DGX Spark", Echo). While weights load more is available, since the KV cache is allocated after them.
"""
NOT_KEPT = Folder("", "missing")
"""Stands for a cache that no mount keeps."""


def list_paths(
    env: Mapping[str, str], volumes: Iterable[Volume], plan_caches: Iterable[Cache], image_id: str
) -> Iterator[str]:
    """Paths on the node of CUSTOM_OPS_CACHES, in their order; an empty one where no mount keeps the cache."""
    mounts = {volume.target: volume.source for volume in volumes if not volume.read_only}
    mounts |= {cache.target: caches.path(image_id, cache.name) for cache in plan_caches}
    folders = cache_folders(env)
    for folder in (folders[name] for name in CUSTOM_OPS_CACHES):
        target = max((mount for mount in mounts if is_below(folder, mount)), key=len, default=None)
        yield mounts[target] + folder.removeprefix(target) if target else ""


def describe_missing(folders: Sequence[Folder], *, compiled_before: bool) -> str:
    """The caches that a start has to fill, such as `triton empty`; empty where it compiles nothing.

    `folders`: of CUSTOM_OPS_CACHES, in their order. `compiled_before`: whether the last good start compiled the same.
    """
    missing = {
        name: "not kept" if folder == NOT_KEPT else "empty"
        for name, folder in zip(CUSTOM_OPS_CACHES, folders, strict=True)
        if folder.kind != "folder" or folder.empty
    }
    # This model does not use a cache that the last good start left empty. Where one is not kept, that start proves
    # nothing: it compiled for this cache, too.
    if compiled_before and NOT_KEPT not in folders and len(missing) < len(folders):
        return ""
    return ", ".join(f"{name} {problem}" for name, problem in missing.items())


def judge_memory(missing: str, engine_bytes: int, available_bytes: int, total_bytes: int) -> Verdict:
    """Judge the memory for a start that fills the missing caches. `engine_bytes`: the engine's share."""
    needed_bytes = engine_bytes + COMPILE_BYTES
    reason = (
        f'custom_ops ["all"] compiles from scratch ({missing}) while weights load: '
        f"{size(available_bytes)} available, more than {size(needed_bytes)} needed ({size(engine_bytes)} and "
        f"{size(COMPILE_BYTES)} to compile)"
    )
    if available_bytes > needed_bytes:
        return warn(reason, "leave this node to itself until it serves: with 3 GiB available two machines froze")
    share = max(0, available_bytes - COMPILE_BYTES) * 100 // max(1, total_bytes) / 100
    hint = f"lower gpu-memory-utilization to {share:g} for the first start, on all nodes; or take custom_ops out"
    return block(reason, hint, shortage_bytes=needed_bytes - available_bytes)
