"""LaunchPlan: what a rank's container will be, computed from recipe, settings and node. Pure."""

from __future__ import annotations

from msgspec import Struct

PLAN_SCHEMA = 2
"""Part of the digest: two sparkd versions that plan differently never agree by accident."""


class Node(Struct, frozen=True):
    """What the plan knows of the node it is for."""

    rank: int
    address: str
    """Fabric address; 127.0.0.1 where the cluster is this node alone."""
    head_address: str
    cluster_size: int
    interface: str = ""
    hcas: tuple[str, ...] = ()


class Mount(Struct, frozen=True):
    source: str
    target: str
    read_only: bool = True


class Ulimit(Struct, frozen=True):
    """`soft` and `hard` in the limit's own unit; -1 is unlimited."""

    name: str
    soft: int
    hard: int


class Secret(Struct, frozen=True):
    """Environment variable `name` gets the content of `file`, read in the container at launch and kept nowhere else."""

    name: str
    file: str


class Cache(Struct, frozen=True):
    """Folder `name` below /var/lib/sparkd/cache/<image id>/, mounted writable at `target`."""

    name: str
    target: str


class LineCount(Struct, frozen=True):
    """What the image must hold: so many lines of a file that match a pattern of grep's."""

    file: str
    pattern: str
    times: int

    def __str__(self) -> str:
        return f"{self.times} line(s) of {self.file} match {self.pattern}"


Assertion = str | LineCount
"""A shell command that must succeed in the container, or a count."""


class ContainerSpec(Struct, frozen=True):
    """Options of `docker create`. Restart policy and log driver are not choices: `no`, and a bounded one."""

    gpus: str
    """"all" or "none"."""
    ipc: str
    """"host", "private" or "shareable"."""
    network: str
    privileged: bool
    init: bool
    shm_bytes: int | None
    memory_limit_bytes: int | None
    ulimits: tuple[Ulimit, ...]
    devices: tuple[str, ...]
    mounts: tuple[Mount, ...]


class LaunchPlan(Struct, frozen=True):
    """One rank, ready to be launched."""

    recipe: str
    role: str
    node: Node
    image: str
    entrypoint: tuple[str, ...]
    argv: tuple[str, ...]
    """Program and arguments of the engine, which the script execs; under Ray the head's alone does."""
    env: tuple[tuple[str, str], ...]
    secrets: tuple[Secret, ...]
    container: ContainerSpec
    caches: tuple[Cache, ...]
    script: str
    """Text of /run/sparkd/launch.sh."""
    user_script: str
    """Host path of `engine.script`; empty where the script is generated."""
    model_path: str
    """Host path of the model's folder."""
    served_name: str
    api_host: str
    """Address that sparkd asks the engine on: never 0.0.0.0."""
    api_port: int
    master_port: int
    memory_bytes: int | None
    """What the recipe says the rank takes; None: gpu_memory_utilization x the GPU's total."""
    gpu_memory_utilization: float | None
    shared: tuple[tuple[str, str], ...]
    """What settings and recipe give to all ranks alike, by name, sorted: placeholders unfilled, no secret's value."""
    digest: str
    """Of `shared` alone: known before docker and the model's folder have been looked at."""
    sysctls: tuple[tuple[str, str], ...] = ()
    """Settings of the kernel that the recipe asks for. They are the node's own concern: no part of the digest."""
    kv_cache_tokens: int | None = None
    """Size of the KV cache that the recipe expects; None where it says none, or where settings make it another."""
    asserts: tuple[Assertion, ...] = ()
    """What the launch script asks of the image before the engine starts. The script holds them already."""
    extra_flags: tuple[str, ...] = ()
    """Flags of a fork, which the table of vLLM's own says nothing of."""
    on_ray: bool = False
    """Whether Ray joins the nodes: only the head's rank has an engine then."""
    image_id: str = ""
    """Of the image that a rollback brings back, whatever `image` names by now; empty where that is the one to run."""

    @property
    def image_to_run(self) -> str:
        """What docker is to be asked for."""
        return self.image_id or self.image

    @property
    def counted_as(self) -> str:
        """Whose launches are counted: with the image of then a plan is not the one that failed with that of now."""
        return f"{self.digest} {self.image_id}".rstrip()
