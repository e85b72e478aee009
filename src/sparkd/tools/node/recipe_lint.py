"""Lint of a recipe for any node: its plan with default settings, and errors and warnings with their file and line."""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, chain

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.checks.paths import paths_of_plan
from sparkd.agent.preflight.needed_paths import read_path
from sparkd.base.config import Settings
from sparkd.base.config.settings import MAX_NODES
from sparkd.base.host import Host, weights
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import size
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.compile_jobs import find_room
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.memory_sum import ModelFit, read_sum
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.additions import MAX_JOBS, VERBS
from sparkd.base.recipes.loader import LoadedRecipe, Origin
from sparkd.base.recipes.reach import find_reach
from sparkd.base.recipes.schema import KV_CACHE_TOKENS, WEIGHTS_GB, Recipe, has_placeholder
from sparkd.base.vllm.args import command_line
from sparkd.base.vllm.command import first_values, parse_command
from sparkd.base.vllm.flag import SHIPPED, FlagTable
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import ModelLimits, parse_limits
from sparkd.base.vllm.lint.rules import Issue

GB10_BYTES = 127_535_224 << 10
"""MemTotal of a DGX Spark of 128 GB (gb10-services, a sample of /proc/meminfo)."""


class Trial(Struct, frozen=True):
    """The attempt to plan a recipe."""

    plan: LaunchPlan | None
    """The head's plan with the fewest nodes that fit; None where no number fits."""
    errors: tuple[str, ...]
    """Why no number of nodes fits: the error with the highest number."""
    warnings: tuple[str, ...]


def try_recipe(recipe: Recipe, settings: Settings | None = None, nodes: int | None = None) -> Trial:
    """Plan the recipe for `nodes` nodes, or for each number that it allows. Each message names a key of the recipe."""
    plans: dict[int, LaunchPlan] = {}
    refusal = f"nodes.min is {recipe.nodes.min}, and cluster.nodes names at most {MAX_NODES} nodes"
    counts = range(recipe.nodes.min, min(recipe.nodes.max, MAX_NODES) + 1) if nodes is None else (nodes,)
    for count in counts:
        # With an interface and an RDMA device each placeholder has a value.
        node = Node(0, "10.0.0.1", "10.0.0.1", count, "eth0", ("mlx5_0",))
        try:
            plans[count] = make_plan(recipe, settings or Settings(), node)
        except ConfigError as error:
            refusal = f"{error.reason} ({error.hint})" if error.hint else error.reason
        if recipe.nodes.min in plans:
            break  # the least number fits: no other is tried
    warnings = []
    if plans and nodes is None and recipe.nodes.min not in plans and "min" in recipe.nodes.model_fields_set:
        fitting = " or ".join(map(str, plans))
        warnings.append(f"nodes.min is {recipe.nodes.min}, and the recipe fits {fitting} node(s) only")
    return Trial(next(iter(plans.values()), None), () if plans else (refusal,), tuple(warnings))


def find_errors(recipe: Recipe) -> list[str]:
    """What the engine does not start with, by plan-lint, whatever this machine has."""
    issues = rules.find_issues(_make_launch(recipe))
    return [f"{issue.reason} ({issue.hint})" for issue in issues if issue.blocks]


def lint(
    loaded: LoadedRecipe,
    *,
    whole: bool = True,
    memory_bytes: int = GB10_BYTES,
    host: Host | None = None,
    vllm: FlagTable = SHIPPED,
    model: str = "",
) -> tuple[list[str], list[str]]:
    """Errors and warnings on a recipe, by plan-lint and by its plan, each with its file and line.

    `whole`: whether the recipe was read without a fault. If not, it is not planned, and only keys that are written in
    it are judged, since a missing one may be misspelt. `memory_bytes`: memory of each node, which its GPU shares.
    `vllm`: the flags by which it is judged. `model`: a folder that is read instead of the recipe's model.
    """
    host = host or Host()
    trial = try_recipe(loaded.recipe) if whole else Trial(None, (), ())
    if trial.plan and model:
        trial = replace(trial, plan=replace(trial.plan, model_path=model))
    folder = trial.plan.model_path if trial.plan else model
    limits = parse_limits(weights.read_config(host.files, folder)) if folder else ModelLimits()
    errors, warnings = list[str](), list[str]()
    launch = replace(_make_launch(loaded.recipe), vllm=vllm, model=limits)
    for issue in (*rules.find_issues(launch), *_find_reach(loaded.recipe)):
        origin = _find_origin(loaded, issue.at)
        if origin or whole:
            place = origin or loaded.files[0]
            (errors if issue.blocks else warnings).append(f"{place}: {issue.reason} ({issue.hint})")
    plan_errors, plan_warnings = _judge_trial(loaded, trial, memory_bytes, host)
    return errors + plan_errors, warnings + plan_warnings


