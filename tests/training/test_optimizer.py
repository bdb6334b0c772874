import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.training import optimizer

BASE = {
    "name": "sgd", "options": {}, "learning_rate": 0.1, "warmup": 0, "schedule": "constant", "clip": 0.0,
    "weight_decay": 0.0,
}  # fmt: skip


def updates(config, gradient, steps=1, params=None):
    chain = optimizer.make_optimizer(config, steps)
    params = jax.tree.map(jnp.zeros_like, gradient) if params is None else params
    return chain.update(gradient, chain.init(params), params)[0]


def test_sgd_is_minus_rate_times_gradient_and_the_clip_is_global():
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    np.testing.assert_allclose(updates(BASE, gradient)["a"], [-0.3], rtol=1e-6)
    clipped = updates({**BASE, "clip": 1.0}, gradient)
    np.testing.assert_allclose([clipped["a"][0], clipped["b"][0]], [-0.06, -0.08], rtol=1e-6)


def test_weight_decay_touches_matrices_alone():
    params = {"matrix": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    decayed = updates({**BASE, "weight_decay": 0.5}, jax.tree.map(jnp.zeros_like, params), params=params)
    np.testing.assert_allclose(decayed["matrix"], -0.05 * np.ones((2, 2)), rtol=1e-6)
    np.testing.assert_allclose(decayed["bias"], 0.0)


@pytest.mark.parametrize(("schedule", "middle"), [("constant", 0.1), ("linear", 0.05), ("cosine", 0.05)])
def test_schedules(schedule, middle):
    rate = optimizer.learning_rate({**BASE, "schedule": schedule, "warmup": 10}, 110)
    assert float(rate(0)) == 0.0
    np.testing.assert_allclose(rate(5), 0.05, rtol=1e-6)
    np.testing.assert_allclose(rate(10), 0.1, rtol=1e-6)
    np.testing.assert_allclose(rate(60), middle, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "adan"}, r"optimizer.name: 'adan' is unknown; did you mean adam"),
        ({"schedule": "cosin"}, "did you mean cosine"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(change, message):
    with pytest.raises(ValueError, match=message):
        optimizer.make_optimizer({**BASE, **change}, 10)
