"""LaunchPlan: the complete description of one rank's container; and the API's port, which nothing else may have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sparkd.base.config import Settings
from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.additions import HCAS
from sparkd.base.recipes.schema import Container
from sparkd.base.vllm.args import DATA_SIZE, JsonValue, parse_count
from sparkd.base.vllm.flag import parse_json

if TYPE_CHECKING:
    from sparkd.base.recipes.image import Lines

    Assert = str | Lines
else:
    Assert = Any  # msgspec reads no such union

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
    only counts in the agreement: another node needs it.
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
    def image_to_run(self) -> str:
        return self.image_id or self.image

    @property
    def counted_as(self) -> str:
        """Key by which the launch history counts this plan's launches, those with a rollback's image separately."""
        return f"{self.digest} {self.image_id}".rstrip()


def pull_command(folder: str, repo: str = "", revision: str = "") -> str:
    """The command that downloads a repository into a folder; with a placeholder where the repository is not known.

    It names no recipe: the node may have none of that name, or one that has changed since the plan was chosen.
    """
    options = (*(("--revision", revision) if revision else ()), "--to", folder)
    return shlex.join(("sudo", "sparkd", "model", "pull", repo or "ORGANISATION/NAME", *options))


API_PORT = 8000
"""vLLM's own (vllm/entrypoints/openai/cli_args.py)."""
HIGHEST_PORT = 65535
_VARIABLE = re.compile(r"VLLM_\w+_PORT")
"""Variables with a port. VLLM_PORT does not match: from that port on, vLLM looks for a free one."""


def api_port(recipe: str, args: Mapping[str, JsonValue], env: Mapping[str, str], settings: Settings) -> int:
    """The port of the API. Raises ConfigError where that is no port, or where any port is given twice.

    `args` and `env` have no placeholders left.
    """
    text = args.get("port")
    port = parse_count(API_PORT if text is None else text, HIGHEST_PORT)
    if not port:
        raise ConfigError(f"recipe {recipe}: args.port is {text!r}: a number from 1 to {HIGHEST_PORT} is needed")
    taken = {number: key for key, number in settings.ports.items()}
    for key, value in [("args.port", port), *_further_ports(args, env)]:
        number = parse_count(value, HIGHEST_PORT)
        if number and (other := taken.setdefault(number, key)) != key:
            raise ConfigError(f"recipe {recipe}: {key} is {number}, the port of {other}", "change one")
    return port


def _further_ports(args: Mapping[str, JsonValue], env: Mapping[str, str]) -> Iterator[tuple[str, JsonValue]]:
    """Keys and values of further ports. Those of data parallelism count only with more than one of its ranks."""
    parallel = (parse_count(args.get(DATA_SIZE), HIGHEST_PORT) or 1) > 1
    for flag, value in args.items():
        if flag.endswith("-port") and (parallel or not flag.startswith("data-parallel-")):
            yield f"args.{flag}", value
    transfer = args.get("kv-transfer-config")
    table = parse_json(transfer) if isinstance(transfer, str) else transfer
    if isinstance(table, dict):
        yield "args.kv-transfer-config.kv_port", table.get("kv_port")
    yield "args.kv-transfer-config.kv_port", args.get("kv-transfer-config.kv_port")
    yield from ((f"env.{name}", text) for name, text in env.items() if _VARIABLE.fullmatch(name))
