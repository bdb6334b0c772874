"""Methods that share an outcome among agents."""

from creditjax.algebra import shapley
from creditjax.objectives import clipped_surrogate
from creditjax.recipes.registry import Parts, register


@register("shapley_exact", claims=("efficient", "symmetric", "null_player", "scale_equivariant"))
def shapley_exact(eps_clip: float = 0.2) -> Parts:
    """Each agent's average marginal contribution over all coalitions (Shapley 1953), on the tokens that it wrote.

    The credits of the agents add up to ``v(all) - v(none)``. There is no baseline over the group.
    """
    return Parts(shapley(), clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean"))
