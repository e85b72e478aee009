"""Which recipes this node could serve: what each lacks here, and the command that brings it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from sparkd.agent.preflight.checks.docker import EngineImage
from sparkd.agent.preflight.checks.weights import ModelWeights
from sparkd.base.config import Settings
from sparkd.base.host import CachedHost, Host
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.lib.text import sanitize, size
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.node.trial import try_recipe


class Supply(Struct, frozen=True):
    """What a node has for one plan. Empty `model` and `image`: they are there and whole; else what is wrong."""

    total_bytes: int
    gpu: bool
    gpu_bytes: int | None = None
    model: str = ""
    image: str = ""
    docker: str = ""
    """How to get an answer of docker, where it gives none."""


class Lack(Struct, frozen=True):
    reason: str
    command: str = ""
    """That brings it; empty where none is known."""
    lasting: bool = False
    """Whether nothing brings it to this node."""


class Fit(Struct, frozen=True):
    recipe: str
    nodes: int
    """The fewest that it can be planned for."""
    model: str
    own: bool
    """Whether an administrator wrote the recipe."""
    lacks: tuple[Lack, ...] = ()

    @property
    def possible(self) -> bool:
        return not any(one.lasting for one in self.lacks)

    @property
    def reachable(self) -> bool:
        """Whether commands bring all that is missing."""
        return all(one.command for one in self.lacks)


def find_fits(
    recipes: Iterable[tuple[Recipe, bool]], settings: Settings, nodes: int | None, most_nodes: int, host: Host
) -> tuple[Fit, ...]:
    """The best one first. `nodes`: exactly so many, where that is known. The flag of a recipe is Fit.own."""
    seen = CachedHost(host)
    return tuple(sorted((_examine(*one, settings, nodes, most_nodes, seen) for one in recipes), key=rank))


def _examine(
    recipe: Recipe, own: bool, settings: Settings, nodes: int | None, most_nodes: int, host: CachedHost
) -> Fit:
    trial = try_recipe(recipe, settings, nodes)
    plan, model = trial.plan, recipe.model.path.rpartition("/")[2]
    if plan is None:
        return Fit(recipe.name, 0, model, own, (Lack(sanitize(trial.errors[0]), lasting=True),))
    inputs, needed = CheckInputs(plan, settings), plan.node.cluster_size
    if needed > most_nodes:
        return Fit(recipe.name, needed, model, own, (Lack(f"needs {needed} nodes", lasting=True),))
    return Fit(recipe.name, needed, model, own, tuple(judge_supply(recipe, inputs, read_supply(inputs, host))))


def read_supply(inputs: CheckInputs, host: Host) -> Supply:
    """Raises OSError, ValueError where the memory is unreadable."""
    gpu = host.gpu() if host.gpu_present() else NO_GPU
    try:
        weights, verdict = ModelWeights.from_inputs(inputs).run(host)
        model = ("" if weights.there else "is not there") or (verdict.reason if verdict.level.blocks else "")
    except OSError as error:
        model = f"can't be read: {error.strerror}"
    image, judged = EngineImage.from_inputs(inputs).run(host)
    wrong, docker = judged.reason if judged.level.blocks else "", ""
    if image.docker != "known":
        wrong, docker = f"docker: {image.docker}", "sudo systemctl start docker"
    return Supply(host.meminfo().total_bytes, bool(gpu.names), gpu.total_bytes, model, wrong, docker)


def judge_supply(recipe: Recipe, inputs: CheckInputs, supply: Supply) -> Iterator[Lack]:
    plan = inputs.plan
    if inputs.uses_gpu and not supply.gpu:
        yield Lack("needs a GPU", lasting=True)
    if (bytes_ := inputs.need.all_bytes(supply.total_bytes, supply.gpu_bytes)) > supply.total_bytes:
        yield Lack(f"needs {size(bytes_)} of memory", lasting=True)
    if supply.model:
        pull = f"sudo sparkd model pull {recipe.name}" if recipe.model.repo else ""
        yield Lack(f"{sanitize(plan.model_path)} {supply.model}", pull)
    if supply.image:
        yield Lack(supply.image, supply.docker or recipe.image.build or f"sudo docker pull {plan.image}")


def rank(fit: Fit) -> tuple[object, ...]:
    """What can serve now, then what commands make serve; one's own recipe, more nodes, the default, the name."""
    default = Settings().engine.recipe
    return (
        not fit.possible,
        not fit.reachable,
        len(fit.lacks),
        not fit.own,
        -fit.nodes,
        fit.recipe != default,
        fit.recipe,
    )
