"""How likely the policy finds the answer at every segment boundary: one batched pass, a row a rollout and boundary.

At boundary k the row keeps what was written up to the end of segment k - 1 (boundary 0: the prompt alone) and goes on
with an accepted answer. The task says what an answer looks like, in two signals that it adds in `annotate`:
`answer_tokens` i32 ``[P, C, A]``, -1 at padding, cue included, and `answer_scored` bool ``[P, C, A]``, the tokens whose
log-probability counts.
"""

import jax
from jax import numpy as jnp

from creditjax.models.base import Params, Policy, PolicyOutput, Sampling
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


def force_answers(
    policy: Policy, params: Params, batch: Trajectory, ends: Array, sampling: Sampling = Sampling()
) -> tuple[PolicyOutput, Array]:
    """What the policy says of each accepted answer, written behind each of N cuts of every rollout.

    The model reads ``N C`` times as many rows as the batch has, `A` positions longer.

    Args:
      policy: the model.
      params: its parameters.
      batch: rollouts ``[P, G, T]`` with `token_mask`, `answer_tokens` and `answer_scored`.
      ends: i32 ``[P, G, N]``, how many positions lie before each cut.
      sampling: static.

    Returns:
      Log-probability and entropy ``[P, G, N, C, T + A]``, and where an answer's token counts, bool of that shape.
    """
    answer, scored = batch.signals["answer_tokens"], batch.signals["answer_scored"]
    shape = (*ends.shape, answer.shape[1])  # P, G, N, C

    def rows(x: Array, tail: Array) -> Array:
        """``[P, G, N or 1, 1, T]`` and ``[P, 1, 1, C, A]`` side by side."""
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
    out = policy.evaluate(params, probe, sampling)
    return PolicyOutput(out.logprob.reshape(acted.shape), out.entropy.reshape(acted.shape)), acted


def answer_probe(policy: Policy, params: Params, batch: Trajectory) -> tuple[Array, Array]:
    """Mean log-probability, and mean entropy, of each accepted answer's tokens at each boundary.

    The model reads ``(K + 1) C`` times as many rows as the batch has, `A` positions longer. Temperature 1.

    Args:
      policy: the model.
      params: its parameters.
      batch: rollouts ``[P, G, T]`` with `segment`, `token_mask`, `answer_tokens` and `answer_scored`.

    Returns:
      Two f32 ``[P, G, K + 1, C]``, the first NaN for an answer of which no token is scored, such as padding where a
      prompt accepts fewer. The entropy is that of the distributions along the forced answer; for an answer of one token
      it is that of a drawn one.
    """
    out, scored = force_answers(policy, params, batch, boundary_ends(batch))
    logprob = jnp.where(jnp.any(scored, axis=-1), masked_mean(out.logprob, scored, axis=-1), jnp.nan)
    return logprob, masked_mean(out.entropy, scored, axis=-1)


def answer_signals(policy: Policy, params: Params, batch: Trajectory) -> dict[str, Array]:
    """What the probe says under the names of the signal table.

    `answer_logprob` ``[P, G, K + 1, C]``; `potential` ``[P, G, K + 1]``, the probability of the likeliest accepted
    answer, normalised by its length; `correctness` ``[P, G, K]``, the same after each segment; `confidence`
    ``[P, G, K]``, ``exp(-entropy)`` there, of the same answer.
    """
    logprob, entropy = answer_probe(policy, params, batch)
    likelihood = jnp.where(jnp.isnan(logprob), -jnp.inf, logprob)
    best = jnp.argmax(likelihood, axis=-1, keepdims=True)
    potential = jnp.exp(jnp.max(likelihood, axis=-1))
    confidence = jnp.exp(-jnp.take_along_axis(entropy, best, axis=-1)[..., 0])
    return {
        "answer_logprob": logprob,
        "potential": potential,
        "correctness": potential[..., 1:],
        "confidence": confidence[..., 1:],
    }
