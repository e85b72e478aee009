"""Schema 1 of recipes: keys, bounds and descriptions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, Strict, model_validator

from sparkd.base.config import types as t
from sparkd.base.config.types import Section
from sparkd.base.recipes import types as r
from sparkd.base.recipes.additions import ADDED_LIMITS, ADDED_SHM_BYTES
from sparkd.base.recipes.image import Assertion, Build, BuildForm, Text
from sparkd.base.vllm.args import normalize_flag
from sparkd.base.vllm.container_paths import is_below
from sparkd.base.vllm.logprobs import TEXT_LOGPROB

KV_CACHE_TOKENS = "kv_cache_tokens"
"""Key in `expect`: the "KV cache size" in vLLM's log."""
WEIGHTS_GB = "weights_gb"
"""Key in `expect`: the weights of one rank, as vLLM logs them ("Model loading took")."""
PLACEHOLDER = re.compile(r"\{((?:node|head|cluster|model)\.[A-Za-z0-9_]*)\}")
"""A placeholder such as `{node.address}`, in a flag or a variable. Other braces stay, because JSON contains many."""
_VLLM = re.compile(r"/python3[\d.]{0,5}(?:/(?:site|dist)-packages(?:/vllm(?:/.*)?)?)?\Z")
"""Python's folder of packages, or what is in vLLM's."""
_PYTHONS = ("/usr/lib/python3", "/usr/local/lib/python3", "/opt/venv/lib")
"""Where images have that folder: a mount above it covers it."""
_SEARCH_PATHS = ("PATH", "PYTHONPATH")


def has_placeholder(text: str) -> bool:
    return PLACEHOLDER.search(text) is not None


_ULIMITS = Literal[
    "as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
    "rttime", "sigpending", "stack",
]  # fmt: skip


class Limit(Section):
    """A limit of resources, soft and hard; -1 is unlimited."""

    soft: int = Field(ge=-1, le=2**63 - 1, description="The limit that is in force.")
    hard: int = Field(ge=-1, le=2**63 - 1, description="How far a program may raise it.")

    @model_validator(mode="after")
    def _check_order(self) -> Limit:
        if self.hard >= 0 and not 0 <= self.soft <= self.hard:
            raise ValueError(f"soft, {self.soft}, must be at most hard, {self.hard}: else no container starts")
        return self


class Volume(Section):
    """A file or folder of the node, seen in the container."""

    source: t.AbsolutePath = Field(description="Path on the node. It must exist: sparkd makes none.")
    target: r.Target = Field(description="Path in the container.")
    read_only: bool = Field(description="Whether the container may only read it.")


def _parse_limit(raw: object) -> object:
    if isinstance(raw, str):
        raise ValueError("must be a number, or soft and hard; -1 is unlimited")
    return {"soft": raw, "hard": raw} if isinstance(raw, int) and not isinstance(raw, bool) else raw


def _parse_volume(raw: object) -> object:
    """Parses docker's short form; `ro` or `rw` is required."""
    if not isinstance(raw, str):
        return raw
    parts = re.fullmatch(r"([^:]*):([^:]*):(ro|rw)", raw)
    if parts is None:
        raise ValueError("must be SOURCE:TARGET:ro or SOURCE:TARGET:rw")
    return {"source": parts[1], "target": parts[2], "read_only": parts[3] != "rw"}


class Model(Section):
    """The weights."""

    path: r.ModelPath = Field("", description="Folder of the model: below engine.models_dir, or an absolute path.")
    repo: r.RepoName = Field("", description="Where Hugging Face has it: what `sparkd model pull` downloads.")
    revision: r.Revision = Field("", description="Branch, tag or commit to download. Empty: the newest files.")
    served_name: r.ServedName = Field("", description="Name that the endpoint serves it as. Empty: the folder's name.")
    aliases: Annotated[tuple[r.Alias, ...], Strict(False)] = Field((), description="Further names that it answers to.")
    random_weights: bool = Field(False, description="A model for tests, in whose smoke test known texts are skipped.")


