"""The same tokens under another prompt: what an instruction, a rubric or its opposite changes at each of them.

A task offers variants of its prompts by two attributes: `prompt_kinds`, the kinds that it knows, and
`prompt_variant(kind, prompts) -> Prompts`, pure JAX, which may return prompts of another length. It is called inside
the update with prompts ``[P, L]`` taken from the batch, so their `data` is empty.
"""

from typing import Any

import jax
from jax import numpy as jnp

from creditjax.models.base import Params, Policy, Sampling
from creditjax.naming import nearest
from creditjax.tasks.base import Prompts
from creditjax.trajectory import Trajectory

Array = jax.Array

PROMPTED = {
    "logprob_negative": "negative",
    "logprob_rubric": "rubric",
    "logprob_plain": "plain",
    "logprob_better": "better",
    "logprob_worse": "worse",
}
"""Each signal and the kind of prompt under which its tokens are scored."""


def prompts_of(batch: Trajectory, length: int) -> Prompts:
    """The prompts ``[P, L]`` that a batch ``[P, G, T]`` opens with; `length` is L."""
    return Prompts(batch.tokens[:, 0, :length], batch.signals["token_mask"][:, 0, :length])


def with_prompt(batch: Trajectory, length: int, prompts: Prompts) -> Trajectory:
    """The batch with its first `length` positions replaced by other prompts ``[P, L']``; T becomes T - L + L'."""

    def join(prompt: Array, x: Array) -> Array:
        prompt = jnp.broadcast_to(prompt[:, None].astype(x.dtype), (*batch.batch_shape, prompt.shape[-1]))
        return jnp.concatenate([prompt, x[..., length:]], axis=-1)

    return Trajectory(
        tokens=join(prompts.tokens, batch.tokens),
        action_mask=join(jnp.zeros_like(prompts.mask), batch.action_mask),
        outcome=batch.outcome,
        signals={"token_mask": join(prompts.mask, batch.signals["token_mask"])},
    )


def prompt_fault(task: Any, name: str) -> str | None:
    """Why a task cannot give the prompts for a signal of `PROMPTED`, None if it can."""
    kind, kinds = PROMPTED[name], tuple(getattr(task, "prompt_kinds", ()))
    if kind in kinds:
        return None
    has = nearest(kind, kinds) if kinds else "it has no prompt_kinds and no prompt_variant"
    return f"signal {name}: task {type(task).__name__} offers no prompt of kind {kind!r}; {has}"


def prompted_logprob(
    policy: Policy, params: Params, batch: Trajectory, task: Any, name: str, sampling: Sampling = Sampling()
) -> Array:
    """Log-probability ``[P, G, T]`` of the acted tokens under another prompt, 0 outside `action_mask`.

    Args:
      policy: the model.
      params: its parameters.
      batch: rollouts ``[P, G, T]`` of `task`.
      task: offers the kind of prompt.
      name: one of `PROMPTED`.
      sampling: as the batch was sampled, so that the log-ratio to `logprob` compares like with like.

    Raises:
      ValueError: the task does not offer it.
    """
    if fault := prompt_fault(task, name):
        raise ValueError(fault)
    length = task.prompt_length
    variant = task.prompt_variant(PROMPTED[name], prompts_of(batch, length))
    logprob = policy.evaluate(params, with_prompt(batch, length, variant), sampling).logprob
    return jnp.pad(logprob[..., variant.tokens.shape[-1] :], ((0, 0), (0, 0), (length, 0)))
