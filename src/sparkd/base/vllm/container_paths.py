"""Paths in the container: what a mount may cover, and where the engine and its compilers keep what they compiled."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from sparkd.base.vllm.args import check_path

RESERVED_TARGETS = ("/models", "/run/sparkd-launch.sh", "/run/sparkd-user-script", "/run/sparkd-secrets")
"""Targets of sparkd's own mounts."""
SYSTEM_TARGETS = ("/run", "/proc", "/dev", "/sys")
"""Folders that docker provides in each container."""
_SHARED = ("/etc", "/home", "/opt", "/root", "/srv", "/tmp", "/usr", "/usr/local", "/var", "/var/tmp")  # noqa: S108
"""Folders with more in them than a cache: a cache that a variable puts directly there is not kept."""

FILE_FLAGS = ("chat-template", "reasoning-parser-plugin", "tool-parser-plugin")
"""Flags of vLLM that name a file."""
HOME = "/root"
"""The home of the container's user, where the recipe's environment has no HOME. Images of vLLM run as root."""
CUSTOM_OPS_CACHES = ("vllm", "tilelang")
"""Caches of what custom_ops ["all"] compiles: vLLM's graphs, and TileLang's kernels, whose compiler froze two machines
("Two-Node DGX Spark Cluster: Running DeepSeek V4 Flash at 16 TPS", Tobias Weiss)."""


def check_target(raw: str) -> str:
    """The target of a mount, normalized as docker does it: without doubled slashes and dots. Raises ValueError."""
    path = check_path(raw, "it")
    plain = _normalize(path)
    if plain == "/" or any(is_below(plain, reserved) for reserved in RESERVED_TARGETS):
        raise ValueError(f"{path} in the container is sparkd's own: choose another")
    for reserved in SYSTEM_TARGETS:
        if is_below(plain, reserved):
            raise ValueError(f"{path} in the container is the system's own: choose another outside of {reserved}")
    return plain


def _normalize(path: str) -> str:
    """The path without doubled slashes and dots; a relative path stays one."""
    root = "/" if path.startswith("/") else ""
    return root + "/".join(part for part in path.split("/") if part not in ("", "."))


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or in it."""
    return f"{path}/".startswith(f"{folder}/")


def cache_folders(env: Mapping[str, str], *, gpu: bool = True) -> dict[str, str]:
    """The folder of each compiler's cache, by the cache's name, found as the programs themselves find it; normalized.

    Sources: vllm/envs.py; torch/_inductor/runtime/cache_dir_utils.py; flashinfer/jit/env.py; triton/knobs.py;
    tilelang/env.py; DeepGEMM's README, whose cache vLLM moves into its own; CUDA's programming guide.
    """
    home = env.get("HOME") or HOME
    vllm = env.get("VLLM_CACHE_ROOT") or f"{env.get('XDG_CACHE_HOME') or f'{home}/.cache'}/vllm"
    folders = {"vllm": vllm, "inductor": env.get("TORCHINDUCTOR_CACHE_DIR") or "/tmp/torchinductor_root"}  # noqa: S108
    if gpu:
        folders |= {
            "flashinfer": f"{env.get('FLASHINFER_WORKSPACE_BASE') or home}/.cache/flashinfer",
            "triton": env.get("TRITON_CACHE_DIR") or f"{env.get('TRITON_HOME') or home}/.triton",
            "tilelang": env.get("TILELANG_CACHE_DIR") or f"{home}/.tilelang",
            "deep_gemm": env.get("DG_JIT_CACHE_DIR") or f"{home}/.deep_gemm",
            "cuda": env.get("CUDA_CACHE_PATH") or f"{home}/.nv/ComputeCache",
        }
    return {name: _normalize(path) for name, path in folders.items()}


def kept_caches(
    wanted: Mapping[str, str | None], env: Mapping[str, str], mounted: Iterable[str], *, gpu: bool
) -> dict[str, str]:
    """The caches to mount, target by name: those `wanted` by the recipe, and others that no mount keeps already.

    None in `wanted` leaves a cache out. Folders that no mount may cover are left out, too, and those whose place
    differs between nodes, since ranks must agree on it.
    """
    targets = {name: target for name, target in wanted.items() if target is not None}
    for name, folder in cache_folders(env, gpu=gpu).items():
        if name in wanted or "{" in folder:
            continue
        with suppress(ValueError):
            target = check_target(folder)
            if target not in _SHARED and not any(is_below(target, mount) for mount in (*mounted, *targets.values())):
                targets[name] = target
    return targets
