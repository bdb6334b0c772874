"""Rollouts of classical control: one pure function from start states to a `Trajectory`."""

from collections.abc import Callable

import jax
from jax import numpy as jnp

from creditjax.models import base as models
from creditjax.models.sampling import filter_logits
from creditjax.tasks import base as tasks
from creditjax.trajectory import Trajectory

Array = jax.Array
Rollout = Callable[[models.Params, tasks.Prompts, Array], Trajectory]


def build(
    task: tasks.ControlTask, policy, sampling: models.Sampling = models.Sampling(), group_size: int = 1
) -> Rollout:
    """Returns ``rollout(params, prompts, key) -> Trajectory`` with leading axes ``[P, G]``; to be jitted by the caller.

    The G rollouts of a prompt begin in the same state: they share the reset key ``prompts.data[p]``. All other
    randomness of row g of prompt p comes from ``fold_in(fold_in(key, p), g)``, p being the position in the batch, and
    from the step in it, so the numbers do not depend on how the batch is sharded.

    What a row holds, position by position:

    * `tokens` the action, `logprob` its log-probability under the sampling distribution, `reward`, and the signals
      `observation` (what the policy saw) and `next_observation` (of the true next state, also where the episode ends);
    * `terminated` or `truncated` at the end of every episode, never both. A row whose last episode has not ended by
      position T - 1 is truncated there, so that whatever is acted on is followed by more, or by a flag;
    * without `task.auto_reset`, the episode's end makes the rest of the row padding: `action_mask` and the signal
      `token_mask` are False, all else is 0. With it, a new episode begins at the next position.

    `outcome` is the undiscounted sum of the row's rewards, over all its episodes.

    Args:
      task: the environment.
      policy: an `MLPPolicy`, a `GRUPolicy`, or another policy with their `initial_memory` and `step`.
      sampling: how actions are drawn.
      group_size: G.

    Raises:
      ValueError: `group_size` below 1, or a policy made for other observations or actions than the task's.
    """
    if group_size < 1:
        raise ValueError(f"group_size: {group_size}, wanted at least 1")
    for name in ("num_actions", "observation_size"):
        wanted, found = getattr(task, name), getattr(policy, name)
        if wanted != found:
            raise ValueError(f"{name}: the policy has {found}, the task {wanted}")

    def row(params: models.Params, reset_key: Array, key: Array) -> dict[str, Array]:
        """One row ``[T]``."""

        def step(carry, t):
            state, observation, memory, start, acting = carry
            act_key, env_key, new_key = jax.random.split(jax.random.fold_in(key, t), 3)
            memory, logits, _ = policy.step(params, memory, observation, start)
            log_probs = jax.nn.log_softmax(filter_logits(logits, sampling))
            action = jax.random.categorical(act_key, log_probs)
            next_observation, next_state, reward, terminated, truncated = task.step(env_key, state, action)
            ended = terminated | truncated
            cut = truncated | ((t == task.length - 1) & ~ended)
            out = {
                "tokens": action,
                "action_mask": acting,
                "reward": reward,
                "terminated": terminated,
                "truncated": cut,
                "logprob": log_probs[action],
                "observation": observation,
                "next_observation": next_observation,
            }
            # Padding reads 0 everywhere, whatever a finished environment answers to further actions.
            out = jax.tree.map(lambda x: jnp.where(acting, x, jnp.zeros_like(x)), out)
            if task.auto_reset:
                new_observation, new_state = task.reset(new_key)
                carry = jax.tree.map(
                    lambda new, old: jnp.where(ended, new, old),
                    (new_state, new_observation),
                    (next_state, next_observation),
                )
                return (*carry, memory, ended, acting), out
            return (next_state, next_observation, memory, jnp.zeros_like(start), acting & ~ended), out

        observation, state = task.reset(reset_key)
        carry = (state, observation, policy.initial_memory(), jnp.array(True), jnp.array(True))
        return jax.lax.scan(step, carry, jnp.arange(task.length))[1]

    def group(params: models.Params, reset_key: Array, key: Array) -> dict[str, Array]:
        keys = jax.vmap(lambda g: jax.random.fold_in(key, g))(jnp.arange(group_size))
        return jax.vmap(row, in_axes=(None, None, 0))(params, reset_key, keys)

    def rollout(params: models.Params, prompts: tasks.Prompts, key: Array) -> Trajectory:
        keys = jax.vmap(lambda p: jax.random.fold_in(key, p))(jnp.arange(prompts.data.shape[0]))
        rows = jax.vmap(group, in_axes=(None, 0, 0))(params, prompts.data, keys)
        signals = {
            "observation": rows.pop("observation"),
            "next_observation": rows.pop("next_observation"),
            "token_mask": rows["action_mask"],
        }
        return Trajectory(outcome=jnp.sum(rows["reward"], -1), signals=signals, **rows)

    return rollout
