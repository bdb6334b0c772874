"""Hyperparameters that move with the training step."""

import math
import pickle

import jax
from jax import numpy as jnp
import numpy as np
import pytest

import creditjax as cj
from creditjax.algebra import chain, cosine_schedule, exponential_schedule, linear_schedule, outcome, scale

MADE = {
    "linear": linear_schedule(0.5, 0.0, 100.0),
    "cosine": cosine_schedule(0.5, 0.0, 100.0),
    "exponential": exponential_schedule(0.5, 0.0, 100.0),
}
WANTED = {
    "linear": lambda n: 0.5 * max(0.0, 1 - n / 100),
    "cosine": lambda n: 0.25 * (1 + math.cos(math.pi * min(1.0, n / 100))),
    "exponential": lambda n: 0.5 * 2 ** (-n / 12.5) if n < 100 else 0.0,
}


@pytest.mark.parametrize("name", MADE)
def test_values(name):
    steps = [0, 1, 13, 50, 99, 100, 1000]
    got = [float(MADE[name](jnp.int32(n))) for n in steps]
    np.testing.assert_allclose(got, [WANTED[name](n) for n in steps], rtol=1e-5, atol=1e-9)
    assert all(a >= b for a, b in zip(got, got[1:], strict=False)) and got[0] == 0.5 and got[-1] == 0.0


@pytest.mark.parametrize("make", [linear_schedule, cosine_schedule, exponential_schedule])
def test_begins_late_and_rises_as_well_as_it_falls(make):
    schedule = make(1.0, 3.0, 10.0, begin=5.0)
    assert [float(schedule(jnp.int32(n))) for n in (0, 5, 15)] == [1.0, 1.0, 3.0]
    assert 1.0 < float(schedule(jnp.int32(8))) < 3.0


def test_the_last_of_an_exponential_is_dropped():
    schedule = exponential_schedule(1.0, 0.0, 8.0, half_life=4.0)
    assert float(schedule(jnp.int32(4))) == 0.5
    assert float(schedule(jnp.int32(7))) == pytest.approx(2 ** (-7 / 4)) and float(schedule(jnp.int32(8))) == 0.0


@pytest.mark.parametrize("name", MADE)
def test_a_schedule_is_a_leafy_hyperparameter(name):
    batch = cj.Trajectory(tokens=np.zeros((1, 2, 1), int), action_mask=np.ones((1, 2, 1), bool), outcome=[[1.0, 2.0]])
    traces = []

    @jax.jit
    def run(estimator, step):
        traces.append(None)
        return cj.estimate(estimator, batch, step=step).value

    half = jax.tree.map(lambda x: x * np.float32(0.5), MADE[name])
    for schedule in (MADE[name], half, pickle.loads(pickle.dumps(MADE[name]))):
        for step in (0, 30):
            got = run(chain(outcome(), scale(schedule)), jnp.int32(step))
            np.testing.assert_allclose(got[0, :, 0], float(schedule(jnp.int32(step))) * np.array([1, 2]), rtol=1e-6)
    assert len(traces) == 1
    assert "0.5→0" in cj.explain(chain(outcome(), scale(MADE[name])))


def test_what_is_no_number_is_named():
    with pytest.raises(TypeError, match="exponential_schedule: half_life"):
        exponential_schedule(1.0, 0.0, 10.0, half_life="short")
    with pytest.raises(ValueError, match="cosine_schedule: length"):
        cosine_schedule(1.0, 0.0, float("inf"))
