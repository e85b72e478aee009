"""What joins the ranks of an engine: vLLM's own way (mp), or Ray. A node alone has nothing to join."""

from __future__ import annotations

from sparkd.errors import ConfigError
from sparkd.launch.plan import Node
from sparkd.recipes.schema import Recipe
from sparkd.settings import Settings

RAY = "ray"


def on_ray(recipe: Recipe, settings: Settings, node: Node) -> bool:
    """Whether Ray joins this node to others. Raises ConfigError."""
    if recipe.executor != RAY or node.cluster_size == 1:
        return False
    if settings.engine.script:
        raise ConfigError(
            f"recipe {recipe.name} wants the executor ray, and engine.script starts the engine its own way",
            f"take engine.script out, or extend {recipe.name} with executor: mp: then the script may start Ray itself",
        )
    return True


def flags(node: Node, master_port: int, *, on_ray: bool) -> tuple[str, ...]:
    """What tells a rank its place. A node alone gets none: older forks do not know these flags."""
    if node.cluster_size == 1:
        return ()
    if on_ray:
        return ("--distributed-executor-backend", RAY)
    words = (
        *("--distributed-executor-backend", "mp"),
        *("--nnodes", str(node.cluster_size), "--node-rank", str(node.rank)),
        *("--master-addr", node.head_address, "--master-port", str(master_port)),
    )
    # Without it a worker starts an API server of its own, and the head waits for ever.
    return words if node.rank == 0 else (*words, "--headless")
