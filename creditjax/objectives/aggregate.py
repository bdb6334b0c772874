"""From token losses to one number: where 1/length sits, as an exact sum and an exact count.

The four answers to one batch (case: lengths 1 and 3, token losses [−1] and [1, 1, 1]):

    token_mean                Σ_i s_i / Σ_i n_i          0.5    DAPO, PPO: every token weighs the same
    seq_mean_token_mean       Σ_i (s_i / n_i) / N        0      GRPO, GSPO: every rollout weighs the same
    seq_mean_token_sum        Σ_i s_i / N                1      REINFORCE: a rollout weighs as much as it is long
    seq_mean_token_sum_norm   Σ_i s_i / (N · L)          0.25   Dr. GRPO: as before, on a token's scale (here L = 4)

with ``s_i`` the sum and ``n_i`` the number of row i's positions in the loss, and N the number of rows with ``n_i > 0``.
"""

import typing
from typing import Literal, NamedTuple

import jax
from jax import numpy as jnp

from creditjax.naming import nearest
from creditjax.numerics import masked_count, masked_sum, safe_divide

Array = jax.Array

Mode = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]

MODES: tuple[Mode, ...] = typing.get_args(Mode)


class Aggregation(NamedTuple):
    """How token losses become one number; wherever one is wanted, a bare mode will do.

    Attributes:
      mode: one of `MODES`.
      length: L of "seq_mean_token_sum_norm", a generation budget that does not depend on what was generated. None: T,
        the padded width, prompt included.
    """

    mode: Mode = "token_mean"
    length: int | None = None

    @classmethod
    def of(cls, value: "Aggregation | Mode") -> "Aggregation":
        """Accepts a bare mode; a `ValueError` with the nearest mode for anything unknown."""
        made = value if isinstance(value, Aggregation) else cls(value)
        if made.mode not in MODES:
            raise ValueError(f"aggregation = {made.mode!r}; {nearest(made.mode, MODES)}")
        if made.length is not None and (made.mode != "seq_mean_token_sum_norm" or made.length < 1):
            raise ValueError(f"aggregation length {made.length}: wanted >= 1, and only with seq_mean_token_sum_norm")
        return made


def aggregate(loss: Array, mask: Array, how: Aggregation | Mode = "token_mean") -> tuple[Array, Array]:
    """Sum and count whose quotient is the aggregated loss.

    The count depends on `mask` alone, and both add up over any split of the rows.

    Args:
      loss: ``[..., T]``; what lies under the mask is never read.
      mask: bool ``[..., T]``, the positions in the loss.
      how: which of the four.

    Returns:
      Two scalars, float32.
    """
    how = Aggregation.of(how)
    if how.mode == "token_mean":
        return masked_sum(loss, mask), masked_count(mask)
    row_sum, row_count = masked_sum(loss, mask, axis=-1), masked_count(mask, axis=-1)
    rows = masked_count(row_count > 0)
    if how.mode == "seq_mean_token_mean":
        return jnp.sum(safe_divide(row_sum, row_count)), rows
    if how.mode == "seq_mean_token_sum":
        return jnp.sum(row_sum), rows
    return jnp.sum(row_sum) / (mask.shape[-1] if how.length is None else how.length), rows
