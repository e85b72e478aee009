"""An imported recipe with all that it needs, and the commands from there to an endpoint, which are only printed."""

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct, field

from sparkd.base.config.settings import Engine
from sparkd.base.host.docker_image import Image
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.importers.mods import File

ADMINISTRATORS = Path("/etc/sparkd/recipes")
_SETTINGS, _ALLOWED = "/etc/sparkd/conf.d/90-recipe.toml", "/etc/sparkd/conf.d/90-allow.toml"
_ON_OTHERS = "  # on each other node"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class Place(Struct, frozen=True):
    """Where a recipe goes and what is there, with the choices that its importer makes on the command line."""

    folder: Path = ADMINISTRATORS
    """The folder in which the recipe is used; absolute."""
    mods: Path | None = None
    """Further folder of mods."""
    write_folder: Path = ADMINISTRATORS
    """The folder to which the recipe is written. It is not `folder` where others than root may write to it."""
    models: str = Engine().models_dir
    find_image: Callable[[str], Image | None] = lambda _ref: None
    """Finds an image of this machine's docker by its name."""
    service: str = ""
    """The engine's service in a compose file; empty for the only one."""
    image: str = ""
    """The image for a vLLM that is started without one; else empty."""


class Bundle(Struct):
    """A recipe with what it needs, which `complete` fills in."""

    recipe: Recipe
    place: Place
    base: str
    """The image before mods change it."""
    build: str = ""
    """The command that builds `base`; empty where none is known."""
    container: str = ""
    """The container that the recipe was read from, as a word for a shell: it uses the engine's port and memory."""
    is_here: bool = False
    """Whether this machine has the image `base`."""
    drafts: dict[str, str] = field(default_factory=dict)
    """Draft models to download: revision, or empty text, by repository."""
    files: dict[str, File] = field(default_factory=dict)
    """Files to write, by path below the recipe's folder."""

    def update(self, section: str, **values: object) -> None:
        """Set values in a section of the recipe."""
        part = getattr(self.recipe, section).model_copy(update=values)
        self.recipe = self.recipe.model_copy(update={section: part})

    def steps(self) -> Iterator[str]:
        """The commands from here to a served token, in order."""
        recipe, place, is_cluster = self.recipe, self.place, self.recipe.nodes.min > 1
        path = str(place.folder / f"{recipe.name}.yaml")
        beside = sorted({f"{recipe.name}.yaml", *(name.partition("/")[0] for name in self.files)})
        if place.write_folder != place.folder:
            written = [f"{place.write_folder}/{name}" for name in beside]
            copy = shlex.join(["sudo", "cp", "-r", *written, f"{place.folder}/"])
            yield f"sudo mkdir -p {place.folder} && {copy}"
        yield from self._list_image_steps(path)
        yield from self._list_model_steps(path)
        if is_cluster and place.folder != ADMINISTRATORS:  # a cluster names its recipe without a path
            yield shlex.join(["sudo", "install", "-D", "-m", "644", path, str(ADMINISTRATORS / f"{recipe.name}.yaml")])
        yield shlex.join(["sparkd", "recipe", "check", path])
        recipe_word = recipe.name if is_cluster or place.folder == ADMINISTRATORS else path
        yield _write_settings(_SETTINGS, "[engine]", f"recipe = {json.dumps(recipe_word, ensure_ascii=False)}")
        yield "sparkd config check"
        if is_cluster:
            yield from self._list_node_steps(beside)
        yield "sudo sparkd units install"
        if self.container:
            yield f"sudo docker update --restart no {self.container} && sudo docker stop {self.container}"
        yield "sudo sparkd preflight --dry-run"
        if is_cluster:
            yield f"sudo systemctl start sparkd-worker{_ON_OTHERS}"
        yield "sudo systemctl start sparkd-head"

    def _list_image_steps(self, path: str) -> Iterator[str]:
        """Commands that pull or build the image. `path`: of the recipe."""
        if self.is_here:
            pass
        elif is_published(self.base):
            pull = shlex.join(["sudo", "docker", "pull", self.base])
            yield f"{pull}  # or: {self.build}" if self.build else pull
        elif self.build:
            yield self.build
        if self.recipe.image.ref != self.base:
            yield shlex.join(["sudo", "sparkd", "image", "build", path])

    def _list_model_steps(self, path: str) -> Iterator[str]:
        """Commands that write secrets and download models, which may need a token. `path`: of the recipe."""
        secrets, pull = self.recipe.secrets, ["sudo", "sparkd", "model", "pull"]
        where = "; on each node" if self.recipe.nodes.min > 1 else ""
        for file in secrets.values():
            yield f"sudo install -m 600 /dev/stdin {file}  # its value, then Ctrl-D{where}"
        token = next((["--token-file", secrets[name]] for name in _TOKENS if name in secrets), [])
        if self.recipe.model.repo:
            yield shlex.join([*pull, path, *token])
        for repo, revision in self.drafts.items():
            to = ["--to", f"{self.place.models}/{repo.rpartition('/')[2]}"]
            yield shlex.join([*pull, repo, *to, *(["--revision", revision] if revision else []), *token])

    def _list_node_steps(self, beside: list[str]) -> Iterator[str]:
        """Commands that set up the other nodes. `beside`: the recipe's file, and the folders of its files."""
        recipe, place, model = self.recipe, self.place, self.recipe.model
        yield f"sudo sparkd init --nodes {recipe.nodes.min}  # here, the head: shows a code, waits ten minutes"
        yield f"sudo sparkd init --join{_ON_OTHERS}, meanwhile: enter the code"
        files = {*(f"{place.folder}/{name}" for name in beside), f"{ADMINISTRATORS}/{recipe.name}.yaml"}
        to_other = ["rsync", "-a", "--relative", "--no-implied-dirs", *sorted(files), "root@OTHER:/"]
        yield shlex.join(to_other) + "  # for each other node; needs ssh as root there"
        container = recipe.container
        mounts = [f"{volume.source}{'' if volume.read_only else ':rw'}" for volume in container.volumes]
        allowed = ["privileged = true"] if container.privileged else []
        if mounts:
            allowed.append(f"mounts = {json.dumps(mounts, ensure_ascii=False)}")
        if allowed:
            yield _write_settings(_ALLOWED, "[cluster.allow]", *allowed) + _ON_OTHERS
        yield "sparkd image sync"
        for name in (model.path, *(repo.rpartition("/")[2] for repo in self.drafts)):
            yield shlex.join(["sparkd", "model", "sync", name]) + "  # --user root, where yours may not write there"


def _write_settings(file: str, *lines: str) -> str:
    return shlex.join(["printf", r"%s\n", *lines]) + f" | sudo install -D -m 644 /dev/stdin {file}"


def is_published(image: str) -> bool:
    """Whether a registry may have the image. `localhost/` without a port is for images of this machine."""
    return "/" in image and not image.startswith("localhost/")
