"""Recipes that this node could serve: what each one lacks here, and the command that supplies it."""

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import NamedTuple

from msgspec import Struct

from sparkd.agent.preflight.checks.docker import DOCKER_UNIT, EngineImage
from sparkd.agent.preflight.checks.weights import ModelWeights
from sparkd.base.config import Settings
from sparkd.base.host import CachedHost, Host
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.lib.dockerd.reader import FORBIDDEN
from sparkd.base.lib.text import sanitize, size
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.memory_sum import ModelFit, read_sum
from sparkd.base.recipes.schema import WEIGHTS_GB, Recipe
from sparkd.tools.node.recipe_lint import try_recipe

FIRST = "deepseek-v4-flash-nvidia"
"""The first among equally good recipes: NVIDIA has measured it, and its image can be pulled."""


class Supply(Struct, frozen=True):
    """What a node has for a plan."""

    total_bytes: int
    gpu: bool
    gpu_bytes: int | None = None
    model_fault: str = ""
    """What is wrong with the model's files; empty where they are whole."""
    image_fault: str = ""
    """What is wrong with the image; empty where it is there."""
    excess: str = ""
    """Weights or KV cache that are too big; empty where none is known to be."""
    docker_command: str = ""
    """The command after which docker answers; empty where it does."""


class Lack(Struct, frozen=True):
    """What a node lacks for a recipe."""

    reason: str
    command: str = ""
    """The command that supplies it; empty where none is known."""
    lasting: bool = False
    """Whether nothing can supply it on this node."""
    by_hand: bool = False
    """Whether it is an image that a person has to build."""


class Candidate(NamedTuple):
    """A recipe to examine."""

    name: str
    """Its name, or its path where it was loaded by that: as engine.recipe takes it."""
    recipe: Recipe
    own: bool
    """Whether an administrator wrote the recipe."""


class Fit(Struct, frozen=True):
    """A recipe with what this node lacks for it."""

    recipe: str
    """The candidate's name."""
    nodes: int
    """The smallest number of nodes that it can be planned for."""
    model: str
    own: bool
    lacks: tuple[Lack, ...] = ()

    @property
    def possible(self) -> bool:
        return not any(lack.lasting for lack in self.lacks)

    @property
    def reachable(self) -> bool:
        """Whether commands supply all that is missing."""
        return all(lack.command for lack in self.lacks)


def find_fits(
    candidates: Iterable[Candidate], settings: Settings, nodes: int | None, most_nodes: int, host: Host
) -> tuple[Fit, ...]:
    """Fits, the best first. `nodes`: their number, where known."""
    cached = CachedHost(host)
    fits = (_examine(candidate, settings, nodes, most_nodes, cached) for candidate in candidates)
    return tuple(sorted(fits, key=sort_key))


def _examine(candidate: Candidate, settings: Settings, nodes: int | None, most_nodes: int, host: CachedHost) -> Fit:
    name, recipe, is_own = candidate
    trial = try_recipe(recipe, settings, nodes)
    plan, model = trial.plan, recipe.model.path.rpartition("/")[2]
    if plan is None:
        return Fit(name, 0, model, is_own, (Lack(sanitize(trial.errors[0]), lasting=True),))
    inputs, node_count = CheckInputs(plan, settings), plan.node.cluster_size
    if node_count > most_nodes:
        return Fit(name, node_count, model, is_own, (Lack(f"needs {node_count} nodes", lasting=True),))
    supply = read_supply(inputs, host, recipe.expect.get(WEIGHTS_GB))
    return Fit(name, node_count, model, is_own, tuple(judge_supply(name, recipe, inputs, supply)))


def read_supply(inputs: CheckInputs, host: Host, known_gb: object) -> Supply:
    """What this node has. `known_gb`: the size of the weights by the recipe, if it has one.

    Raises OSError, ValueError where the memory is unreadable.
    """
    gpu = host.gpu() if host.gpu_present() else NO_GPU
    try:
        weights, verdict = ModelWeights.from_inputs(inputs).run(host)
        model_fault = ("" if weights.exists else "is not there") or (verdict.reason if verdict.level.blocks else "")
    except OSError as error:
        model_fault = f"can't be read: {error.strerror}"
    image, image_verdict = EngineImage.from_inputs(inputs).run(host)
    image_fault, docker_command = image_verdict.reason if image_verdict.level.blocks else "", ""
    if image.docker != "known":
        image_fault, docker_command = f"docker: {image.docker}", _repair_docker(image.docker, host)
    excess = ""
    if inputs.uses_gpu and not inputs.plan.user_script:
        memory = read_sum(inputs.plan, inputs.settings, host, known_gb=known_gb)
        excess = memory.describe() if memory.fit is ModelFit.WEIGHTS_TOO_BIG else ""
    return Supply(
        host.meminfo().total_bytes, bool(gpu.names), gpu.total_bytes, model_fault, image_fault, excess, docker_command
    )


def _repair_docker(fault: str, host: Host) -> str:
    if fault == "away":
        return "sudo systemctl start docker" if host.unit(DOCKER_UNIT) else "sudo apt install docker.io"
    return "sudo sparkd init --plan" if FORBIDDEN in fault else "systemctl status docker"


def judge_supply(name: str, recipe: Recipe, inputs: CheckInputs, supply: Supply) -> Iterator[Lack]:
    """Yield what the node lacks for the recipe's plan. `name`: the candidate's."""
    plan = inputs.plan
    if inputs.uses_gpu and not supply.gpu:
        yield Lack("needs a GPU", lasting=True)
    if (need_bytes := inputs.need.all_bytes(supply.total_bytes, supply.gpu_bytes)) > supply.total_bytes:
        yield Lack(f"needs {size(need_bytes)} of memory", lasting=True)
    if supply.excess:
        yield Lack(supply.excess, lasting=True)
    if supply.model_fault:
        pull_command = f"sudo sparkd model pull {quote(name)}" if recipe.model.repo else ""
        yield Lack(f"{sanitize(plan.model_path)} {supply.model_fault}", pull_command)
    if supply.image_fault:
        build_command = "" if supply.docker_command else recipe.image_build(name)
        reason = f"you build its image: {supply.image_fault}" if build_command else supply.image_fault
        command = supply.docker_command or build_command or f"sudo docker pull {plan.image}"
        yield Lack(reason, command, by_hand=bool(build_command) and build_command == recipe.image.build)


def sort_key(fit: Fit) -> tuple[object, ...]:
    """The order of fits; a false or smaller value comes first.

    Possible ones come first, then those that commands can supply, whose image no person has to build, and that lack
    less. Among equal ones an administrator's recipe comes first, then more nodes, FIRST, and the name.
    """
    return (
        not fit.possible,
        not fit.reachable,
        any(lack.by_hand for lack in fit.lacks),
        len(fit.lacks),
        not fit.own,
        -fit.nodes,
        fit.recipe != FIRST,
        fit.recipe,
    )
