"""Estimators registered with verl: the numbers of verl's own where both exist, through its trainer's entry point."""

import os
import subprocess
import sys

import numpy as np
import pytest

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed; `make peers` has it")

import torch
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.ray_trainer import compute_advantage

from creditjax import algebra, chain
from creditjax.interop import verl as credit

N, T = 14, 9


@pytest.fixture
def batch():
    """Ragged interleaved groups, one row alone in its group; gaps and padding, the score on the last token."""
    rng = np.random.default_rng(0)
    mask = torch.tensor(rng.random((N, T)) < 0.7)
    mask[:, 0] = True
    mask[:, 6:] &= torch.tensor(rng.random((N, 1)) < 0.5)
    last = (mask * torch.arange(T)).argmax(dim=1)
    rewards = torch.zeros(N, T)
    rewards[torch.arange(N), last] = torch.tensor(rng.normal(size=N)).float()
    uid = np.array([f"prompt {i}" for i in [*rng.integers(0, 3, N - 1), 7]], object)
    return {
        "rewards": rewards,
        "mask": mask.long(),
        "uid": uid,
        "values": torch.tensor(rng.normal(size=(N, T))).float() * mask,
        "greedy": torch.tensor(rng.normal(size=8)).float()[[int(x[-1]) for x in uid]],
        "logprobs": -torch.tensor(rng.exponential(size=(N, T))).float(),
        "energy": torch.tensor(rng.random((N, T))).float(),
    }


# Name of the recipe, its hyperparameters, verl's function and what it is given beside rewards and mask.
PAIRS = {
    "grpo": ("grpo", {"single": "raw"}, "compute_grpo_outcome_advantage", ("index",)),
    "grpo without std": (
        "dr_grpo",
        {"single": "raw"},
        "compute_grpo_outcome_advantage",
        ("index", "norm_adv_by_std_in_grpo"),
    ),
    "rloo": ("rloo", {"single": "raw"}, "compute_rloo_outcome_advantage", ("index",)),
    "rloo_vectorized": ("rloo", {}, "compute_rloo_vectorized_outcome_advantage", ("index",)),
    "opo": ("opo", {"single": "raw"}, "compute_opo_outcome_advantage", ("index",)),
    "reinforce_plus_plus": (
        "reinforce_plus_plus",
        {},
        "compute_reinforce_plus_plus_outcome_advantage",
        ("config",),
    ),
    "remax": ("remax", {}, "compute_remax_outcome_advantage", ("reward_baselines",)),
    "gae": ("gae", {}, "compute_gae_advantage_return", ("values", "gamma", "lam")),
}
# verl leaves a rollout alone in its group its score there and has no argument for it: such rows are left out.
IN_COMPANY = {
    "reinforce_plus_plus_baseline": (
        "reinforce_plus_plus_baseline",
        {},
        "compute_reinforce_plus_plus_baseline_outcome_advantage",
        ("index",),
    ),
    "gpg": ("gpg", {}, "compute_gpg_outcome_advantage", ("index",)),
    "grpo_passk": ("pass_at_k_grpo", {}, "compute_grpo_passk_outcome_advantage", ("index", "config")),
    "gdpo of one reward": (
        "gdpo",
        {"weights": (1.0,)},
        "compute_gdpo_outcome_advantage",
        ("index",),
    ),
}
CONFIG = AlgoConfig(gamma=0.9, lam=0.8)


@pytest.mark.parametrize("pair", [*PAIRS, *IN_COMPANY])
def test_equals_verls_own(batch, pair):
    name, hyperparameters, theirs, takes = (PAIRS | IN_COMPANY)[pair]
    keep = np.arange(N) if pair in PAIRS else np.flatnonzero(batch["uid"] != "prompt 7")
    given = {
        "index": batch["uid"][keep],
        "config": CONFIG,
        "reward_baselines": batch["greedy"][keep],
        "values": batch["values"][keep],
        "gamma": CONFIG.gamma,
        "lam": CONFIG.lam,
        "norm_adv_by_std_in_grpo": False,
    }
    rewards, mask = batch["rewards"][keep], batch["mask"][keep]
    wanted, returns = getattr(core_algos, theirs)(
        token_level_rewards=rewards.clone(), response_mask=mask, **{key: given[key] for key in takes}
    )
    more = {"reward_components": rewards.sum(dim=1, keepdim=True)} if name == "gdpo" else {}
    found, targets = credit.function(name, **hyperparameters)(
        token_level_rewards=rewards, response_mask=mask, **{key: given[key] for key in given if key[0] != "n"}, **more
    )
    torch.testing.assert_close(found, wanted * mask, atol=3e-6, rtol=1e-5)
    if name == "gae":
        torch.testing.assert_close(targets, returns * mask, atol=3e-6, rtol=1e-5)


