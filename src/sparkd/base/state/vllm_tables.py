"""vllm-tables.json: what the vLLM of each image takes, by the image's id. An image is queried once, and one that
gave no answer once by each version of sparkd, whose query may succeed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd import __version__
from sparkd.base.host import Host, docker_image
from sparkd.base.host.docker import query
from sparkd.base.host.files import Files
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import UsageError
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.file import PUBLIC, Report, StateFile, ignore_report
from sparkd.base.vllm.flag import FlagTable
from sparkd.base.vllm.releases import find_release

IMAGES_KEPT = 8
"""Number of tables in the file, of some 100 KB each; the oldest are dropped."""


class VllmTables(Struct, frozen=True):
    tables: Mapping[str, FlagTable] = field(default_factory=dict)
    queried_by: Mapping[str, str] = field(default_factory=dict)
    """sparkd's version, by the image's id."""

    def is_queried(self, image_id: str) -> bool:
        table = self.tables.get(image_id)
        return table is not None and (bool(table.flags) or self.queried_by.get(image_id) == __version__)

    def record(self, image_id: str, table: FlagTable) -> VllmTables:
        others = [(name, known) for name, known in self.tables.items() if name != image_id]
        kept = dict([*others, (image_id, table)][-IMAGES_KEPT:])
        return VllmTables(kept, {name: self.queried_by.get(name, "") for name in kept} | {image_id: __version__})


FILE = StateFile(VllmTables, "vllm-tables.json", PUBLIC)


def read_tables(files: Files, report: Report = ignore_report) -> VllmTables:
    """The tables; none where there is no usable file. Raises OSError."""
    return FILE.load(files, report) or VllmTables()


def find_table(host: Host, ref: str, *release_names: str, mounted: bool = False) -> FlagTable:
    """The table of the image that has this name on this node now.

    Where that is away, or gave no answer, it is the table of its release: the first that `release_names` or `ref` name.
    So it is where what is `mounted` may be another vLLM.
    """
    release = find_release(*release_names, ref)
    if mounted:
        return replace(release, mounted=True)
    try:
        tables = read_tables(host.files).tables
        image = query(host, lambda docker: docker_image.read_image(docker, ref)) if tables and ref else None
    except (UsageError, DockerError, OSError):
        return release
    table = tables.get(image.id) if image else None
    if table is None:
        return release
    return replace(table, image=ref) if table.flags else replace(release, unanswered=ref)


def find_recipe_table(host: Host, recipe: Recipe, env: Mapping[str, str | None] | None = None) -> FlagTable:
    """The table that judges the recipe on this node now. `env`: the settings' engine.env, where these count."""
    image, env = recipe.image, {**recipe.env, **(env or {})}
    mounted = recipe.container.may_bring_vllm(image.entrypoint, env)
    return find_table(host, image.ref, image.vllm, mounted=mounted)
