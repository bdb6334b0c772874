"""An implicit process-reward model: a language model trained on outcomes, whose log-ratio to its start is the reward.

With ``R(y) = beta * sum_t (log pi_prm(y_t | y_<t) - log pi_ref(y_t | y_<t))`` fitted to the outcome, the partial sums
are the exact soft values ``beta * log E_{y ~ pi_ref}[exp(R(y) / beta) | y_<=t]``, so every token gets a reward without
a step label (Yuan et al. 2024, arXiv:2412.01981). PRIME keeps training it on the policy's own rollouts (Cui et al.
2025, arXiv:2502.01456).
"""

import typing
from typing import Literal

import jax
from jax import numpy as jnp

from creditjax.kernels import pairs
from creditjax.models.base import Params, Policy
from creditjax.naming import nearest
from creditjax.numerics import masked_sum
from creditjax.trajectory import Trajectory, vote_mask, vote_weight

Array = jax.Array
OutcomeLoss = Literal["ce", "kto", "dpo", "nca"]


def implicit_prm_probe(policy: Policy, prm_params: Params, batch: Trajectory) -> Trajectory:
    """Adds `logprob_prm` ``[..., T]``: each acted token under `prm_params` at temperature 1; gradient stopped."""
    return batch.with_signals(logprob_prm=jax.lax.stop_gradient(policy.evaluate(prm_params, batch).logprob))


def implicit_reward(logprob_prm: Array, logprob_ref: Array, mask: Array, beta: float | Array = 0.05) -> Array:
    """``R(y) = beta * sum_t (logprob_prm_t - logprob_ref_t)`` of each rollout, f32 ``[...]``: what ranks them.

    Its parts are the rewards of steps (recipe `implicit_prm`) and, up to a position, the soft values of prefixes.

    Args:
      logprob_prm: ``[..., T]``, with gradient.
      logprob_ref: ``[..., T]``, under the frozen start; its gradient is stopped.
      mask: bool ``[..., T]``, where the policy acted.
      beta: scale of the reward.
    """
    reference = masked_sum(jax.lax.stop_gradient(logprob_ref), mask, axis=-1)
    return beta * (masked_sum(logprob_prm, mask, axis=-1) - reference)


def implicit_prm_loss(
    logprob_prm: Array,
    logprob_ref: Array,
    batch: Trajectory,
    beta: float | Array = 0.05,
    kind: OutcomeLoss = "ce",
    z: float | Array = 0.0,
) -> tuple[Array, Array]:
    """How badly the implicit reward R explains the outcomes l, as (sum, count); each loss needs outcomes alone.

        kind   of       loss                                                                     at pi_prm = pi_ref
        ce     rollout  -[l log sigmoid(R) + (1 - l) log sigmoid(-R)]                            log 2
        kto    rollout  -[l log sigmoid(R - z) + (1 - l) log sigmoid(z - R)]                     log 2 (z = 0)
        dpo    pair     -log sigmoid(R+ - R-)                                                    log 2
        nca    pair     -log sigmoid(R+) - 1/2 [log sigmoid(-R+) + log sigmoid(-R-)]             2 log 2

    Pairs are all those of a group ``[..., G, T]`` whose outcomes differ. The paper (arXiv:2412.01981) finds "ce" best
    with one response a prompt; PRIME (arXiv:2502.01456) uses it.

    Args:
      logprob_prm: ``[..., T]``, with gradient.
      logprob_ref: ``[..., T]``, under the frozen start; its gradient is stopped.
      batch: outcomes in [0, 1]; rows that do not vote (unscored, never acted, flagged) take no part.
      beta: scale of the reward.
      kind: which loss.
      z: the reference point of "kto", ``max(0, mean R of mismatched prompts and responses)``; no gradient.

    Returns:
      The summed loss and the number of rollouts or pairs in it, both f32 scalars. The number does not depend on the
      log-probabilities.

    Raises:
      ValueError: no such kind, or pairs without a group axis.
    """
    reward = implicit_reward(logprob_prm, logprob_ref, batch.action_mask, beta)
    if kind in ("ce", "kto"):
        counted = vote_mask(batch)
        lead = reward - (jax.lax.stop_gradient(z) if kind == "kto" else 0.0)
        outcome = jnp.where(counted, batch.outcome, 0.0)
        loss = -(outcome * jax.nn.log_sigmoid(lead) + (1 - outcome) * jax.nn.log_sigmoid(-lead))
        return masked_sum(loss, counted), jnp.sum(counted, dtype=jnp.float32)
    if kind not in ("dpo", "nca"):
        raise ValueError(f"kind: {kind!r}; {nearest(kind, typing.get_args(OutcomeLoss))}")
    return _pair_loss(reward, batch, batch.outcome, kind)


def implicit_pair_loss(
    logprob_prm: Array,
    logprob_ref: Array,
    batch: Trajectory,
    beta: float | Array = 0.05,
    threshold: float | Array | None = None,
    *,
    turns_only: bool = False,
) -> tuple[Array, Array]:
    """The "dpo" loss of :func:`implicit_prm_loss`; with `threshold`, of the rollouts above it against the others.

    OPRL (arXiv:2509.19199) takes the policy that drew the rollouts as the reference, the success threshold of its
    environment, and the tokens of turns alone (`turns_only`, by the batch's `segment`).
    """
    outcome, mask = batch.outcome, batch.action_mask
    if turns_only and batch.segment is not None:
        mask = mask & (batch.segment >= 0)
    if threshold is not None:
        outcome = jnp.where(jnp.isfinite(outcome), (outcome > threshold).astype(jnp.float32), outcome)
    return _pair_loss(implicit_reward(logprob_prm, logprob_ref, mask, beta), batch, outcome, "dpo")


def _pair_loss(reward: Array, batch: Trajectory, outcome: Array, kind: OutcomeLoss) -> tuple[Array, Array]:
    """Summed loss and number of the pairs of different `outcome` in each group."""
    if reward.ndim < 1:
        raise ValueError(f"tokens: shape {list(batch.tokens.shape)}, wanted [..., G, T] for the pairs of {kind!r}")

    def group(reward: Array, outcome: Array, vote: Array) -> tuple[Array, Array]:
        found = pairs.ranked_pairs(outcome, vote)
        if kind == "dpo":
            return pairs.pair_logistic(reward, reward, found.weight), jnp.sum(found.there)
        preferred = jax.nn.softplus(-reward) + 0.5 * jax.nn.softplus(reward)
        each = preferred[:, None] + 0.5 * jax.nn.softplus(reward)[None, :]
        return jnp.sum(found.weight * each), jnp.sum(found.there)

    of_groups = group
    for _ in reward.shape[:-1]:
        of_groups = jax.vmap(of_groups)
    losses, numbers = of_groups(reward, outcome, vote_weight(batch))
    return jnp.sum(losses), jnp.sum(numbers)
