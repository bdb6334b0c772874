"""Methods that reshape a rollout's credit over its tokens."""

from creditjax.algebra import certainty_modulation, chain, group_normalize, logit_penalty, outcome, to_tokens
from creditjax.objectives import clipped_surrogate
from creditjax.recipes.registry import Parts, register


@register("ucas", claims=("sign_preserved",))
def ucas(alpha: float = 0.25, beta: float = 0.35, lam: float = 0.05, reduce: str = "sum", eps: float = 1e-6) -> Parts:
    """Confident successes earn less, confident failures cost more, confident tokens pay a little (arXiv:2510.10649).

    `reduce` "sum" adds the certainty of a rollout's tokens, as the code does, which makes it partly a length; "mean"
    does not. Groups with equal outcomes are not silent: their tokens still pay.
    """
    modulated = chain(outcome(), group_normalize(eps=eps), certainty_modulation(alpha=alpha, beta=beta, reduce=reduce))
    return Parts(chain(modulated, to_tokens(), logit_penalty(scale=lam)), clipped_surrogate(aggregation="token_mean"))
