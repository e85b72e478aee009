"""LaunchPlan: the complete description of one rank's container."""

import shlex
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sparkd.base.recipes.additions import HCAS
from sparkd.base.recipes.schema import Container

if TYPE_CHECKING:
    from sparkd.base.recipes.image import Lines

    Assert = str | Lines
else:
    Assert = Any  # msgspec can't decode `str | Lines`; the recipe's schema has checked the value.

PLAN_SCHEMA = 5
"""A value of the digest, so that versions of sparkd that plan differently never agree."""


class Node(Struct, frozen=True):
    rank: int
    address: str
    """Fabric address; 127.0.0.1 in a cluster of one node."""
    head_address: str
    cluster_size: int
    interface: str = ""
    hcas: tuple[str, ...] = ()
    compile_jobs: str = "1"
    """Number of compilers at once for which its memory has room; 1 until that has been read."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    @property
    def role(self) -> str:
        return "head" if self.is_head else "worker"


class Secret(Struct, frozen=True):
    """Environment variable `name` holds the content of `file`, which the container reads at launch.

    While the container serves, a copy for the next agent is in a folder of root's below /run. A secret without a file
    is not mounted here. It is listed so that all nodes compute the same digest.
    """

    name: str
    file: str


class Cache(Struct, frozen=True):
    """Folder `name` below /var/lib/sparkd/cache/<image id>/, mounted writable at `target`.

    The name begins with `_head/` where the head of a cluster decided the plan.
    """

    name: str
    target: str


class LaunchPlan(Struct, frozen=True):
    recipe: str
    role: str
    node: Node
    image: str
    entrypoint: tuple[str, ...]
    argv: tuple[str, ...]
    """Program and arguments of the engine, which the script execs; under Ray only on the head."""
    env: tuple[tuple[str, str], ...]
    secrets: tuple[Secret, ...]
    container: Container
    """The recipe's container with the model's mount as its first volume."""
    caches: tuple[Cache, ...]
    script: str
    """Text of the launch script."""
    user_script: str
    """Host path of `engine.script`; empty for a generated script."""
    model_path: str
    """Host path of the model's folder."""
    served_name: str
    api_host: str
    """Address where sparkd reaches the engine: never 0.0.0.0."""
    api_port: int
    master_port: int
    memory_bytes: int | None
    """Demand of the rank as the recipe gives it. None: gpu_memory_utilization x the GPU's total."""
    gpu_memory_utilization: float | None
    shared: tuple[tuple[str, str], ...]
    """Values of settings and recipe common to all ranks, sorted by name: placeholders unfilled, secrets hidden."""
    digest: str
    """SHA-256 of `shared`: available before docker and the model's folder have been read."""
    sysctls: tuple[tuple[str, str], ...] = ()
    """Kernel settings that the recipe recommends. They are not part of the digest."""
    kv_cache_tokens: int | None = None
    """Expected size of the KV cache; None if the recipe gives none or the settings change it."""
    asserts: tuple[Assert, ...] = ()
    """Requirements on the image, checked in a container of its own."""
    image_build: str = ""
    """Command or text by which the recipe's image is built. Empty for another image, and for one from a registry."""
    model_pull: str = ""
    """Command that downloads the model into its folder."""
    extra_flags: tuple[str, ...] = ()
    """Flags of a fork of vLLM, missing in the table of base/vllm/flag.py."""
    on_ray: bool = False
    """Whether Ray connects the ranks. Only the head then runs an engine."""
    insists_on_hcas: bool = False
    """Whether recipe or settings name the node's RDMA devices; those that sparkd adds only help NCCL to choose."""
    hosts: tuple[tuple[str, str], ...] = ()
    """Address and name of each of several nodes, for /etc/hosts in the container."""
    gpus: int = 1
    """GPUs that this node must have, one for each of its ranks, where the container sees GPUs at all."""
    image_id: str = ""
    """Id of the image that a rollback restores; empty: run `image`."""
    vllm: str = ""
    """Release of vLLM in the image, as the recipe names it; empty for another image."""

    @property
    def names_hcas(self) -> bool:
        """Whether a shared value contains the placeholder of the RDMA devices."""
        return any(HCAS in text for _, text in self.shared)

    @property
    def named_files(self) -> tuple[tuple[str, str], ...]:
        """Files of the node that the plan names, each with its use before its path: the user's script, and secrets."""
        script = (("engine.script", self.user_script),) if self.user_script else ()
        return (*script, *((f"secret {secret.name} in", secret.file) for secret in self.secrets))

    @property
    def container_name(self) -> str:
        return f"sparkd-rank{self.node.rank}"

    @property
    def image_to_run(self) -> str:
        return self.image_id or self.image

    @property
    def release_names(self) -> tuple[str, str]:
        """Texts that may name the release of vLLM in the image, the surer one first."""
        return self.vllm, self.image

    @property
    def backoff_key(self) -> str:
        """Key by which the launch history counts this plan's launches, those with a rollback's image separately."""
        return f"{self.digest} {self.image_id}".rstrip()


def pull_command(folder: str, repo: str = "", revision: str = "") -> str:
    """The command that downloads a repository into a folder; with a placeholder where the repository is not known.

    It names no recipe: the node may have none of that name, or one that has changed since the plan was chosen.
    """
    options = (*(("--revision", revision) if revision else ()), "--to", folder)
    return shlex.join(("sudo", "sparkd", "model", "pull", repo or "ORGANISATION/NAME", *options))
