"""head-config.json: what a worker with `cluster.follow_head` runs, as its head has sent it.

The head makes the document of its plan in force: the whole recipe, the settings that all ranks share, the names of
secrets, and the contents of files that the recipe mounts and everybody may read. What it may do to the worker is judged
in base.plan.allowed, before anything in it is used.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from posixpath import join
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sparkd.base.config import Engine, Settings
from sparkd.base.config.settings import Cluster, Readiness, Supervise
from sparkd.base.host.files import Files, Kind
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.file import Codec, StateFile
from sparkd.base.state.known_good import ImageId
from sparkd.base.vllm.args import LONGEST_ARGUMENT, check_variable_name

PATH = "/config"
"""The path at which a head serves the document to its workers."""
FILE_BYTES = 1 << 20
ALL_FILES_BYTES = 4 << 20
MOST_FILES = 64
CLUSTER_KEYS = ("nodes", "master_port", "allow_image_difference")
ENGINE_KEYS = ("recipe", "image", "script", "args", "env")
SUPERVISE_KEYS = tuple(key for key in Supervise.model_fields if key != "reboot" and not key.startswith("power_"))
SHARED: Mapping[str, tuple[str, ...]] = {
    "cluster": CLUSTER_KEYS,
    "engine": ENGINE_KEYS,
    "readiness": (),
    "supervise": SUPERVISE_KEYS,
}
"""Keys that the head decides, by section; an empty list means all of its keys."""
_Path = Annotated[str, Meta(max_length=LONGEST_ARGUMENT)]


class SharedConfig(Struct, frozen=True):
    recipe: Recipe
    """The recipe with its bases; without secrets."""
    cluster: Cluster
    engine: Engine
    readiness: Readiness
    supervise: Supervise
    secrets: tuple[_Path, ...] = ()
    """Names of the engine's variables."""
    image_id: ImageId = ""
    """The image that a rollback on the head restores; empty: the image that has the name."""
    files: Annotated[Mapping[_Path, bytes], Meta(max_length=MOST_FILES)] = {}
    """Contents by path on the head: engine.script, and sources of read-only mounts."""

    def apply_to(self, settings: Settings) -> Settings:
        """`settings` with the values that the head decides. Raises ValueError where they contradict each other."""
        engine = {key: getattr(self.engine, key) for key in ENGINE_KEYS}
        engine |= {
            "recipe": self.recipe.name,
            "script": self._kept_path(self.engine.script) if self.engine.script else "",
        }
        own_files = settings.engine.secrets
        secrets = {name: own_files.get(name, "") for name in self.secrets}
        sections = {
            **dict(settings),
            "cluster": settings.cluster.model_copy(update={key: getattr(self.cluster, key) for key in CLUSTER_KEYS}),
            "engine": settings.engine.model_copy(update={**engine, "secrets": secrets}),
            "readiness": self.readiness,
            "supervise": settings.supervise.model_copy(
                update={key: getattr(self.supervise, key) for key in SUPERVISE_KEYS}
            ),
        }
        return type(settings).model_validate(sections)

    def recipe_here(self, own: Recipe | None) -> Recipe:
        """The recipe, mounting the files that the head has sent.

        `own`: this node's recipe of the name. Kernel settings and commands that build an image are this node's alone.
        """
        spec, image = self.recipe.container, self.recipe.image
        volumes = tuple(
            volume.model_copy(update={"source": self._kept_path(volume.source)})
            if volume.source in self.files
            else volume
            for volume in spec.volumes
        )
        build = own.image.build if own and own.image.ref == image.ref else ""
        changed = {
            "secrets": {},
            "host": own.host if own else type(self.recipe.host)(),
            "image": image.model_copy(update={"build": build}),
            "container": spec.model_copy(update={"volumes": volumes}),
        }
        return self.recipe.model_copy(update=changed)

    def _kept_path(self, path: str) -> str:
        """Path of a head's file on this node. Raises ValueError where the head has not sent the file."""
        if path not in self.files:
            raise ValueError(f"the head names {path}, and has not sent it")
        return join(HEAD_FILES, digest_of(self.files[path]))


class Kept(Struct, frozen=True):
    """A document as it came, and its digest."""

    config: SharedConfig
    digest: str


_CODEC = Codec(SharedConfig)


class _KeptFile(StateFile[Kept], frozen=True):
    """The document's file, read with the digest of its bytes."""

    def decode(self, content: bytes) -> Kept:
        """The document as `dump` made it, within its bounds. Raises ValueError."""
        config = _CODEC.decode(content)
        for name in config.secrets:
            check_variable_name(name)
        sizes = [len(file) for file in config.files.values()]
        if max(sizes, default=0) > FILE_BYTES or sum(sizes) > ALL_FILES_BYTES:
            raise ValueError("its files are larger than a head sends")
        return Kept(config, digest_of(content))


FILE = _KeptFile(Kept, "head-config.json")


def make_shared(settings: Settings, recipe: Recipe, image_id: str, script: str, files: Files) -> SharedConfig:
    """The document of a head, by its `settings` and `recipe` in force."""
    cluster = Cluster(**{key: getattr(settings.cluster, key) for key in CLUSTER_KEYS})
    engine = Engine(**{key: getattr(settings.engine, key) for key in ENGINE_KEYS})
    volumes = (volume.source for volume in recipe.container.volumes if volume.read_only)
    contents, room_bytes = dict[str, bytes](), ALL_FILES_BYTES
    for path in dict.fromkeys((*((script,) if script else ()), *volumes)):
        content = read_shareable(files, path, any_mode=path == script)
        if content is not None and len(content) <= room_bytes and len(contents) < MOST_FILES:
            contents[path], room_bytes = content, room_bytes - len(content)
    secrets = tuple(sorted({**recipe.secrets, **settings.engine.secrets}))
    whole_recipe = recipe.model_copy(update={"secrets": {}, "extends": None})
    supervise = Supervise(**{key: getattr(settings.supervise, key) for key in SUPERVISE_KEYS})
    return SharedConfig(whole_recipe, cluster, engine, settings.readiness, supervise, secrets, image_id, contents)


def read_shareable(files: Files, path: str, *, any_mode: bool) -> bytes | None:
    """Content of a small regular file, else None. Without `any_mode` everybody must be allowed to read it: it crosses
    the fabric unencrypted.
    """
    with suppress(OSError):
        opened = files.itself(files.resolved(path), FILE_BYTES)  # facts of that very file: the path may be replaced
        if opened.facts.kind is Kind.FILE and (any_mode or opened.facts.permissions & 0o004):
            return opened.content
    return None


def overridden_keys(origins: Mapping[str, str]) -> tuple[str, ...]:
    """Keys that a worker's own file or variables set, and that its head decides."""
    return tuple(key for key in origins if is_shared(key) and key != "cluster.nodes")


def is_shared(key: str) -> bool:
    """Whether the head decides a dotted key of a worker that follows it."""
    section, name = key.split(".")[:2]
    return section in SHARED and (not SHARED[section] or name in SHARED[section])


def digest_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def dump(config: SharedConfig) -> bytes:
    """The document as JSON, without defaults: a worker of another version may have other keys."""
    fields = msgspec.to_builtins(
        config, enc_hook=lambda model: model.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    )
    fields["recipe"] |= {"schema": config.recipe.schema_, "name": config.recipe.name}
    return json.dumps({"schema": 1, **fields}, separators=(",", ":")).encode()
