"""The distribution that tokens are drawn from, one definition for the sampler and for the teacher-forced pass.

A ratio between the two is only right if both renormalise over the same support (a trainer that scores the full softmax
against a nucleus sampler is off by the log of the nucleus' mass at every token), so nothing else in the library divides
logits by a temperature or cuts a tail off.
"""

from collections.abc import Sequence

import jax
from jax import numpy as jnp

from creditjax.kernels.kl import kl_full
from creditjax.models.base import Sampling

Array = jax.Array

# A nucleus reaches its mass up to rounding: 0.5 + 0.3 must count as 0.8.
_MASS_TOLERANCE = 1e-6

STATISTICS = ("self_certainty", "chosen_logit", "sum_pi_squared")


def check_sampling(sampling: Sampling) -> Sampling:
    """Returns `sampling`; raises `ValueError` naming the field that is out of range."""
    if not sampling.temperature >= 0:
        raise ValueError(f"sampling.temperature: {sampling.temperature}, wanted a number >= 0 (0 is greedy)")
    if not (isinstance(sampling.top_k, int) and sampling.top_k >= 0):
        raise ValueError(f"sampling.top_k: {sampling.top_k!r}, wanted an int >= 0 (0 keeps all)")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"sampling.top_p: {sampling.top_p}, wanted a number in (0, 1]")
    return sampling


def filter_logits(logits: Array, sampling: Sampling, include: Array | None = None) -> Array:
    """Logits of the sampling distribution: divided by the temperature, ``-inf`` outside the support.

    The support is the `top_k` largest logits, then the smallest set of the most probable of them whose renormalised
    mass reaches `top_p` (Holtzman et al. 2020, arXiv:1904.09751). Ties are broken by the lower index, so exactly k
    tokens stay. Temperature 0 keeps the arg max alone, undivided: its log-probability is 0.

    Args:
      logits: ``[..., V]``, raw.
      sampling: static.
      include: i32 ``[...]``, tokens that belong to the support whatever their probability: an off-policy token then
        gets a finite log-probability. A token that is in the support already changes nothing.

    Returns:
      f32 ``[..., V]``; ``softmax`` of it is the distribution.

    Raises:
      ValueError: a field of `sampling` out of range.
    """
    check_sampling(sampling)
    logits = logits.astype(jnp.float32)
    vocab = jnp.arange(logits.shape[-1])
    if sampling.temperature == 0:
        keep = vocab == jnp.argmax(logits, axis=-1, keepdims=True)
    else:
        logits = logits / sampling.temperature
        keep = None
        if 0 < sampling.top_k < logits.shape[-1]:
            keep = _largest(logits, jnp.full((*logits.shape[:-1], 1), sampling.top_k))
        if sampling.top_p < 1:
            candidates = logits if keep is None else jnp.where(keep, logits, -jnp.inf)
            descending = -jnp.sort(-jax.nn.softmax(candidates, axis=-1), axis=-1)
            before = jnp.cumsum(descending, axis=-1) - descending
            size = jnp.sum(before < sampling.top_p - _MASS_TOLERANCE, axis=-1, keepdims=True)
            keep = _largest(candidates, jnp.maximum(size, 1))
        if keep is None:
            return logits
    if include is not None:
        keep |= vocab == include[..., None]
    return jnp.where(keep, logits, -jnp.inf)


def _largest(logits: Array, count: Array) -> Array:
    """The `count` ``[..., 1]`` largest entries, ties to the lower index: one sort of values, no permutation."""
    threshold = jnp.take_along_axis(-jnp.sort(-logits, axis=-1), count - 1, axis=-1)
    above, tied = logits > threshold, logits == threshold
    room = count - jnp.sum(above, axis=-1, keepdims=True)
    return above | (tied & (jnp.cumsum(tied, axis=-1) <= room))


def token_statistics(logits: Array, tokens: Array, sampling: Sampling, names: Sequence[str] = ()) -> dict[str, Array]:
    """What a distribution says about its sampled tokens.

    With ``pi = softmax(filter_logits(logits, sampling, tokens))``:

    * ``logprob``: ``log pi(token)``; ``entropy``: ``-sum_v pi log pi``; always given;
    * ``sum_pi_squared``: ``sum_v pi^2``;
    * ``chosen_logit``: the raw logit of the token, before temperature;
    * ``self_certainty``: ``KL(U || softmax(logits / temperature)) = -log V - mean_v log pi`` (Kang et al. 2025,
      arXiv:2502.18581), over the whole vocabulary, because it is infinite on a truncated support.

    Args:
      logits: ``[..., V]``, raw.
      tokens: i32 ``[...]``.
      sampling: static.
      names: which of `STATISTICS` to add.

    Returns:
      f32 ``[...]`` by name.

    Raises:
      ValueError: a name that is not one of `STATISTICS`.
    """
    if unknown := [name for name in names if name not in STATISTICS]:
        raise ValueError(
            f"statistics: {', '.join(unknown)} cannot be computed from logits, wanted {', '.join(STATISTICS)}"
        )
    logits = logits.astype(jnp.float32)
    tokens = jnp.clip(tokens, 0, logits.shape[-1] - 1)
    scaled = filter_logits(logits, sampling, tokens)
    support = scaled > -jnp.inf
    # Selected before the subtraction: the gradient of 0 * -inf is NaN.
    logpi = jnp.where(support, scaled, 0.0) - jax.nn.logsumexp(scaled, axis=-1, keepdims=True)
    pi = jnp.where(support, jnp.exp(logpi), 0.0)
    out = {"logprob": _pick(logpi, tokens), "entropy": -jnp.sum(pi * logpi, axis=-1)}
    if "sum_pi_squared" in names:
        out["sum_pi_squared"] = jnp.sum(jnp.square(pi), axis=-1)
    if "chosen_logit" in names:
        out["chosen_logit"] = _pick(logits, tokens)
    if "self_certainty" in names:
        full = jax.nn.log_softmax(logits / (sampling.temperature or 1.0), axis=-1)
        out["self_certainty"] = -jnp.log(float(logits.shape[-1])) - jnp.mean(full, axis=-1)
    return out


def token_divergence(logits: Array, other: Array, sampling: Sampling) -> Array:
    """``KL(pi || pi_other)`` of the whole softmaxes at the sampling temperature (1 for greedy), f32 ``[...]`` in nats.

    Args:
      logits: ``[..., V]``, raw.
      other: ``[..., V]``, raw.
      sampling: static; `top_k` and `top_p` are not looked at, because truncated supports differ.
    """
    temperature = sampling.temperature or 1.0
    return kl_full(*(jax.nn.log_softmax(x.astype(jnp.float32) / temperature, axis=-1) for x in (logits, other)))


def _pick(x: Array, tokens: Array) -> Array:
    return jnp.take_along_axis(x, tokens[..., None], axis=-1)[..., 0]
