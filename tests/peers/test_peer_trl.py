"""GRPOTrainer with our credit in it: the training of TRL's own where both exist, and with what TRL has not."""

import os

import numpy as np
import pytest

pytest.importorskip("trl", reason="trl is not installed; `make peers` has it")
os.environ["HF_HUB_OFFLINE"] = "1"

from datasets import Dataset
import torch
from trl import GRPOConfig, GRPOTrainer

import creditjax
from creditjax import algebra
from creditjax.interop import trl as credit
from docs.peer_estimators import language_model, tokenizer


def count_a(completions, **_):
    return [float(text.split().count("a")) for text in completions]


def short(completions, **_):
    """Does not score the longest completions."""
    return [None if len(text.split()) > 4 else 0.5 * len(text.split()) for text in completions]


def trainer(kind, tmp_path, reward=count_a, **arguments):
    settings = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return kind(
        model=language_model(),
        reward_funcs=reward,
        args=GRPOConfig(output_dir=str(tmp_path), **settings | arguments),
        train_dataset=Dataset.from_list([{"prompt": "a b"}, {"prompt": "c d"}] * 4),
        processing_class=tokenizer(),
    )


def trained(kind, tmp_path, **arguments):
    made = trainer(kind, tmp_path, **arguments)
    made.train()
    return torch.cat([x.detach().flatten() for x in made.model.parameters()]), made


@pytest.mark.parametrize(
    ("name", "hyperparameters", "arguments"),
    [
        ("grpo", {"eps": 1e-4}, {}),
        ("dr_grpo", {}, {"scale_rewards": "none"}),
        ("grpo", {"eps": 1e-4}, {"reward": [count_a, short], "reward_weights": [1.0, 0.5], "num_iterations": 2}),
        ("grpo", {"eps": 1e-4}, {"reward": short, "mask_truncated_completions": True}),
    ],
    ids=["grpo", "without std", "two rewards, two iterations", "unscored and truncated"],
)
def test_trains_as_trl_does_with_its_own(tmp_path, name, hyperparameters, arguments):
    start = torch.cat([x.detach().flatten() for x in language_model().parameters()])
    wanted, own = trained(GRPOTrainer, tmp_path, **arguments)
    found, made = trained(credit.with_credit(name, **hyperparameters), tmp_path, **arguments)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(made._logs["advantages"], own._logs["advantages"], atol=1e-5)
    assert (wanted - start).abs().max() > 1e-3


def test_credit_of_tokens(tmp_path):
    """An estimator that TRL has not: returns to go, discounted and whitened over the batch."""
    found, made = trained(credit.with_credit("reinforce_plus_plus", gamma=0.5), tmp_path)
    batch = made._buffered_inputs[0]
    assert batch["advantages"].shape == batch["completion_ids"].shape
    mask = batch["completion_mask"].bool()
    assert (batch["advantages"][~mask] == 0).all()
    torch.testing.assert_close(batch["advantages"][mask].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert torch.isfinite(found).all()


def test_a_mixin_with_signals_of_ones_own(tmp_path):
    seen = []

    class Trainer(credit.CreditMixin, GRPOTrainer):
        credit_estimator = creditjax.chain(algebra.rewards(), algebra.gae(gamma=0.9, lam=0.8))

        def credit_signals(self, inputs, output):
            seen.append((len(inputs), output["completion_ids"].shape))
            return {"value": torch.full(output["completion_ids"].shape, 0.25)}

    _, made = trained(Trainer, tmp_path)
    (rows, shape), *_ = seen
    assert rows == shape[0] == 8 and len(seen) == 2
    # The last token's advantage is the outcome minus the value: each of them ends in .75.
    batch = made._buffered_inputs[0]
    last = batch["completion_mask"].sum(dim=1, keepdim=True) - 1
    np.testing.assert_allclose(batch["advantages"].gather(1, last)[:, 0] % 1, 0.75, atol=1e-5)


def test_what_is_missing_or_wrong_is_told(tmp_path):
    with pytest.raises(ValueError, match="signal 'value': absent"):
        trained(credit.with_credit("gae"), tmp_path)
    with pytest.raises(KeyError, match="no recipe 'grpoo'"):
        credit.with_credit("grpoo")
    with pytest.raises(TypeError, match="wanted trl.GRPOTrainer or a subclass of it"):
        credit.with_credit("grpo", dict)
