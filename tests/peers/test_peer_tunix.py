"""Learners of Tunix with our credit in them: the same training as with Tunix's own where both exist."""

import numpy as np
import pytest

registry = pytest.importorskip(
    "tunix.rl.function_registry", reason="google-tunix is not installed; `make peers` has it"
)

from flax import nnx
import jax
from tunix.rl import algo_core
from tunix.rl.grpo import grpo_learner
from tunix.rl.ppo import ppo_learner

from creditjax import algebra, chain
from creditjax.interop import tunix as credit
from docs.peer_estimators import tunix_cluster


@pytest.fixture(autouse=True)
def registered():
    known = registry.default_registry._registry["advantage_estimator"]
    before = dict(known)
    yield
    known.clear()
    known.update(before)


def length_mod_3(prompts, completions, **_):
    return [float(len(text) % 3) for text in completions]


PROMPTS = [{"prompts": np.array(["input string", "hello world"])}]


def parameters(model):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(nnx.state(model, nnx.Param))])


def train_grpo(estimator):
    """Parameters after two updates, and the rewards and advantages of the last batch."""
    seen = []

    def watch(prompts, completions, advantages, rewards, **_):
        seen.append((np.asarray(rewards), np.asarray(advantages)))
        return {}

    made = tunix_cluster()
    config = grpo_learner.GRPOConfig(advantage_estimator=estimator, num_generations=4, beta=0.0)
    learner = grpo_learner.GRPOLearner(made, reward_fns=length_mod_3, algo_config=config, metric_fns=[watch])
    learner.train([dict(x) for x in PROMPTS * 2])
    return parameters(made.actor_trainer.model), seen[-1]


def train_ppo(estimator):
    made = tunix_cluster(critic=True)
    config = ppo_learner.PPOConfig(advantage_estimator=estimator, beta=0.0, gamma=0.9, gae_lambda=0.8)
    ppo_learner.PPOLearner(made, reward_fns=length_mod_3, ppo_config=config).train([dict(x) for x in PROMPTS])
    return parameters(made.actor_trainer.model), parameters(made.critic_trainer.model)


def test_grpo_learner_trains_as_with_tunixs_own():
    credit.register("credit_grpo", "grpo")
    wanted, (_, theirs) = train_grpo("grpo")
    found, (_, ours) = train_grpo("credit_grpo")
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(wanted - parameters(tunix_cluster().actor_trainer.model)).max() > 1e-3


def test_grpo_learner_trains_with_a_chain_of_ones_own():
    credit.register("mine", chain(algebra.outcome(), algebra.leave_one_out(), algebra.scale(2.0)))
    found, (rewards, advantages) = train_grpo("mine")
    np.testing.assert_allclose(advantages, 2 * np.asarray(algo_core.compute_rloo_advantages(rewards, 4)), atol=1e-5)
    assert np.isfinite(found).all() and np.abs(found - parameters(tunix_cluster().actor_trainer.model)).max() > 1e-3


def test_ppo_learner_trains_as_with_tunixs_own():
    credit.register("credit_gae", "gae")
    for mine, theirs in zip(train_ppo("credit_gae"), train_ppo("gae"), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "theirs"), [("grpo", "compute_advantages"), ("rloo", "compute_rloo_advantages"), ("dr_grpo", "drgrpo")]
)
def test_equals_tunixs_own(name, theirs):
    function = getattr(algo_core, theirs, algo_core.compute_drgrpo_advantages)
    rewards = np.random.default_rng(0).normal(size=12)
    found = credit.function(name)(rewards=rewards, num_generations=4)
    np.testing.assert_allclose(found, np.asarray(function(rewards, 4)), atol=2e-6)


def test_gae_equals_tunixs_own_and_follows_its_discounts():
    rng = np.random.default_rng(1)
    mask = rng.random((5, 8)) < 0.7
    rewards, values = (rng.normal(size=(5, 8)).astype(np.float32) * mask for _ in range(2))
    given = {"rewards": rewards, "values": values, "completion_mask": mask, "gamma": 0.9, "gae_lambda": 0.8}
    wanted, returns = algo_core.compute_gae_advantages(*given.values())
    found, targets = credit.function("gae")(**given)
    np.testing.assert_allclose(found, np.asarray(wanted) * mask, atol=3e-6)
    np.testing.assert_allclose(targets, np.asarray(returns) * mask, atol=3e-6)
    kept, _ = credit.function("gae", lam=1.0)(**given)
    assert np.abs(kept - found).max() > 0.01


def test_returns_of_an_estimator_without_value_targets():
    rewards, mask = np.array([[0, 0, 2.0, 0]]), np.array([[1, 1, 1, 0]])
    given = {"rewards": rewards, "values": np.zeros((1, 4)), "completion_mask": mask, "gamma": 0.5, "gae_lambda": 1.0}
    _, returns = credit.function("reinforce_plus_plus")(**given)
    np.testing.assert_allclose(returns, [[0.5, 1, 2, 0]])


def test_what_tunix_does_not_hand_over_is_told():
    with pytest.raises(ValueError, match="'grpo' is an advantage estimator of Tunix already"):
        credit.register("grpo")
    rewards = np.arange(6.0)
    for name in ("opo", "reinforce_plus_plus_baseline"):
        with pytest.raises(ValueError, match="its credit depends on the lengths of the rollouts"):
            credit.function(name)(rewards=rewards, num_generations=3)
    with pytest.raises(ValueError, match="signal 'value': absent"):
        credit.function("gae")(rewards=rewards, num_generations=3)
    with pytest.raises(ValueError, match=r"rewards: \[6\], wanted one a rollout, 4 for each prompt"):
        credit.function("grpo")(rewards=rewards, num_generations=4)
