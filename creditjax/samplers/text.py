"""Rollouts of token tasks."""

from collections.abc import Callable

import jax
from jax import numpy as jnp

from creditjax.models.base import Params, Sampling, TextPolicy
from creditjax.models.sampling import check_sampling
from creditjax.samplers import state_groups
from creditjax.samplers.decode import generate, row_keys
from creditjax.tasks.base import Prompts, TextTask
from creditjax.trajectory import Trajectory

Array = jax.Array
Rollout = Callable[[Params, Prompts, Array], Trajectory]

GREEDY = Sampling(temperature=0.0)


def build(
    task: TextTask,
    policy: TextPolicy,
    sampling: Sampling = Sampling(),
    group_size: int = 1,
    *,
    greedy_baseline: bool = False,
    commit: state_groups.Commit | None = None,
) -> Rollout:
    """A pure function ``rollout(params, prompts, key) -> Trajectory`` with leading axes ``[P, G]``, to be jitted.

    T is ``L + K * (action_length + observation_length)``. The fields are:

    * `tokens`, `action_mask`, and `token_mask` among the signals. Masks come from how much was emitted, never from
      token ids, so the pad token may be the stop token.
    * `logprob` under the distribution sampled from: after temperature, top-k and top-p.
    * `segment`: the turn, at its action and observation tokens; -1 at the prompt and at padding.
    * `reward`, if there is an environment: what it paid for a turn, at that turn's last acted position.
    * `terminated`: at the last acted position, if the environment ended the episode or (in a single-turn task) the stop
      token was emitted. Without a stop token a single turn of full length counts as ended.
    * `truncated`: at the last acted position of every row that did not terminate.
    * `outcome`: NaN, unless `task.annotate` scores it.

    Args:
      task: what to roll out; its `annotate` runs inside.
      policy: the model.
      sampling: static; temperature 0 is greedy.
      group_size: G.
      greedy_baseline: adds the signal `greedy_outcome` ``[P]``, the outcome of one more, greedy rollout of each prompt
        (ReMax, Li et al. 2023, arXiv:2310.10505). For tasks that are verified on the host it is NaN: build a greedy
        rollout of its own there, verify it, and use :func:`attach_greedy_outcome`.
      commit: groups are the actions drawn in *one state*, see `samplers.state_groups`: after each turn the group goes
        on from one of its actions, "max" from one of the best, "sample" from any. The leading axes then are
        ``[P * K, G]``, the states of an episode next to each other, and there is the signal `candidate_reward`.

    Raises:
      ValueError: state groups of a task without turns, or without the signal `process_reward`; a layout, sampling or
        group size that makes no sense, or, at the call, prompts of another length.
    """
    check_sampling(sampling)
    _check_task(task, group_size)
    turns, environment = task.turns, task.environment
    if commit is not None:
        state_groups.check(task, commit, greedy_baseline)

    def rollout(params: Params, prompts: Prompts, key: Array) -> Trajectory:
        if prompts.tokens.shape[1:] != (task.prompt_length,) or prompts.mask.shape != prompts.tokens.shape:
            raise ValueError(
                f"prompts: tokens {list(prompts.tokens.shape)} and mask {list(prompts.mask.shape)}, "
                f"wanted [P, prompt_length={task.prompt_length}] both"
            )
        count = prompts.tokens.shape[0]
        if commit is None:
            out = generate(policy, params, prompts, row_keys(key, count, group_size), turns, sampling, environment)
        else:
            keys = row_keys(key, count, group_size + 1)  # those of the rows, and one for what they agree on
            choose = state_groups.chooser(task, prompts, keys[:, -1], group_size, commit)
            out = generate(policy, params, prompts, keys[:, :-1], turns, sampling, environment, choose)
            out, prompts = state_groups.by_state(out, prompts, group_size, turns.pad_token)
            count = prompts.tokens.shape[0]

        action = out.acted[..., : turns.action_length]  # a prefix of each turn
        last_of_turn = out.acted & ~jnp.pad(action[..., 1:], ((0, 0), (0, 0), (0, turns.observation_length + 1)))
        ended = out.terminated[..., None] & last_of_turn
        goes_on = jnp.pad(jnp.any(action, axis=-1)[:, 1:], ((0, 0), (0, 1)))
        cut = last_of_turn & ~goes_on[..., None] & ~ended
        segment = jnp.where(out.mask, jnp.arange(turns.max_turns)[:, None], -1)

        def lay_out(x: Array, prompt: Array) -> Array:
            """Turns ``[P * G, K, A + O]`` behind the prompt's part ``[P, L]``, as ``[P, G, T]``."""
            prompt = jnp.broadcast_to(prompt[:, None], (count, group_size, prompt.shape[-1]))
            return jnp.concatenate([prompt.astype(x.dtype), x.reshape(count, group_size, -1)], axis=-1)

        nothing = jnp.zeros_like(prompts.tokens)
        paid = jnp.where(last_of_turn, out.reward[..., None], 0.0)
        batch = Trajectory(
            tokens=lay_out(out.tokens, prompts.tokens),
            action_mask=lay_out(out.acted, nothing),
            outcome=jnp.full((count, group_size), jnp.nan),
            reward=None if environment is None else lay_out(paid, nothing),
            terminated=lay_out(ended, nothing),
            truncated=lay_out(cut, nothing),
            logprob=lay_out(out.logprob, nothing),
            segment=lay_out(segment, nothing - 1),
            signals={"token_mask": lay_out(out.mask, prompts.mask)},
            num_segments=turns.max_turns,
        )
        states = jax.tree.map(lambda x: x.reshape(count, group_size, *x.shape[1:]), out.states)
        batch = task.annotate(batch, prompts, states)
        return batch if commit is None else state_groups.score(batch)

    if not greedy_baseline:
        return rollout
    greedy = build(task, policy, GREEDY, 1)

    def rollout_with_baseline(params: Params, prompts: Prompts, key: Array) -> Trajectory:
        return attach_greedy_outcome(rollout(params, prompts, key), greedy(params, prompts, key))

    return rollout_with_baseline


def attach_greedy_outcome(batch: Trajectory, greedy_batch: Trajectory) -> Trajectory:
    """Adds the signal `greedy_outcome` ``[P]`` to a batch ``[P, G]``, from a greedy one ``[P, 1]`` of the same prompts.

    Raises:
      ValueError: batches that do not belong together.
    """
    wanted = (*batch.batch_shape[:-1], 1)
    if greedy_batch.batch_shape != wanted:
        raise ValueError(f"greedy_batch: leading axes {list(greedy_batch.batch_shape)}, wanted {list(wanted)}")
    return batch.with_signals(greedy_outcome=greedy_batch.outcome[..., 0])


def _check_task(task: TextTask, group_size: int) -> None:
    turns = task.turns
    wanted = [
        ("group_size", group_size, 1, None),
        ("turns.max_turns", turns.max_turns, 1, 2 if task.environment is None else None),
        ("turns.action_length", turns.action_length, 1, None),
        ("turns.observation_length", turns.observation_length, 0, None),
        ("turns.stop_token", turns.stop_token, -1, task.vocab_size),
        ("turns.pad_token", turns.pad_token, 0, task.vocab_size),
    ]
    for name, found, low, high in wanted:
        if found < low or (high is not None and found >= high):
            bound = f"at least {low}" if high is None else f"{low} to {high - 1}"
            why = " in a task without environment" if name == "turns.max_turns" and high else ""
            raise ValueError(f"{name}: {found}, wanted {bound}{why}")
