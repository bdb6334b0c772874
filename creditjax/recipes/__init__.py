"""Published methods under their names; importing this package registers them."""

from creditjax.recipes import baselines, contrast, potential, process, steps, team, token, tree, turn  # noqa: F401
from creditjax.recipes.registry import (
    Card,
    Parts,
    Recipe,
    Sampler,
    canonical,
    cards,
    hyperparameters,
    list_recipes,
    recipe,
    register,
)

__all__ = [
    "Card",
    "Parts",
    "Recipe",
    "Sampler",
    "canonical",
    "cards",
    "hyperparameters",
    "list_recipes",
    "recipe",
    "register",
]
