"""What a generative judge wrote: a label for every step of a solution, then one for its outcome. Pure JAX.

(TIPS, RUCBM/TIPS.) A label is one of two tokens. The judge reasons in other tokens and then writes K step labels and
the outcome label; any other number of labels is unparsable.
"""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from creditjax.trajectory import Trajectory

Array = jax.Array


class Judgement(NamedTuple):
    """A judge's rollouts, read.

    Attributes:
      verdict: i32 ``[...]``, its outcome label: 1 right, 0 wrong, -1 unparsable.
      first_error: i32 ``[...]``, the first step that it labels wrong, -1 for none; -1 too where unparsable.
      label: f32 ``[..., K]``, 1 for a step labelled right and 0 for one labelled wrong; NaN where unparsable.
      position: i32 ``[..., K]``, where each step's label stands, 0 where unparsable: what reads a soft score there.
    """

    verdict: Array
    first_error: Array
    label: Array
    position: Array


def read_judgement(tokens: Array, mask: Array, steps: Array, *, right: int, wrong: int, num_steps: int) -> Judgement:
    """Reads the labels of judgements, any leading axes.

    One that does not have exactly a label a step and one for the outcome is not parsed; a label token in the reasoning
    counts too.

    Args:
      tokens: i32 ``[..., T]``.
      mask: bool ``[..., T]``, where the judge wrote.
      steps: i32 ``[...]``, how many steps the solution has, at most `num_steps`.
      right: the token that says right.
      wrong: the token that says wrong.
      num_steps: K, static.
    """

    def one(tokens: Array, mask: Array, steps: Array):
        is_label = mask & ((tokens == right) | (tokens == wrong))
        place = jnp.cumsum(is_label) - 1
        parsed = (jnp.sum(is_label) == steps + 1) & (steps <= num_steps)
        # The positions of the labels in order; those behind the outcome's fall out of range.
        slot = jnp.where(is_label & parsed, place, num_steps + 1)
        where = jnp.zeros(num_steps + 1, jnp.int32).at[slot].set(jnp.arange(tokens.shape[0]), mode="drop")
        says = tokens[where] == right
        real = (jnp.arange(num_steps) < steps) & parsed
        bad = real & ~says[:num_steps]
        verdict = jnp.where(parsed, says[jnp.clip(steps, 0, num_steps)].astype(jnp.int32), -1)
        first = jnp.where(jnp.any(bad), jnp.argmax(bad), -1)
        label = jnp.where(real, says[:num_steps].astype(jnp.float32), jnp.nan)
        return verdict, first.astype(jnp.int32), label, jnp.where(real, where[:num_steps], 0)

    return Judgement(*jnp.vectorize(one, signature="(t),(t),()->(),(),(k),(k)")(tokens, mask, steps))


def add_verdict(
    batch: Trajectory, steps: Array, labels: Array, *, right: int, wrong: int, num_steps: int
) -> Trajectory:
    """A judge's batch ``[P, G, T]`` with the signals `verdict` and `solution_label`.

    Args:
      batch: rollouts of the judge, one prompt a solution.
      steps: i32 ``[P]``, how many steps each solution has.
      labels: i32 ``[P]``, its true outcome label.
      right: the token that says right.
      wrong: the token that says wrong.
      num_steps: the most steps of any solution, static.
    """
    read = read_judgement(
        batch.tokens, batch.action_mask, steps[:, None], right=right, wrong=wrong, num_steps=num_steps
    )
    return batch.with_signals(verdict=read.verdict, solution_label=labels)
