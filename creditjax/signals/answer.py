"""How likely the policy finds the answer at every segment boundary: one batched pass, a row a rollout and boundary.

At boundary k the row keeps what was written up to the end of segment k - 1 (boundary 0: the prompt alone) and goes on
with an accepted answer. The task says what an answer looks like, in two signals that it adds in `annotate`:
`answer_tokens` i32 ``[P, C, A]``, -1 at padding, cue included, and `answer_scored` bool ``[P, C, A]``, the tokens whose
log-probability counts.
"""

import jax
from jax import numpy as jnp

from creditjax.models.base import Params, Policy
from creditjax.numerics import masked_mean
from creditjax.trajectory import Trajectory

Array = jax.Array


def boundary_ends(batch: Trajectory) -> Array:
    """How many positions lie before each segment boundary, i32 ``[..., K + 1]``.

    Boundary 0 lies before the first segment; a segment that owns no position ends where the one before it does.
    """
    order, present = jnp.arange(batch.length), batch.segment >= 0
    first = jnp.min(jnp.where(present, order, batch.length), axis=-1)
    # A segment at a time: no array [K, T].
    last = lambda k: jnp.max(jnp.where(present & (batch.segment <= k), order + 1, 0), axis=-1)  # noqa: E731
    ends = jax.lax.map(last, jnp.arange(batch.num_segments))
    return jnp.concatenate([first[..., None], jnp.maximum(jnp.moveaxis(ends, 0, -1), first[..., None])], axis=-1)


def answer_logprob(policy: Policy, params: Params, batch: Trajectory) -> Array:
    """Mean log-probability of each accepted answer's tokens at each boundary, f32 ``[P, G, K + 1, C]``.

    The model reads ``(K + 1) C`` times as many rows as the batch has, `A` positions longer. Temperature 1.

    Args:
      policy: the model.
      params: its parameters.
      batch: rollouts ``[P, G, T]`` with `segment`, `token_mask`, `answer_tokens` and `answer_scored`.
    """
    answer, scored = batch.signals["answer_tokens"], batch.signals["answer_scored"]
    ends = boundary_ends(batch)
    shape = (*ends.shape, answer.shape[1])  # P, G, K+1, C

    def rows(x: Array, tail: Array) -> Array:
        """``[P, G, K+1 or 1, 1, T]`` and ``[P, 1, 1, C, A]`` side by side."""
        parts = (jnp.broadcast_to(y, (*shape, y.shape[-1])) for y in (x, tail[:, None, None]))
        return jnp.concatenate(list(parts), axis=-1)

    kept = batch.signals["token_mask"][:, :, None] & (jnp.arange(batch.length) < ends[..., None])
    scored = scored & (answer >= 0)
    acted = rows(jnp.zeros_like(kept)[..., None, :], scored)
    flat = lambda x: x.reshape(-1, x.shape[-1])  # noqa: E731
    probe = Trajectory(
        tokens=flat(rows(batch.tokens[:, :, None, None], jnp.maximum(answer, 0))),
        action_mask=flat(acted),
        outcome=jnp.zeros(acted.size // acted.shape[-1]),
        signals={"token_mask": flat(rows(kept[..., None, :], answer >= 0))},
    )
    logprob = policy.evaluate(params, probe).logprob.reshape(*shape, -1)
    return masked_mean(logprob, acted, axis=-1)


def answer_potential(logprob: Array) -> Array:
    """``exp`` of the largest length-normalised log-probability over the accepted answers: ``[..., C]`` to ``[...]``."""
    return jnp.exp(jnp.max(logprob, axis=-1))
