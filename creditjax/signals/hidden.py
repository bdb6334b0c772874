"""Hidden states and what a head on them says of every prefix."""

from typing import Any

import jax
from jax import numpy as jnp

from creditjax.models.base import Params
from creditjax.trajectory import Trajectory

Array = jax.Array


def hidden_states(policy: Any, params: Params, batch: Trajectory) -> Array:
    """The output layer's input from which each acted token was predicted, f32 ``[..., T, H]``, 0 elsewhere.

    The gradient of a token's log-probability by the output matrix is ``(onehot - pi) hidden``; its part along the
    token's own row is ``(1 - pi(token)) hidden``, the feature that DelTA compares tokens by (arXiv:2605.21467).
    """
    hidden = policy.contexts(params, batch).astype(jnp.float32)
    return jnp.where(batch.action_mask[..., None], hidden, 0.0)


def gradient_features(hidden: Array, logprob: Array, mask: Array) -> Array:
    """``(1 - exp(logprob_t)) hidden_t``: the last layer's share of each token's gradient, f32 ``[..., T, H]``."""
    surprise = -jnp.expm1(jnp.where(mask, jnp.minimum(logprob, 0.0), 0.0))
    return jnp.where(mask[..., None], surprise[..., None] * hidden, 0.0)


def prefix_scores(policy: Any, params: Params, batch: Trajectory) -> dict[str, Array]:
    """The value head's score of every prefix: what a reward model says of a text as it grows (RED, arXiv:2411.08302).

    Returns:
      `prefix_score` f32 ``[P, G, T]``, of the text up to and including t, and `prompt_score` f32 ``[P]``, of what all
      rollouts of a prompt begin with before any of them acts.
    """
    scores = policy.prefix_values(params, batch)
    acted = jnp.any(batch.action_mask, axis=-2)
    first = jnp.where(jnp.any(acted, axis=-1), jnp.argmax(acted, axis=-1), batch.length)
    prompt = jnp.take_along_axis(scores[..., 0, :], first[..., None], axis=-1)[..., 0]
    return {"prefix_score": scores[..., 1:], "prompt_score": prompt}
