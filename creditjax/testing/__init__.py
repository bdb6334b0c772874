"""Assertions about estimators of credit, for yours as for ours.

An estimator is a piece such as ``recipe("grpo").estimator``, or any function from a `Trajectory` ``[P, G, T]`` to a
`Credit` or an array ``[P, G, T]``, NumPy included. Each assertion raises an `AssertionError` that shows the estimator,
the seed, the smallest failing batch and the numbers. In a notebook:

    import numpy as np
    from creditjax import testing

    def mine(batch):
        mean = batch.outcome.mean(axis=1, keepdims=True)
        std = batch.outcome.std(axis=1, keepdims=True)
        advantage = (batch.outcome - mean) / (std + 1e-6)
        return np.where(batch.action_mask, advantage[..., None], 0.0)

    testing.assert_unbiased(mine)

It fails, and says why: the scale of the expected gradient differs between prompts, since the credit is divided by the
group's std. Without the division it says that each rollout's own outcome is in its baseline. Mended, it passes:

    def mended(batch):
        others = batch.outcome.sum(axis=1, keepdims=True) - batch.outcome
        advantage = batch.outcome - others / (batch.outcome.shape[1] - 1)
        return np.where(batch.action_mask, advantage[..., None], 0.0)

    testing.assert_unbiased(mended)

Other laws it breaks still: a rollout without others is divided by 0, and the outcome of an unscored one, NaN, goes into
everybody's credit. `assert_finite` says so.

A function that reads signals names them, ``mine.needs = ("value",)``, and is given random ones, or a game's exact ones.
`foreign` makes an estimator of another library's function of flat rows, NumPy, torch or JAX.

`check_all` asks everything at once. `creditjax.testing.strategies` has batches for Hypothesis.
"""

from creditjax.testing.batches import random_batch, take
from creditjax.testing.check import Estimator, Options
from creditjax.testing.foreign import Rows, foreign
from creditjax.testing.games import Case, case, default_cases
from creditjax.testing.invariance import (
    assert_expansion_invariant,
    assert_finite,
    assert_micro_batches_agree,
    assert_padding_invariant,
    assert_permutation_equivariant,
    assert_prompt_independent,
    assert_zero_outside_mask,
)
from creditjax.testing.laws import (
    assert_bounded,
    assert_causal,
    assert_scale_equivariant,
    assert_scale_invariant,
    assert_shift_invariant,
    assert_sign_preserved,
    assert_sums_preserved,
    assert_telescopes,
)
from creditjax.testing.program import (
    assert_dtype_stable,
    assert_gradient_stopped,
    assert_jit_vmap_agree,
    assert_linear_cost,
    assert_no_recompilation,
    assert_sharding_agrees,
)
from creditjax.testing.shapley import assert_efficient, assert_null_player, assert_symmetric
from creditjax.testing.table import PROMISES, PROPERTIES, Stated, check_all, stated
from creditjax.testing.truth import (
    assert_policy_invariant,
    assert_unbiased,
    assert_unbiased_up_to_scale,
    assert_variance_at_most,
)

__all__ = [
    "PROMISES",
    "PROPERTIES",
    "Case",
    "Estimator",
    "Options",
    "Rows",
    "Stated",
    "assert_bounded",
    "assert_causal",
    "assert_dtype_stable",
    "assert_efficient",
    "assert_expansion_invariant",
    "assert_finite",
    "assert_gradient_stopped",
    "assert_jit_vmap_agree",
    "assert_linear_cost",
    "assert_micro_batches_agree",
    "assert_no_recompilation",
    "assert_null_player",
    "assert_padding_invariant",
    "assert_permutation_equivariant",
    "assert_policy_invariant",
    "assert_prompt_independent",
    "assert_scale_equivariant",
    "assert_scale_invariant",
    "assert_sharding_agrees",
    "assert_shift_invariant",
    "assert_sign_preserved",
    "assert_sums_preserved",
    "assert_symmetric",
    "assert_telescopes",
    "assert_unbiased",
    "assert_unbiased_up_to_scale",
    "assert_variance_at_most",
    "assert_zero_outside_mask",
    "case",
    "check_all",
    "default_cases",
    "foreign",
    "random_batch",
    "stated",
    "take",
]
