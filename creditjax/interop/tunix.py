"""Any recipe or chain as an advantage estimator of Tunix; written for and tested with google-tunix 0.1.7.

from creditjax.interop import tunix as credit

credit.register("credit_rloo", "rloo")
GRPOConfig(advantage_estimator="credit_rloo", ...)
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from creditjax.algebra import Transform
from creditjax.interop import numpy as credit_of_arrays
from creditjax.interop import rows
from creditjax.interop.rows import Estimator


def function(estimator: Estimator, **overrides: Any) -> Callable[..., Any]:
    """An advantage function that both kinds of Tunix's learners can call.

    `GRPOLearner` and its relatives call it with `rewards` ``[N]`` and `num_generations` and receive f32 ``[N]``; all
    that an estimator can read there is the outcome. `PPOLearner` calls it with `rewards`, `values` and
    `completion_mask` ``[N, T]``, `gamma` and `gae_lambda` and receives ``(advantages, returns)``, f32 ``[N, T]``: every
    row is a group of its own, and the returns are the estimator's value targets where it has them, else the rewards
    to go of `gamma`.

    Args:
      estimator: the name of a recipe, a recipe or a chain. A name's `gamma` and `lam` are those that the learner
        hands over, unless they are among the overrides.
      **overrides: hyperparameters, with the name of a recipe.
    """
    made = rows.as_estimator(estimator, **overrides)  # what is wrong with it is said here
    reads_lengths: list[bool] = []

    def advantages(
        rewards: Any,
        num_generations: int | None = None,
        *,
        values: Any = None,
        completion_mask: Any = None,
        gamma: Any = None,
        gae_lambda: Any = None,
        **_: Any,
    ) -> Any:
        if num_generations is None:
            return _of_tokens(
                rows.with_discounts(estimator, overrides, gamma, gae_lambda), rewards, values, completion_mask, gamma
            )
        if not reads_lengths:
            reads_lengths.append(_reads_lengths(made))
        if reads_lengths[0]:
            raise ValueError(
                f"{made!r}: its credit depends on the lengths of the rollouts, and Tunix hands over their rewards alone"
            )
        outcome = np.asarray(rewards, np.float32)
        if num_generations < 1:
            raise ValueError(f"num_generations: {num_generations}, wanted at least 1")
        if outcome.ndim != 1 or len(outcome) % num_generations:
            raise ValueError(f"rewards: {list(outcome.shape)}, wanted one a rollout, {num_generations} for each prompt")
        return _of_outcomes(made, outcome, np.ones((len(outcome), 1), bool), num_generations)[:, 0]

    return advantages


def register(name: str, estimator: Estimator | None = None, **overrides: Any) -> Callable[..., Any]:
    """Registers an estimator with Tunix, for the config's `advantage_estimator`, and returns its function.

    Args:
      name: in Tunix's registry.
      estimator: the recipe called `name` by default, else see `function`.
      **overrides: hyperparameters, with the name of a recipe.

    Raises:
      ImportError: Tunix cannot be imported.
      ValueError: the name is taken: Tunix would replace what it belongs to.
    """
    try:
        from tunix.rl import algo_core, function_registry  # noqa: F401  # the first registers Tunix's own
    except ImportError as error:
        raise rows.absent("google-tunix", error) from error
    if name in function_registry.default_registry.list_functions("advantage_estimator"):
        raise ValueError(f"{name!r} is an advantage estimator of Tunix already; register it under another name")
    made = function(name if estimator is None else estimator, **overrides)
    made.__name__ = name
    return function_registry.register_advantage_estimator(name)(made)


def _of_outcomes(estimator: Transform, outcome: np.ndarray, mask: np.ndarray, group_size: int) -> np.ndarray:
    ids = np.arange(len(outcome)) // group_size
    return credit_of_arrays.credit(estimator, action_mask=mask, outcome=outcome, group_ids=ids).value


def _of_tokens(estimator: Transform, rewards: Any, values: Any, mask: Any, gamma: Any) -> tuple[np.ndarray, np.ndarray]:
    reward = np.asarray(rewards, np.float32)
    made = credit_of_arrays.credit(
        estimator, action_mask=mask, reward=reward, value=values, group_ids=np.arange(len(reward))
    )
    target = made.extras.get("value_target")
    if target is None:
        from creditjax.algebra import chain, discounted_return
        from creditjax.algebra import rewards as stream

        to_go = chain(stream(), discounted_return(gamma=1.0 if gamma is None else float(gamma)))
        target = credit_of_arrays.credit(to_go, action_mask=mask, reward=reward, group_ids=np.arange(len(reward))).value
    return made.value, target


def _reads_lengths(estimator: Transform) -> bool:
    """Whether credit differs between rollouts of one token and of several, asked by trying it."""
    outcome = np.array([0.3, 1.0, -0.4, 0.8, 0.1, 0.2], np.float32)
    mask = np.arange(4) < np.array([1, 3, 2, 4, 1, 2])[:, None]
    first, alone = (_of_outcomes(estimator, outcome, m, 3)[:, 0] for m in (mask, mask[:, :1]))
    return not np.allclose(first, alone, atol=1e-6)
