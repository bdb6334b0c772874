"""Published methods under their names; importing this package registers them."""

from creditjax.recipes import (  # noqa: F401
    baselines,
    contrast,
    evidence,
    potential,
    process,
    steps,
    team,
    token,
    tree,
    turn,
)
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