def _judge_trial(loaded: LoadedRecipe, trial: Trial, memory_bytes: int, host: Host) -> tuple[list[str], list[str]]:
    """Errors and warnings on the plan."""
    errors = [f"{_locate_key(loaded, error)}: {error}" for error in trial.errors]
    warnings = list[str]()
    if trial.plan and trial.plan.container.gpus == "all":
        shortage, blocks = _judge_memory(loaded, trial.plan, memory_bytes, host)
        if shortage:
            (errors if blocks else warnings).append(shortage)
    missing = _find_missing(trial.plan) if trial.plan else ()
    warnings += [f"{_locate_key(loaded, warning)}: {warning}" for warning in (*trial.warnings, *missing)]
    return errors, warnings


def _judge_memory(loaded: LoadedRecipe, plan: LaunchPlan, memory_bytes: int, host: Host) -> tuple[str, bool]:
    """The shortage of memory on a node, empty where there is none, and whether it is an error."""
    known_gb = loaded.recipe.expect.get(WEIGHTS_GB)
    memory = read_sum(plan, Settings(), host, known_gb=known_gb, total_bytes=memory_bytes)
    if memory.is_too_big:
        origin = _locate_key(loaded, "nodes.min")
        too_big = f"{origin}: {memory.describe()} on nodes of {size(memory_bytes)}"
        return too_big, memory.fit is ModelFit.WEIGHTS_TOO_BIG
    room = find_room(memory_bytes, memory, CheckInputs(plan, Settings()).need, plan.gpus)
    if memory.weights and (excess := room.describe_excess(plan)):
        return f"{_locate_key(loaded, f'env.{MAX_JOBS}')}: {excess} (take it out: sparkd sets it)", False
    return "", False


def _find_origin(loaded: LoadedRecipe, key: str) -> Origin | None:
    """File and line of a key. It may be written without its `no-`, as a field of it, or as part of its flag's JSON."""
    positive = key.replace("args.no-", "args.", 1)
    fields = (origin for origin in loaded.origins if origin.startswith(f"{key}."))
    flag = ".".join(key.split(".")[:2])
    return next(filter(None, map(loaded.origins.get, chain((key, positive), fields, (flag,)))), None)


def _locate_key(loaded: LoadedRecipe, text: str) -> str:
    """File and line of the first key that a text names; else the recipe's file."""
    keys = (name.rstrip(".") for name in re.findall(r"\b[a-z]+\.[\w.-]+", text))
    return str(next(filter(None, (_find_origin(loaded, key) for key in keys)), loaded.files[0]))


def _find_missing(plan: LaunchPlan) -> Iterator[str]:
    """Yield files that the recipe names and this machine does not have, except models and RDMA devices."""
    left_out = {plan.container.volumes[0].source, VERBS}
    for file in paths_of_plan(plan):
        folders_and_file = accumulate(file.path.split("/"), "{}/{}".format)
        if left_out.isdisjoint(folders_and_file):
            with suppress(OSError):  # unreadable for this user
                if fault := read_path(Files(), file).fault:
                    left_out.add(file.path)  # what lies below it is missing for the same reason
                    yield f"{file.path} {fault} on this machine: {file.what} ({file.hint})"


def _find_reach(recipe: Recipe) -> Iterator[Issue]:
    """Issues with the recipe's access to the machine beyond its container."""
    secrets = {f"secrets.{name}": file for name, file in recipe.secrets.items()}
    model = {"model.path": recipe.model.path} if recipe.model.path.startswith("/") else {}
    return find_reach(recipe.container, {**model, **secrets})


def _make_launch(recipe: Recipe) -> Launch:
    """The engine's launch on any node: values with placeholders are None, or left out."""
    words = command_line(recipe.args)
    tokens = recipe.expect.get(KV_CACHE_TOKENS)
    texts = (
        ("model.path", recipe.model.path),
        ("model.served_name", recipe.model.served_name),
        ("image.ref", recipe.image.ref),
        *(("model.aliases", alias) for alias in recipe.model.aliases),
        *((f"secrets.{name}", file) for name, file in recipe.secrets.items()),
        *((f"caches.{name}", target or "") for name, target in recipe.caches.items()),
        *(("container.volumes", f"{volume.source}:{volume.target}") for volume in recipe.container.volumes),
    )
    sizes = {
        "container.shm_bytes": recipe.container.shm_bytes,
        "container.memory_limit_bytes": recipe.container.memory_limit_bytes,
        "memory_bytes": recipe.memory_bytes,
    }
    return Launch(
        flags={flag: None if text and has_placeholder(text) else text for flag, text in first_values(words).items()},
        env={name: text for name, text in recipe.env.items() if text is not None and not has_placeholder(text)},
        gpu=recipe.container.gpus == "all",
        gpus=recipe.nodes.gpus,
        nodes=recipe.nodes.min,
        pool_tokens=tokens if isinstance(tokens, int) else None,
        given=parse_command([*recipe.image.entrypoint, *words], has_placeholder),
        extra=recipe.flags.extra,
        texts=texts,
        mounts=(*(volume.target for volume in recipe.container.volumes), *filter(None, recipe.caches.values())),
        sizes=tuple((key, amount) for key, amount in sizes.items() if amount is not None),
    )
