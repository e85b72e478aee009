"""With sparkrun's own modules: what it would run of recipes on a DGX Spark. Recipes in, answers out, as JSON files.

Nothing is started, and no other machine is queried: the address of the first node is made up.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from sparkrun.core.launch_env import compose_launch_env  # type: ignore[import-not-found]
from sparkrun.core.parallelism import extract_parallelism  # type: ignore[import-not-found]
from sparkrun.core.recipe import Recipe  # type: ignore[import-not-found]
from sparkrun.core.resolve import apply_recipe_overrides  # type: ignore[import-not-found]
from sparkrun.orchestration.executor import resolve_executor  # type: ignore[import-not-found]
from sparkrun.platforms.dgx_spark import DgxSparkPlatform  # type: ignore[import-not-found]
from sparkrun.runtimes.eugr_vllm_ray import EugrVllmRayRuntime  # type: ignore[import-not-found]
from sparkrun.runtimes.vllm_distributed import VllmDistributedRuntime  # type: ignore[import-not-found]
from sparkrun.runtimes.vllm_ray import VllmRayRuntime  # type: ignore[import-not-found]

RUNTIMES = {one.runtime_name: one for one in (VllmDistributedRuntime, VllmRayRuntime, EugrVllmRayRuntime)}
HEAD = "10.0.0.1"


def rendered(text: str, options: list[str], folder: Path) -> dict[str, object]:
    path = folder / "given.yaml"
    path.write_text(text)
    recipe = Recipe.load(path, resolve=False)
    recipe, overrides = apply_recipe_overrides(tuple(options), recipe=recipe)
    if problems := recipe.validate_structure():
        raise ValueError("; ".join(problems))
    if recipe.runtime not in RUNTIMES:
        return {"runtime": recipe.runtime}
    runtime = RUNTIMES[recipe.runtime]()
    platform = DgxSparkPlatform()
    spark = platform.assumed_hardware()
    flags = platform.default_runtime_flags(runtime.runtime_name, spark.accelerators[0])
    chain = recipe.build_config_chain(overrides)
    recipe.defaults.update({key: value for key, value in flags.items() if chain.get(key) is None})
    ranks = max(extract_parallelism(recipe.build_config_chain(overrides)).total_gpus, recipe.min_nodes)
    hosts = [f"10.0.0.{rank + 1}" for rank in range(ranks)]
    several = ranks > 1
    env = compose_launch_env(
        runtime_common=runtime.get_common_env(),
        runtime_mode=runtime.get_cluster_env(HEAD, ranks) if several else runtime.get_solo_env(),
        platform=platform.default_env(runtime.runtime_name, spark.accelerators[0], runtime_family=runtime.get_family()),
        recipe=recipe.env,
    )
    per_node = several and runtime.cluster_strategy() == "native"
    commands = [
        runtime.generate_node_command(recipe, overrides, HEAD, ranks, rank, hosts=hosts)
        if per_node
        else runtime.generate_command(recipe, overrides, several, ranks, HEAD)
        for rank in range(ranks)
    ]
    executor = resolve_executor(recipe=recipe, runtime=runtime, host_hardware=spark).config
    keys = ("privileged", "ipc", "shm_size", "security_opt", "ulimit", "devices", "volumes", "gpus", "network")
    return {
        "runtime": recipe.runtime,
        "image": runtime.resolve_container(recipe, host_hardware=spark),
        "model": recipe.model,
        "revision": recipe.model_revision or "",
        "commands": commands,
        "env": env,
        "executor": {key: getattr(executor, key) for key in keys},
    }


def answer(text: str, options: list[str], folder: Path) -> dict[str, object]:
    try:
        return rendered(text, options, folder)
    except Exception as error:  # whatever it refuses a recipe with is its answer
        return {"error": f"{type(error).__name__}: {error}"}


def main(given: str, answers: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = [answer(text, options, Path(folder)) for text, options in json.loads(Path(given).read_text())]
    Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