class Image(Section):
    """The container image that the engine runs in."""

    ref: t.ImageOrEmpty = Field("", description="Name and tag, or digest, of an image that is on every node.")
    vllm: Annotated[str, t.matching(r"(0\.\d{1,3}(\.\d{1,3})?)?", 'a release in quotes, such as "0.29"')] = Field(
        "",
        description="Release of vLLM in this image: its defaults count, and its flags judge where the image was not "
        "queried. Empty: its tag's, or the newest.",
    )
    entrypoint: r.Program = Field(
        ("vllm", "serve"), description="Program that takes the model and the flags, with its first arguments."
    )
    asserts: Annotated[tuple[Assertion, ...], Strict(False)] = Field(
        (),
        alias="assert",
        description="What the image must fulfil: shell commands that must succeed, or how many lines of a file match a "
        "pattern, which shows a patch that is applied twice. Checked in a container without GPU, network and mounts.",
    )
    build: BuildForm = Field(
        "",
        description="How the image is built, where no registry has it: `from` and `steps` for `sparkd image build`, or "
        "a text for a person. The hint of a missing image.",
    )

    @model_validator(mode="after")
    def _check_image_name(self) -> Image:
        if isinstance(self.build, Build) and ("@" in self.ref or self.ref == self.build.base):
            raise t.fault("image.ref", self.ref, "must be a name of its own for the image that image.build makes")
        return self


class Nodes(Section):
    """How many nodes serve it together."""

    min: int = Field(1, ge=1, le=64, description="Fewest nodes.")
    max: int = Field(64, ge=1, le=64, description="Most nodes.")
    gpus: int = Field(1, ge=1, le=16, description="GPUs of each node, with a rank on each. A Spark has one.")

    @model_validator(mode="after")
    def _check_order(self) -> Nodes:
        if self.min > self.max:
            raise t.fault("nodes.min", self.min, f"must be at most nodes.max, {self.max}")
        return self


class Container(Section):
    """Options of the container. Its restart policy is always `no`: restarting is systemd's job."""

    gpus: Literal["all", "none"] = Field("all", description="GPUs that the container sees.")
    ipc: Literal["host", "private", "shareable"] = Field("host", description="Whose shared memory the engine uses.")
    network: Literal["host"] = Field("host", description="Ranks meet on the node's own addresses.")
    privileged: bool = Field(False, description="Every device and capability of the node.")
    no_new_privileges: bool | None = Field(
        None,
        description="No program in it gains rights, such as by setuid. null: true, unless it is privileged. An image "
        "that becomes root by sudo needs false.",
    )
    init: bool = Field(True, description="An init as process 1, which passes signals on and reaps children.")
    shm_bytes: r.Bytes | None = Field(None, description="Size of /dev/shm where ipc is not host. null: 32 GiB.")
    memory_limit_bytes: r.Bytes | None = Field(None, description="Memory limit. It does not bound what the GPU takes.")
    ulimits: Mapping[
        _ULIMITS, Annotated[Limit | None, BeforeValidator(_parse_limit, json_schema_input_type=int | Limit | None)]
    ] = Field(
        default_factory=dict,
        description="Limits by name: a number, or soft and hard; -1 is unlimited. nofile is 1048576 and memlock is "
        "unlimited where they are not given; null leaves a limit to docker.",
    )
    devices: Annotated[tuple[t.AbsolutePath, ...], Strict(False)] = Field(
        (), description="Devices of the node, such as /dev/infiniband."
    )
    volumes: Annotated[
        tuple[Annotated[Volume, BeforeValidator(_parse_volume, json_schema_input_type=str | Volume)], ...],
        Strict(False),
    ] = Field((), description="Further files and folders: SOURCE:TARGET:ro or SOURCE:TARGET:rw.")

    @property
    def limits(self) -> dict[str, Limit]:
        """Limits to set: those of ADDED_LIMITS, changed by `ulimits`."""
        added = {name: Limit(soft=value, hard=value) for name, value in ADDED_LIMITS.items()}
        chosen = dict[str, Limit | None](self.ulimits.items())
        return {name: limit for name, limit in (added | chosen).items() if limit is not None}

    @property
    def keeps_rights(self) -> bool:
        """Whether no program in the container gains rights."""
        return not self.privileged if self.no_new_privileges is None else self.no_new_privileges

    def may_bring_vllm(self, entrypoint: Iterable[str], env: Mapping[str, str | None]) -> bool:
        """Whether a mount may be the vLLM that serves: over its package, or where command and search paths lead."""
        paths = [*entrypoint, *_PYTHONS, *(path for name in _SEARCH_PATHS for path in (env.get(name) or "").split(":"))]
        targets = [volume.target for volume in self.volumes]
        return any(_VLLM.search(target) or any(is_below(path, target) for path in paths) for target in targets)

    @property
    def shm_size_bytes(self) -> int | None:
        """The size for docker, which takes one only where /dev/shm is not the node's; None: docker gets no size."""
        return ADDED_SHM_BYTES if self.shm_bytes is None and self.ipc != "host" else self.shm_bytes


