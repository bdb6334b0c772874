"""What the samplers and the training loop ask of a task."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from creditjax.trajectory import Trajectory

Array = jax.Array


class Prompts(NamedTuple):
    """A batch of P prompts (or start states).

    Attributes:
      tokens: i32 ``[P, L]``, left-padded prompt tokens; L is 0 where a task has no text prompt.
      mask: bool ``[P, L]``, True at real tokens.
      data: a pytree of arrays with leading axis P: what environment and verifier know and the policy does not.
    """

    tokens: Array
    mask: Array
    data: Any = ()


class TurnFormat(NamedTuple):
    """The static layout of a rollout: the prompt, then `max_turns` times an action and an observation.

    Position of action token a of turn k: ``L + k * (action_length + observation_length) + a``. A single-turn task has
    one turn and no observation.

    Attributes:
      max_turns: K, also the number of segments.
      action_length: most tokens the policy emits in a turn.
      observation_length: most tokens the environment answers with.
      stop_token: ends an action early (it belongs to the action); -1 for none.
      pad_token: fills unused positions.
    """

    max_turns: int
    action_length: int
    observation_length: int = 0
    stop_token: int = -1
    pad_token: int = 0


class TurnResult(NamedTuple):
    """What the environment answers to one action: tokens ``[observation_length]``, their mask, reward and flags."""

    tokens: Array
    mask: Array
    reward: Array
    terminated: Array


class TurnEnvironment(Protocol):
    """A pure-JAX multi-turn environment of one episode; the sampler vmaps it."""

    def reset(self, data: Any) -> Any:
        """State of a fresh episode, from one prompt's `Prompts.data`."""
        ...

    def step(self, state: Any, action: Array, mask: Array) -> tuple[Any, TurnResult]:
        """Answers the tokens ``[action_length]`` of one turn. Must be harmless on padding after the episode's end."""
        ...


@runtime_checkable
class TextTask(Protocol):
    """A task whose rollouts are tokens.

    Attributes:
      vocab_size: number of token ids.
      prompt_length: L, the padded length of prompts.
      turns: the layout of a rollout.
      environment: answers the policy between turns inside the jitted rollout; None for single-turn tasks.
      eval_size: number of distinct held-out prompts.
    """

    vocab_size: int
    prompt_length: int
    turns: TurnFormat
    environment: TurnEnvironment | None
    eval_size: int

    def prompts(self, split: str, start: int, count: int) -> Prompts:
        """Prompts `start` to `start + count` of "train" (endless) or "eval".

        On the host; a pure function of its arguments.
        """
        ...

    def annotate(self, batch: Trajectory, prompts: Prompts, states: Any) -> Trajectory:
        """Outcome and signals that are pure JAX, inside the jitted rollout.

        `states` are final environment states ``[P, G]``.
        """
        ...

    def verify(self, batch: Trajectory, prompts: Prompts) -> Trajectory:
        """Outcome and signals that need the host (a Python grader). The identity for JAX-native tasks."""
        ...

    def gold(self, split: str, start: int, count: int) -> Trajectory:
        """Gold answers ``[P, 1, T]`` in the rollout's layout, for the supervised warm start."""
        ...

    def decode(self, tokens: Any) -> list[str]:
        """One printable string a token, for reports."""
        ...


@runtime_checkable
class ControlTask(Protocol):
    """Classical control: the observation is a vector, one token is one action, T is the number of environment steps.

    Attributes:
      num_actions: discrete actions.
      observation_size: F, the length of the flattened observation.
      length: T.
      auto_reset: whether a new episode begins in the same row after one has ended.
      eval_size: number of held-out start states.
    """

    num_actions: int
    observation_size: int
    length: int
    auto_reset: bool
    eval_size: int

    def prompts(self, split: str, start: int, count: int) -> Prompts:
        """Start states: `data` holds PRNG keys, `tokens` and `mask` are ``[P, 0]``."""
        ...

    def reset(self, key: Array) -> tuple[Array, Any]:
        """First observation ``[F]`` and state."""
        ...

    def step(self, key: Array, state: Any, action: Array) -> tuple[Array, Any, Array, Array, Array]:
        """Next observation ``[F]`` (of the true next state, never of a reset), state, reward, terminated, truncated."""
        ...

    def decode(self, tokens: Any) -> list[str]:
        """One printable string an action, for reports."""
        ...


SPLITS = ("train", "eval")


def prompt_indices(split: str, start: int, count: int, eval_size: int) -> np.ndarray:
    """The indices u32 ``[count]`` of a range of a task's prompts that are drawn by their index.

    Raises:
      ValueError: an unknown split, a negative range, or one beyond `eval_size` of "eval".
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r}, wanted one of {', '.join(SPLITS)}")
    end = eval_size if split == "eval" else 2**32
    if start < 0 or count < 0 or start + count > end:
        raise ValueError(f"{split} prompts {start} to {start + count}, wanted a range within 0 to {end}")
    return np.arange(start, start + count, dtype=np.uint32)