def test_optimal_token_baseline_equals_verls_own(batch):
    """On rows without gaps. Where one row outlasts its group verl subtracts nothing by default; the recipe, and verl
    without `handle_zero_tail`, subtract the mean of who is left: 0 remains.
    """
    mask = (torch.arange(T) < torch.arange(N)[:, None] % 5 + 4).long()
    rewards = torch.zeros(N, T)
    rewards[torch.arange(N), mask.sum(dim=1) - 1] = batch["rewards"].sum(dim=1)
    uid = np.array(list("ababababababab"), object)
    given = {"old_log_probs": batch["logprobs"], "sum_pi_squared": batch["energy"], "index": uid}
    wanted, _ = core_algos.compute_optimal_token_baseline_advantage(rewards, mask, handle_zero_tail=False, **given)
    found, _ = credit.function("optimal_token_baseline")(rewards, mask, **given)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)


@pytest.fixture
def registered():
    before = dict(core_algos.ADV_ESTIMATOR_REGISTRY)
    yield
    core_algos.ADV_ESTIMATOR_REGISTRY.clear()
    core_algos.ADV_ESTIMATOR_REGISTRY.update(before)


def data(batch):
    tensors = {"token_level_rewards": batch["rewards"], "response_mask": batch["mask"]}
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": batch["uid"]})


def test_through_the_trainers_entry_point(batch, registered):
    credit.register("credit_grpo", "grpo", single="raw")
    own = compute_advantage(data(batch), adv_estimator=core_algos.AdvantageEstimator.GRPO, config=CONFIG)
    made = compute_advantage(data(batch), adv_estimator="credit_grpo", config=CONFIG)
    for key in ("advantages", "returns"):
        torch.testing.assert_close(made.batch[key], own.batch[key], atol=3e-6, rtol=1e-5)


def test_a_chain_of_ones_own(batch, registered):
    estimator = chain(algebra.outcome(), algebra.leave_one_out(), algebra.scale(2.0))
    credit.register("mine", estimator)
    made = compute_advantage(data(batch), adv_estimator="mine", config=CONFIG)
    wanted, _ = core_algos.compute_rloo_vectorized_outcome_advantage(batch["rewards"], batch["mask"], batch["uid"])
    torch.testing.assert_close(made.batch["advantages"], 2 * wanted, atol=3e-6, rtol=1e-5)


def test_discounts_follow_the_config_unless_they_are_given(batch):
    given = {"token_level_rewards": batch["rewards"], "response_mask": batch["mask"], "index": batch["uid"]}
    follows, _ = credit.function("reinforce_plus_plus")(**given, config=CONFIG)
    keeps, _ = credit.function("reinforce_plus_plus", gamma=0.9)(**given, config=AlgoConfig(gamma=0.5))
    torch.testing.assert_close(follows, keeps)
    other, _ = credit.function("reinforce_plus_plus")(**given, config=AlgoConfig(gamma=0.5))
    assert (other - follows).abs().max() > 0.1


def test_what_the_trainer_does_not_hand_over_is_told_at_registration(registered):
    for name in ("tempo", "gae", "prime"):
        with pytest.raises(ValueError, match=f"my_{name}: verl's trainer hands over token_level_rewards.*absent"):
            credit.register(f"my_{name}", name)
        assert f"my_{name}" not in core_algos.ADV_ESTIMATOR_REGISTRY
    with pytest.raises(ValueError, match="'grpo' is an advantage estimator of verl already"):
        credit.register("grpo")
    with pytest.raises(ValueError, match="index: absent"):
        credit.function("grpo")(torch.ones(2, 2), torch.ones(2, 2))


def test_a_module_named_in_the_environment_registers_in_any_process(tmp_path):
    (tmp_path / "my_credit.py").write_text("from creditjax.interop import verl\nverl.register('credit_rloo', 'rloo')\n")
    code = (
        "import verl\n"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn\n"
        "print(get_adv_estimator_fn('credit_rloo').__name__)"
    )
    environment = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": "my_credit",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment, check=True
    )
    assert done.stdout.split()[-1] == "credit_rloo"
