"""Ratios shared by tokens that are alike, wherever they stand: between one a token and one a sequence."""

import jax
from jax import numpy as jnp

from creditjax.kernels import losses, segments
from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_mean, select
from creditjax.objectives import policy
from creditjax.objectives.aggregate import Aggregation, Mode
from creditjax.objectives.base import CreditLike, objective, require
from creditjax.objectives.terms import Terms
from creditjax.trajectory import Trajectory

Array = jax.Array


@objective(needs=("logprob", "entropy"))
def entropy_grouped_surrogate(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    bins: int = 4,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
    q_min: float = 0.5,
    q_max: float = 4.0,
    aggregation: Aggregation | Mode = "seq_mean_token_mean",
) -> Terms:
    """The clipped surrogate with one ratio for all tokens of like entropy in a rollout: ESPO, arXiv:2512.00499.

    The rollout's tokens are cut into `bins` parts of equal size by the entropy they were drawn at (signal `entropy`).
    Those of a part b share its geometric mean ratio, in token form, and its clip range
    ``eps · clip(H_b / H, q_min, q_max)``, H_b the mean entropy of the part and H that of the rollout. One bin is GSPO;
    as many bins as tokens and ``q_min = q_max = 1`` is GRPO.

    Args:
      bins: parts of a rollout, at least 1.
      eps_low: how far below 1 the ratio may go in a part of average entropy.
      eps_high: how far above.
      q_min: least factor of the clip range.
      q_max: largest factor of the clip range.
      aggregation: how token losses become one number.
    """
    if bins < 1:
        raise ValueError(f"entropy_grouped_surrogate: bins = {bins}, wanted >= 1")
    x = policy.read(new, credit, batch, "entropy_grouped_surrogate")
    entropy = jax.lax.stop_gradient(select(require(batch, "entropy", "entropy_grouped_surrogate"), x.mask))

    def group(entropy, mask):
        owner = segments.rank_bins(entropy, mask, bins)
        return owner, segments.broadcast(segments.segment_mean(entropy, owner, mask, bins), owner)

    owner, shared = jnp.vectorize(group, signature="(t),(t)->(t),(t)")(entropy, x.mask)
    r = policy.move(x, batch.replace(segment=owner, num_segments=bins, signals={}), "segment")
    relative = jnp.clip(shared / (masked_mean(entropy, x.mask, axis=-1, keepdims=True) + 1e-8), q_min, q_max)
    clip = (eps_low * relative, eps_high * relative)
    loss = losses.ppo_loss(r, x.advantage, *clip)
    return policy.policy_terms(loss, x, credit, aggregation, r, losses.ppo_clipped(r, x.advantage, *clip))
