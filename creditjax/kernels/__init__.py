"""Plain-array functions under the primitives: one stream ``[T]`` or one group ``[G]``, no objects, no axis arguments.

Batch them with `jax.vmap`. `kernels.gae(...)` and its like are here; `kernels.vtrace.vtrace`, normalisers, KL estimates
and losses in their modules.
"""

from creditjax.kernels import (
    group,
    kl,
    losses,
    matching,
    prefix,
    ratios,
    recurrence,
    returns,
    segments,
    shapley,
    vtrace,
)
from creditjax.kernels.recurrence import reverse_linear_recurrence
from creditjax.kernels.returns import (
    Advantage,
    discounted_return,
    future_sum,
    gae,
    gather_rewards,
    lambda_return,
    min_return,
    n_step_return,
    next_acted,
    place_outcome,
    softmin_weights,
    td_error,
)

__all__ = [
    "Advantage",
    "discounted_return",
    "future_sum",
    "gae",
    "gather_rewards",
    "group",
    "kl",
    "lambda_return",
    "losses",
    "matching",
    "min_return",
    "n_step_return",
    "next_acted",
    "place_outcome",
    "prefix",
    "ratios",
    "recurrence",
    "returns",
    "reverse_linear_recurrence",
    "segments",
    "shapley",
    "softmin_weights",
    "td_error",
    "vtrace",
]
