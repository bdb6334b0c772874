"""What the policy would answer if its thinking were cut: at several budgets of thinking tokens, in one batched pass.

AnytimeReasoner (arXiv:2505.13438) draws S summaries behind each cut and has them verified. Here the answer is forced,
so the reward that such summaries earn on average is known without drawing any: the probability of an accepted answer.
"""

from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.kernels import segments
from creditjax.models.base import Params, Policy, Sampling
from creditjax.signals.answer import force_answers
from creditjax.trajectory import Trajectory

Array = jax.Array
_BUDGETS = 4  # the paper's


def budgets_of(task: Any) -> np.ndarray:
    """The budgets of a text task, i32 ``[B]``, positive and increasing: its `budgets`, or four spread evenly over all
    that it lets a policy write (fewer where that is less than four tokens).
    """
    if (given := getattr(task, "budgets", None)) is not None:
        return np.asarray(given, np.int32)
    longest = task.turns.max_turns * task.turns.action_length
    count = min(_BUDGETS, longest)
    return np.array([-(-longest * (b + 1) // count) for b in range(count)], np.int32)


def cut_ends(batch: Trajectory, budgets: Array) -> Array:
    """How many positions lie before each cut, i32 ``[..., B]``: up to the first acted one that b thoughts precede.

    A rollout that stops thinking earlier is cut where it does.

    Args:
      batch: rollouts ``[..., T]`` with the signal `thinking_mask`.
      budgets: i32 ``[B]``, numbers of thinking tokens.
    """
    thinking = batch.action_mask & batch.signals["thinking_mask"]
    before = jnp.vectorize(segments.before, signature="(t)->(t)")(thinking)
    least = jnp.minimum(jnp.sum(thinking, axis=-1, keepdims=True), budgets)
    reached = batch.action_mask[..., None, :] & (before[..., None, :] >= least[..., None])
    return jnp.min(jnp.where(reached, jnp.arange(batch.length), batch.length), axis=-1)


def summary_rewards(
    policy: Policy, params: Params, batch: Trajectory, budgets: Array, sampling: Sampling = Sampling()
) -> Array:
    """The policy's expected reward of its answer behind each cut, f32 ``[P, G, B, 1]``.

    It is ``Σ_c Π_a π(answer_ca | cut, cue, answer_c<a)`` over the accepted answers, which have to be distinct and none
    the beginning of another: the exact expectation, S = 1, of drawing an answer behind its cue and having it verified.
    The model reads ``B C`` times as many rows as the batch has.

    Args:
      policy: the model.
      params: its parameters.
      batch: rollouts ``[P, G, T]`` with `thinking_mask`, `token_mask`, `answer_tokens` and `answer_scored`.
      budgets: i32 ``[B]``.
      sampling: how the policy draws its answers; static.
    """
    out, scored = force_answers(policy, params, batch, cut_ends(batch, budgets), sampling)
    chance = jnp.exp(jnp.sum(out.logprob, axis=-1))  # log-probabilities are 0 where nothing is scored
    return jnp.sum(jnp.where(jnp.any(scored, axis=-1), chance, 0.0), axis=-1, keepdims=True)