class ForkFlags(Section):
    """What the image's engine knows that vLLM's own does not."""

    extra: Annotated[tuple[Annotated[str, AfterValidator(normalize_flag)], ...], Strict(False)] = Field(
        (), description="Flags that are not held against the table of vLLM's own: neither name nor value."
    )


class Host(Section):
    """What the source ran with on the node itself. It is compared, and set by `sparkd tune apply` alone."""

    sysctls: Mapping[r.SysctlName, r.SysctlValue] = Field(
        default_factory=dict, description="Settings of the kernel (vm., net., few others), such as vm.swappiness: 10."
    )


class Recipe(Section):
    """A way to serve one model that is known to work, with where it is known from."""

    schema_: Literal[1] = Field(alias="schema", description="Version of this format.")
    name: r.RecipeName = Field(description="Name of the recipe, the same as its file's.")
    description: Text = Field("", description="What it is good for, in a sentence.")
    source: Text = Field("", description="Where its values come from: title, author, section.")
    extends: r.RecipeName | None = Field(
        None, description="Recipe that it changes. Its own name means the one it hides."
    )
    model: Model = Field(Model(), description="The weights.")
    image: Image = Field(Image(), description="The container image.")
    nodes: Nodes = Field(Nodes(), description="How many nodes serve it together.")
    executor: Literal["mp", "ray"] = Field("mp", description="What joins the ranks: vLLM itself, or Ray.")
    args: t.Flags = Field(
        default_factory=dict,
        description="Flags of vLLM: true is a bare flag, false its --no- form, null leaves it out, a list is several "
        "values, a mapping is one JSON value.",
    )
    flags: ForkFlags = Field(ForkFlags(), description="Flags of a fork of vLLM.")
    env: t.Variables = Field(default_factory=dict, description="Environment of the engine. null leaves a name out.")
    secrets: t.SecretFiles = Field(
        default_factory=dict, description="Secrets by the name of the variable that the engine gets: NAME: its file."
    )
    container: Container = Field(Container(), description="Options of the container.")
    host: Host = Field(Host(), description="What the source ran with on the node itself.")
    caches: Mapping[r.CacheName, r.Target | None] = Field(
        default_factory=dict,
        description="Compile caches, one folder for each image, by name: path in the container. Those of vLLM and its "
        "compilers are kept where they are not named: vllm, inductor, flashinfer, triton, tilelang, deep_gemm, cuda. "
        "null leaves one out.",
    )
    memory_bytes: r.Bytes | None = Field(
        None, description="What a rank takes. null: gpu_memory_utilization of the GPU's memory."
    )
    expect: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        description="Figures that the source measured. kv_cache_tokens is held against max-model-len; weights_gb, a "
        "rank's, against the memory where the model is not there; text_logprob is what `sparkd smoke` shows of known "
        "texts, and holds against it.",
    )

    @model_validator(mode="after")
    def _check_whole(self) -> Recipe:
        if not self.model.path:
            raise t.fault("model.path", "", "must name the model's folder")
        if not self.image.ref:
            raise t.fault("image.ref", "", "must name an image")
        tokens = self.expect.get(KV_CACHE_TOKENS)
        if tokens is not None and (type(tokens) is not int or tokens < 1):
            raise t.fault(f"expect.{KV_CACHE_TOKENS}", tokens, "must be a whole number of tokens")
        logprob = self.expect.get(TEXT_LOGPROB, 0)
        if isinstance(logprob, bool) or not isinstance(logprob, int | float) or logprob > 0:
            raise t.fault(f"expect.{TEXT_LOGPROB}", logprob, "must be a log-probability, 0 or below")
        targets = [*(volume.target for volume in self.container.volumes), *filter(None, self.caches.values())]
        mounted = set[str]()
        for target in targets:
            if target in mounted:
                raise t.fault("container.volumes", target, "is mounted twice")
            mounted.add(target)
        return self

    def image_build(self, chosen: str) -> str:
        """The command that builds the image, or what a person is to do; empty where a registry has the image.

        `chosen`: the name or the path by which the recipe was chosen.
        """
        if isinstance(self.image.build, str):
            return self.image.build
        return f"sudo sparkd image build {quote(chosen if chosen.endswith(f'/{self.name}.yaml') else self.name)}"


def json_schema() -> str:
    """JSON Schema of a recipe file, for editors. Keys that a base may provide are not required."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**dialect, **Recipe.model_json_schema(by_alias=True), "title": "sparkd recipe"}, indent=2)
