"""The expectation of an estimator does not depend on the kind of thing that it is or gives back."""

import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import testing


def leave_one_out(batch):
    outcome = jnp.asarray(batch.outcome)
    others = (outcome.sum(axis=1, keepdims=True) - outcome) / (outcome.shape[1] - 1)
    return jnp.where(jnp.asarray(batch.action_mask), (outcome - others)[..., None], 0.0)


@dataclasses.dataclass
class WithoutHash:
    """As dataclasses are unless they are frozen."""

    factor: float = 1.0

    def __call__(self, batch):
        return self.factor * leave_one_out(batch)


def a_list(batch):
    return list(leave_one_out(batch))


def whole_numbers(batch):
    return jnp.where(jnp.asarray(batch.action_mask), jnp.asarray(batch.outcome)[..., None], 0.0).astype(jnp.int32)


@pytest.mark.parametrize(
    "right", [WithoutHash(), a_list, whole_numbers, lambda batch: np.asarray(leave_one_out(batch), np.float64)]
)
def test_what_is_right_is_not_accused(right):
    testing.assert_unbiased(right)


def test_an_object_that_has_changed_is_asked_again():
    estimator = WithoutHash()
    testing.assert_unbiased(estimator)
    estimator.factor = 0.5
    with pytest.raises(AssertionError, match="biased by 0.5 of the exact gradient"):
        testing.assert_unbiased(estimator)


@pytest.mark.parametrize("wrong", [lambda batch: jax.numpy.asarray(batch.outcome), lambda batch: None])
def test_what_is_no_credit_of_positions_is_refused(wrong):
    with pytest.raises(ValueError, match=r"<lambda>: returned \[.*\], wanted \[1, 4, 3\]"):
        testing.assert_unbiased(wrong)
