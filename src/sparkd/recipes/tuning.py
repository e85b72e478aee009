"""Settings of the kernel that `sparkd tune` proposes, each with where it is known from."""

from __future__ import annotations

from msgspec import Struct

from sparkd.recipes.schema import Recipe


class Proposal(Struct, frozen=True):
    name: str
    value: str
    source: str


DEFAULTS = (
    Proposal(
        "vm.swappiness",
        "10",
        "what the GPU uses can't be swapped out: swap as little as may be where swap is on at all (guides to DGX Spark "
        'say 10, or swapoff; "Running DeepSeek V4 Flash at 20 TPS", OOM Safety)',
    ),
)
"""Where the recipe names none. Published advice on every other setting conflicts, or is one author's."""


def proposals(recipe: Recipe) -> tuple[Proposal, ...]:
    """The recipe's own, else the defaults; sorted by name."""
    source = f"recipe {recipe.name}: {recipe.source}" if recipe.source else f"recipe {recipe.name}"
    own = (Proposal(name, value, source) for name, value in sorted(recipe.host.sysctls.items()))
    return tuple(own) or DEFAULTS
