"""Importance ratios of one stream: which log-ratio each token's loss multiplies its credit by.

A token has its own ratio; a sequence or a turn has one that its tokens share, either length-normalised (the geometric
mean of the token ratios) or not (their product). All functions stay in log space; ``numerics.safe_exp`` bounds the
exponent to ±20 and passes no gradient beyond.
"""

import jax
from jax import numpy as jnp

from creditjax.kernels import segments
from creditjax.numerics import select

Array = jax.Array
Scalar = jax.Array | float


def shared_log_ratio(
    log_ratio: Array, mask: Array, segment: Array | None = None, num_segments: int = 1, mean: bool = True
) -> Array:
    """The log-ratio of the whole sequence, or of the segment that owns the position, at each of its acted positions.

    ``mean``: ``log s = (1/n) Σ_t log r_t``, the geometric mean (GSPO, arXiv:2507.18071). Otherwise ``Σ_t log r_t``, the
    product: the true likelihood ratio of the sequence, whose spread grows with its length.

    Args:
      log_ratio: ``[T]``.
      mask: bool ``[T]``, where the policy acted.
      segment: i32 ``[T]``, -1 for none; such a position keeps its own ratio. None: the whole sequence is one segment.
      num_segments: K, static.
      mean: length-normalised or not.

    Returns:
      ``[T]``, 0 where not acted.
    """
    owner = jnp.zeros(mask.shape, jnp.int32) if segment is None else segment
    own = select(log_ratio, mask)
    reduce = segments.segment_mean if mean else segments.segment_sum
    total = segments.broadcast(reduce(own, owner, mask, num_segments), owner)
    return jnp.where(mask & (owner >= 0), total, own)


def token_form(shared: Array, log_ratio: Array) -> Array:
    """The value of `shared` with the gradient of the token's own log-ratio (GSPO-token, arXiv:2507.18071).

    With a length-normalised ratio and one credit for the whole sequence, the mean over tokens of a loss of this form
    has the gradient of the sequence's own loss; where the credit differs, each token is driven by its own.
    """
    return jax.lax.stop_gradient(shared) + (log_ratio - jax.lax.stop_gradient(log_ratio))


def one_sided_log_ratio(log_ratio: Array, advantage: Array, eps_low: Scalar, eps_high: Scalar) -> Array:
    """Token log-ratio held back on the side where its update would go too far, 0 where the advantage is 0; elementwise.

    ``min(log r, eps_high)`` for a positive advantage, ``max(log r, −eps_low)`` for a negative one: GMPO,
    arXiv:2507.20673, whose clip range in ratio space is ``(e^{−eps_low}, e^{eps_high})``.
    """
    held = jnp.where(advantage > 0, jnp.minimum(log_ratio, eps_high), jnp.maximum(log_ratio, -eps_low))
    return jnp.where(advantage == 0, 0.0, held)
