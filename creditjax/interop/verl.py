"""Any recipe or chain as an advantage estimator of verl; written for and tested with verl 0.9.1.

    from creditjax.interop import verl as credit

    credit.register("credit_rloo", "rloo")  # then: algorithm.adv_estimator=credit_rloo

The trainer runs in a process of its own, so put the line into a module of yours and name it in the environment variable
``VERL_USE_EXTERNAL_MODULES``, which every process of verl imports. Set ``JAX_PLATFORMS=cpu`` too if JAX was installed
with GPU support. ``grpo`` and ``gae`` are names that verl's trainer does not look up: take others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from creditjax.interop import rows
from creditjax.interop import torch as credit_of_tensors
from creditjax.interop.rows import Estimator

# What verl calls a field or signal.
_NAMES = {
    "old_log_probs": "logprob",
    "ref_log_prob": "logprob_ref",
    "response_mask": "action_mask",
    "responses": "tokens",
    "reward_baselines": "greedy_outcome",
    "sum_pi_squared": "sum_pi_squared",
    "token_level_rewards": "reward",
    "values": "value",
}
# What `compute_advantage` of verl's trainer hands to an estimator that it does not know.
_HANDED = ("token_level_rewards", "response_mask", "index", "reward_baselines")


def function(estimator: Estimator, **overrides: Any) -> Callable[..., tuple[Any, Any]]:
    """An advantage function with verl's signature.

    It is called with `token_level_rewards` and `response_mask` ``[N, T]``, `index` (the uid of each row's prompt),
    `config` and whatever else verl has under its own names or a caller under those of our signals; it returns
    ``(advantages, returns)``, f32 ``[N, T]`` on the device of the rewards. The outcome is the sum of a row's rewards.
    Returns are the estimator's value targets where it has them, else the advantages, as in verl's own estimators of
    outcomes.

    A rollout whose mask is empty takes no part in baselines. A rollout that is alone in its group is assigned 0, while
    verl's `grpo`, `rloo` and `opo` leave it its score: ``single="raw"`` does so too.

    Args:
      estimator: the name of a recipe, a recipe or a chain. A name's `gamma` and `lam` are those of the `config`, unless
        they are among the overrides.
      **overrides: hyperparameters, with the name of a recipe.
    """
    rows.as_estimator(estimator, **overrides)  # what is wrong with it is said here

    def advantages(token_level_rewards: Any, response_mask: Any, index: Any = None, config: Any = None, **more: Any):
        import torch

        if index is None:
            raise ValueError("index: absent, wanted the uid of each row's prompt, as verl has it in non_tensor_batch")
        given = {"token_level_rewards": token_level_rewards, "response_mask": response_mask, **more}
        tensors = {_NAMES.get(name, name): x for name, x in given.items() if _NAMES.get(name, name) in known}
        host = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in tensors.items()}
        made = credit_of_tensors.credit(
            rows.with_discounts(estimator, overrides, getattr(config, "gamma", None), getattr(config, "lam", None)),
            group_ids=np.asarray(index),
            # Half precision holds the rewards that are in it, but not their sums.
            outcome=host["reward"].sum(dim=-1, dtype=torch.float64).float(),
            **host,
        )
        value = made.value.to(token_level_rewards.device)
        target = made.extras.get("value_target")
        return value, value if target is None else target.to(value.device)

    known = {*_NAMES.values(), *rows.as_estimator(estimator, **overrides).needs}
    return advantages


def register(name: str, estimator: Estimator | None = None, **overrides: Any) -> Callable[..., tuple[Any, Any]]:
    """Registers an estimator with verl, for ``algorithm.adv_estimator=<name>``, and returns its function.

    Args:
      name: in verl's registry.
      estimator: the recipe called `name` by default, else see `function`.
      **overrides: hyperparameters, with the name of a recipe.

    Raises:
      ImportError: verl cannot be imported.
      ValueError: the name is one of verl's own or taken; or the estimator reads what verl's trainer does not hand over.
    """
    try:
        from verl.trainer.ppo import core_algos
    except ImportError as error:
        raise rows.absent("verl", error) from error
    if name in core_algos.ADV_ESTIMATOR_REGISTRY:
        raise ValueError(f"{name!r} is an advantage estimator of verl already; register it under another name")
    made = function(name if estimator is None else estimator, **overrides)
    made.__name__ = name
    _try(made, name)
    return core_algos.register_adv_est(name)(made)


def _try(made: Callable[..., tuple[Any, Any]], name: str) -> None:
    """Runs it on two rows of what the trainer hands over: what is missing is to be said before the training starts."""
    import torch

    two = torch.ones(2, 3)
    try:
        made(two, two, index=np.array(["a", "a"], object), reward_baselines=torch.zeros(2))
    except ValueError as error:
        raise ValueError(f"{name}: verl's trainer hands over {', '.join(_HANDED)}; {error}") from error
