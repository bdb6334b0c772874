"""What the samplers and the training step ask of a policy."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax

from creditjax.trajectory import Trajectory

Array = jax.Array
Params = Any  # a pytree of arrays


class Sampling(NamedTuple):
    """How tokens are drawn from the logits. All static: a change is another program.

    Attributes:
      temperature: divides the logits; 0 is greedy.
      top_k: keep the k most probable tokens, 0 for all.
      top_p: then keep the smallest set of most probable tokens whose mass reaches `top_p`, 1 for all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


class PolicyOutput(NamedTuple):
    """What a policy says about the tokens of a batch under some parameters.

    Attributes:
      logprob: f32 ``[..., T]``, log-probability of each token under the sampling distribution, 0 outside `action_mask`.
      entropy: f32 ``[..., T]``, entropy of that distribution in nats, 0 outside `action_mask`.
      value: f32 ``[..., T]``, V of the state in which each position was acted, or None without a value head.
      next_value: f32 ``[..., T]``, V of the state after each acted position, or None without a value head.
      statistics: further signals ``[..., T]`` by their names in the signal table, as asked for.
    """

    logprob: Array
    entropy: Array
    value: Array | None = None
    next_value: Array | None = None
    statistics: dict[str, Array] = {}


class Policy(Protocol):
    """A family of distributions over tokens or actions. Pure: the parameters are an argument."""

    def init(self, key: Array) -> Params:
        """Fresh parameters."""
        ...

    def evaluate(
        self, params: Params, batch: Trajectory, sampling: Sampling = Sampling(), statistics: Sequence[str] = ()
    ) -> PolicyOutput:
        """Teacher-forced pass over the batch's tokens, any leading axes.

        With the `sampling` and the parameters that produced the batch, `logprob` equals the batch's to 1e-4 (the
        sampled token always belongs to its own support, so an off-policy value is finite too).
        """
        ...


class DecodeState(NamedTuple):
    """Where B rows stand in a rollout of S positions.

    Attributes:
      logits: f32 ``[B, V]``, raw logits of the next token, those after the last real token.
      mask: bool ``[B, S]``, positions that hold a real token so far.
      cache: a pytree whose leaves are ``[layers, B, S, ...]``.
    """

    logits: Array
    mask: Array
    cache: Any


class TextPolicy(Policy, Protocol):
    """A policy over tokens that the decode loop can advance."""

    def start(self, params: Params, rows: int, length: int) -> DecodeState:
        """State of `rows` empty rows with room for `length` positions."""
        ...

    def extend(
        self, params: Params, state: DecodeState, tokens: Array, mask: Array, position: int | Array
    ) -> DecodeState:
        """Feeds `tokens` i32 ``[B, n]``, real where `mask`, to the positions from `position` on of every row."""
        ...
