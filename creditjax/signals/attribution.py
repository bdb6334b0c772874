"""Which tokens a judge or reward model goes by: gradients with respect to token embeddings, and other explainers.

All run on the policy's own network, frozen: it judges itself (Grad2Reward, arXiv:2602.01791), and its value head is the
reward model (arXiv:2504.16272).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.models.base import Params
from creditjax.numerics import masked_sum, safe_divide
from creditjax.trajectory import Trajectory, segment_mask

Array = jax.Array

EXPLAINERS = ("gradient", "attention", "lime")


def gradient_dot_embedding(score: Callable[[Array], Array], embeddings: Array) -> Array:
    """``<d score / d e_t, e_t>`` for every position, f32 ``[B, n]``.

    Args:
      score: from embeddings ``[B, n, H]`` to scores ``[B]``, each of its own row.
      embeddings: ``[B, n, H]``.
    """
    gradient = jax.grad(lambda e: jnp.sum(score(e)))(embeddings)
    return jnp.sum(gradient.astype(jnp.float32) * embeddings.astype(jnp.float32), axis=-1)


def judge_gradients(policy: Any, params: Params, batch: Trajectory, verdicts: Array) -> tuple[Array, Array]:
    """How much each token speaks for the judge's approval, and the approval, by criterion.

    Behind the rollout the judge reads what it is asked and writes one token, "yes" say; positive gradients support it.
    One forward and one backward pass a criterion.

    Args:
      policy: a model with `embeddings` and `score_embedded`.
      params: of the judge.
      batch: rollouts ``[..., T]`` with `token_mask`.
      verdicts: i32 ``[C, A]``: for each criterion the question's tokens, then the approving one.

    Returns:
      ``<d log p(verdict) / d e_t, e_t>`` f32 ``[..., T, C]``, 0 outside `action_mask`, and ``p(verdict)`` ``[..., C]``.
    """
    length, size = batch.length, verdicts.shape[1]
    tokens, mask = (x.reshape(-1, length) for x in (batch.tokens, batch.signals["token_mask"]))
    scored = jnp.broadcast_to(jnp.arange(length + size) == length + size - 1, (len(tokens), length + size))
    real = jnp.pad(mask, ((0, 0), (0, size)), constant_values=True)

    def judge(verdict):
        asked = jnp.concatenate([tokens, jnp.broadcast_to(verdict, (len(tokens), size))], axis=1)
        embedded = policy.embeddings(params, asked, real)
        score = lambda e: policy.score_embedded(params, e, asked, real, scored)  # noqa: E731
        return gradient_dot_embedding(score, embedded)[:, :length], jnp.exp(score(embedded))

    support, approval = jax.lax.map(judge, jnp.asarray(verdicts, jnp.int32))
    support = jnp.moveaxis(support, 0, -1).reshape(*batch.tokens.shape, -1)
    approval = jnp.moveaxis(approval, 0, -1).reshape(*batch.batch_shape, -1)
    return jnp.where(batch.action_mask[..., None], support, 0.0), approval


def shares(phi: Array, mask: Array, tolerance: float = 1e-6) -> Array:
    """An additive attribution as shares that sum to 1 over the acted tokens: ``phi / sum phi``, f32 ``[..., T]``.

    Uniform where ``|sum phi| <= tolerance``; 0 outside the mask. Shares may be negative.
    """
    total = masked_sum(phi, mask, axis=-1, keepdims=True)
    usable = jnp.abs(total) > tolerance
    uniform = safe_divide(jnp.float32(1), jnp.sum(mask, axis=-1, keepdims=True, dtype=jnp.float32))
    return jnp.where(mask, jnp.where(usable, phi / jnp.where(usable, total, 1.0), uniform), 0.0)


def lime(score: Callable[[Array], Array], segments: int, samples: int, width: float = 0.25, ridge: float = 1e-3):
    """Weights of K segments in a linear model of the score of rollouts with some segments left out, f32 ``[..., K]``.

        min_w sum_z exp(-D(z)^2 / width^2) (score(z) - w_0 - w z)^2 + ridge |w|^2,    D(z) the share left out

    Args:
      score: from keep-vectors bool ``[S, K]`` to scores ``[S, ...]``.
      segments: K.
      samples: S, the number of keep-vectors, all segments kept and fixed random ones.
      width: of the kernel, as a share of the segments.
      ridge: of the fit.
    """
    drawn = np.random.default_rng(0).random((samples - 1, segments)) < 0.5
    keep = np.concatenate([np.ones((1, segments), bool), drawn])
    weight = np.exp(-np.square((1 - keep.mean(1)) / width))
    design = np.concatenate([np.ones((samples, 1)), keep], axis=1)
    normal = design.T @ (weight[:, None] * design) + ridge * np.eye(segments + 1)
    solve = np.linalg.solve(normal, design.T * weight).astype(np.float32)[1:]  # [K, S]
    return jnp.moveaxis(jnp.tensordot(jnp.asarray(solve), score(jnp.asarray(keep)), axes=1), 0, -1)


def attributions(policy: Any, params: Params, batch: Trajectory, samples: int = 16) -> Array:
    """Shares of the value head's final score by the explainers of `EXPLAINERS`, f32 ``[..., T, X]``.

    * gradient: ``<d score / d e_t, e_t>``;
    * attention: what the last token reads from each, mean over heads and layers;
    * lime: a linear model over segments left out, a segment's weight spread evenly over its tokens.

    Each sums to 1 over the acted tokens. Costs one backward pass and ``samples + 2`` forward passes.

    Raises:
      ValueError: the policy has no value head.
    """
    length = batch.length
    tokens, mask, acted = (
        x.reshape(-1, length) for x in (batch.tokens, batch.signals["token_mask"], batch.action_mask)
    )
    segment = batch.segment.reshape(-1, length)
    score = lambda e, m: policy.value_embedded(params, e, m)  # noqa: E731
    embedded = policy.embeddings(params, tokens, mask)
    gradient = gradient_dot_embedding(lambda e: score(e, mask), embedded)

    final = jnp.max(jnp.where(mask, jnp.arange(length), 0), axis=1)

    def read(carry, _, weight):
        row = jnp.take_along_axis(weight, final[:, None, None, None], axis=2)[:, :, 0]
        return carry + jnp.mean(row, axis=1)

    attention = policy.fold_attention(params, tokens, mask, read, jnp.zeros(tokens.shape))

    def left_out(keep: Array) -> Array:
        kept = ~acted | (segment < 0) | keep[jnp.maximum(segment, 0)]
        return score(embedded, mask & kept)

    weights = lime(lambda keeps: jax.lax.map(left_out, keeps), batch.num_segments, samples)  # [B, K]
    owned = segment_mask(batch).reshape(-1, batch.num_segments)
    spread = lambda k: jnp.where(acted & (segment == k), 1.0, 0.0)  # noqa: E731

    def add(carry, k):
        share = spread(k)
        size = jnp.sum(share, axis=1, keepdims=True)
        return carry + safe_divide(jnp.where(owned[:, k], weights[:, k], 0.0)[:, None] * share, size), None

    by_segment, _ = jax.lax.scan(add, jnp.zeros(tokens.shape), jnp.arange(batch.num_segments))
    found = jnp.stack([shares(x, acted) for x in (gradient, attention, by_segment)], axis=-1)
    return found.reshape(*batch.tokens.shape, -1)
