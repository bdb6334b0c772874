"""Interventions: a rollout up to its first wrong step, then one replacement step (InT, arXiv:2601.14209).

The model checks its own failed rollout against a reference solution and proposes a single step z in place of the first
wrong one, k*. `splice` writes the sequence ``x, y_{<k*}, z`` on which the policy is then trained with
`objectives.weighted_cloning`; `keep` says which proposals are worth it, `uplift` what they bring. How the check is
asked for, and by whom the continuations are sampled, is the caller's: any rollout function will do.
"""

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.trajectory import Trajectory

Array = jax.Array


def splice(
    batch: Trajectory,
    first_error: Array,
    tokens: Array,
    mask: Array,
    *,
    keep_prefix: bool = True,
    keep_suffix: bool = False,
) -> Trajectory:
    """Puts an intervention in place of the first wrong step; T + L positions, whatever the lengths are.

    ``x, y_{<k*}, z``: everything before the first acted position of step k*, then the intervention. What is to be
    imitated is in `action_mask`: the acted positions of the prefix, and z. A row without an error, or with an empty
    intervention, acts nowhere. The outcome of what was never played is NaN.

    Args:
      batch: rollouts ``[..., T]`` with `segment`.
      first_error: i32 ``[...]``, k*; -1 for none found.
      tokens: i32 ``[..., L]``, z from the left.
      mask: bool ``[..., L]``, where z has a token, from the left without a gap.
      keep_prefix: imitate the prefix too; it stays in the sequence either way.
      keep_suffix: the tokens after step k* follow, as context nobody is trained on.

    Returns:
      Tokens, action mask, segments (those of z are k*) and the signal `token_mask`.

    Raises:
      ValueError: shapes that do not fit, or a batch without `segment`.
    """
    lead = batch.batch_shape
    if batch.segment is None:
        raise ValueError("segment: absent, wanted the steps of the rollouts")
    if first_error.shape != lead or tokens.shape[:-1] != lead or mask.shape != tokens.shape:
        raise ValueError(
            f"first_error {list(first_error.shape)}, tokens {list(tokens.shape)}, mask {list(mask.shape)}, "
            f"wanted {list(lead)}, {[*lead, 'L']} and {[*lead, 'L']}"
        )
    there = batch.signals.get("token_mask", batch.action_mask)

    def one(row, step, z, z_mask):
        y, acts, ids, there = row
        position = jnp.arange(y.shape[0])
        inside = acts & (ids == step) & (step >= 0)
        size = jnp.sum(z_mask)
        usable = jnp.any(inside) & (size > 0)
        start = jnp.argmax(inside)
        after = jnp.max(jnp.where(inside, position, -1)) + 1
        at = jnp.arange(y.shape[0] + z.shape[0])
        before, proposed = at < start, (at >= start) & (at < start + size)
        source = jnp.where(before, at, at - start - size + after)
        shown = before | (~proposed & (source < y.shape[0]) & keep_suffix)
        source = jnp.clip(source, 0, y.shape[0] - 1)
        from_z = jnp.clip(at - start, 0, z.shape[0] - 1)

        def either(old, new, none):
            return jnp.where(proposed, new, jnp.where(shown, old[source], none))

        held = either(there | acts, True, False)
        trained = either(acts & keep_prefix, True, False) & (before | proposed) & usable
        return either(y, z[from_z], 0), trained, jnp.where(held, either(ids, step, -1), -1), held

    rows = (batch.tokens, batch.action_mask, batch.segment, there)
    spliced = one
    for _ in lead:
        spliced = jax.vmap(spliced)
    words, trained, ids, held = spliced(rows, first_error, tokens, mask)
    return Trajectory(
        tokens=words,
        action_mask=trained,
        outcome=jnp.full(lead, jnp.nan),
        segment=ids,
        signals={"token_mask": held},
        num_segments=batch.num_segments,
    )


def keep(first_error: Array, mask: Array, gives_answer: Array, continuation_success: Array) -> Array:
    """Which proposals to train on, bool ``[...]``: an error was found, z is no empty step and does not give the answer
    away, and at least one continuation of ``x, y_{<k*}, z`` is right.

    Args:
      first_error: i32 ``[...]``, -1 for none.
      mask: bool ``[..., L]``, where z has a token.
      gives_answer: bool ``[...]``, z contains the final answer.
      continuation_success: ``[..., M]``, 0 or 1.
    """
    solved = jnp.max(continuation_success, axis=-1) > 0.5
    return (first_error >= 0) & jnp.any(mask, axis=-1) & ~gives_answer & solved


def uplift(after: Array, before: Array, kept: Array) -> Array:
    """Mean success after the intervention minus that after the bare prefix, over the kept proposals; f32 scalar.

    Args:
      after: ``[..., M]``, successes of continuations of ``x, y_{<k*}, z``.
      before: ``[..., M']``, of continuations of ``x, y_{<k*}``.
      kept: bool ``[...]``.
    """
    return numerics.masked_mean(jnp.mean(after, axis=-1) - jnp.mean(before, axis=-1), kept)
