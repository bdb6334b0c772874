"""Methods that use the tree of prefixes that the rollouts of a group form."""

from creditjax.algebra import blend, branch_td, chain, group_normalize, identity, outcome
from creditjax.objectives import clipped_surrogate
from creditjax.recipes.registry import Parts, register


@register(
    "tempo",
    cost="pairwise in G",
    claims=("shift_invariant", "scale_invariant"),
    exempt={"expansion_invariant": "rollouts may part at an observed token, whose difference no action gets"},
)
def tempo(td_weight: float = 1.0, ddof: int = 0, eps: float = 1e-6, eps_clip: float = 0.2) -> Parts:
    """GRPO's credit plus the temporal difference of prefix values where rollouts part (TEMPO, arXiv:2509.18314).

    The value of a prefix is the mean normalised outcome of the group's rollouts that share it; tokens at which nobody
    parts keep GRPO's credit. ``td_weight=0`` is GRPO.
    """
    estimator = chain(
        outcome(), group_normalize(ddof=ddof, eps=eps), blend((identity(), 1.0), (branch_td(), td_weight))
    )
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="seq_mean_token_mean")
    return Parts(estimator, loss)
