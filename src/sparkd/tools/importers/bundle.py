"""An imported recipe with all that it needs to be served."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from sparkd.base.config.settings import Engine
from sparkd.base.host.docker_image import Image
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.importers.mods import File

ADMINISTRATORS = Path("/etc/sparkd/recipes")


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


def is_published(image: str) -> bool:
    """Whether a registry may have the image. `localhost/` without a port is for images of this machine."""
    return "/" in image and not image.startswith("localhost/")
