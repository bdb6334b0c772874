"""Training an implicit reward model on pairs of a group's rollouts, turn by turn (OPRL, arXiv:2509.19199).

`signals.implicit` has the losses that take every ranked pair of whole rollouts; here a threshold says who has won, and
the tokens outside turns do not count.
"""

import jax
from jax import numpy as jnp

from creditjax.numerics import masked_sum
from creditjax.trajectory import Trajectory, vote_mask

Array = jax.Array


def implicit_pair_loss(
    logprob_prm: Array, logprob_old: Array, batch: Trajectory, beta: float = 0.05, threshold: float = 0.0
) -> tuple[Array, Array]:
    """Preference loss of the implicit reward over pairs of rollouts of one prompt, as (sum, count).

        r = beta * sum_{t in turns} (logprob_prm_t - logprob_old_t)
        loss = - sum_pairs log sigmoid(r(winner) - r(loser))

    A winner has an outcome above `threshold`, a loser has not; all such pairs of a group count. At ``pi_prm = pi_old``
    it is log 2 a pair.

    Args:
      logprob_prm: ``[P, G, T]``, with gradient.
      logprob_old: ``[P, G, T]``, under the policy that drew the rollouts; its gradient is stopped.
      batch: with `segment`, whose tokens alone count, or without, where all do. Rows that do not vote take no part.
      beta: scale of the reward.
      threshold: above it a rollout is a winner.

    Returns:
      The summed loss and the number of pairs, both f32 scalars.
    """
    counted = vote_mask(batch)
    mask = batch.action_mask if batch.segment is None else batch.action_mask & (batch.segment >= 0)
    reward = beta * (
        masked_sum(logprob_prm, mask, axis=-1) - masked_sum(jax.lax.stop_gradient(logprob_old), mask, axis=-1)
    )
    won = jnp.where(counted, batch.outcome, 0.0) > threshold
    pair = (counted & won)[..., :, None] & (counted & ~won)[..., None, :]
    loss = -jax.nn.log_sigmoid(reward[..., :, None] - reward[..., None, :])
    return masked_sum(loss, pair), jnp.sum(pair, dtype=jnp.float32)
