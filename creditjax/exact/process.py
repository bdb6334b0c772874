"""A game with all its states laid out in layers, one a position: what exact values are computed on."""

from collections.abc import Callable, Hashable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from creditjax.exact.game import Act, Chance, Game

Array = jax.Array
Table = Any  # a NumPy array on the host, a tracer inside a jitted function

# Beyond this a table of all states is a mistake: merge states, or sample.
MAX_STATES = 4_000_000


class Layer(NamedTuple):
    """The S states that are possible before one position, and where the V tokens lead.

    Attributes:
      next: i32 ``[S, V]``, index of the state in the layer after.
      reward: f64 ``[S, V]``, what the token brings.
      law: f64 ``[S, V]``, probabilities of the tokens where the environment draws; 0 where the policy acts. Ended
        episodes have probability 1 on token 0.
      legal: bool ``[S, V]``, the tokens that can come.
      acts: bool ``[S]``, the policy chooses.
      live: bool ``[S]``, the episode has not ended.
      observation: i32 ``[S]``, index of the information state; 0 where the policy does not act.
      segment: i32 ``[S]``, turn or step, -1 after the end.
      agent: i32 ``[S]``, who acts, -1 where nobody does.
    """

    next: Table
    reward: Table
    law: Table
    legal: Table
    acts: Table
    live: Table
    observation: Table
    segment: Table
    agent: Table


@dataclasses.dataclass(frozen=True)
class Process:
    """T layers. The first has one state; what follows the last layer is the end, worth nothing.

    No pytree: what is jitted takes `layers`.

    Attributes:
      layers: one a position.
      observations: what the policy can see, by index.
      states: the states of the game before each position and after the last, by layer and index.
    """

    layers: tuple[Layer, ...]
    observations: tuple[Hashable, ...]
    states: tuple[tuple[Hashable, ...], ...]

    @property
    def length(self) -> int:
        """T."""
        return len(self.layers)

    @property
    def num_tokens(self) -> int:
        """V."""
        return self.layers[0].next.shape[1]

    @property
    def num_states(self) -> int:
        """States of all layers."""
        return sum(len(layer.acts) for layer in self.layers)

    @functools.cached_property
    def choices(self) -> np.ndarray:
        """The tokens that are legal at each observation, bool ``[O, V]``."""
        found = np.zeros((len(self.observations), self.num_tokens), bool)
        for layer in self.layers:
            acts = np.asarray(layer.acts)
            np.logical_or.at(found, np.asarray(layer.observation)[acts], np.asarray(layer.legal)[acts])
        return found

    @functools.cached_property
    def acted(self) -> tuple[np.ndarray, ...]:
        """Whether an action may have come before each state, by layer, bool ``[S]``."""
        return self._history(lambda layer, before: before | layer.acts)

    @functools.cached_property
    def first_and_later(self) -> Hashable | None:
        """A state in which the policy acts for the first time in some episodes and not in others, None without one."""
        fresh = self._history(lambda layer, before: before & ~layer.acts, start=True)
        for layer, acted, unacted, states in zip(self.layers, self.acted, fresh, self.states, strict=False):
            if (both := acted & unacted & layer.acts).any():
                return states[int(np.argmax(both))]
        return None

    def _history(
        self, follow: Callable[[Layer, np.ndarray], np.ndarray], start: bool = False
    ) -> tuple[np.ndarray, ...]:
        """What some way to each state has: `follow` says what a layer makes of it."""
        found = [np.full(1, start)]
        for layer, after in zip(self.layers[:-1], self.layers[1:], strict=True):
            legal, leads = np.asarray(layer.legal), np.asarray(layer.next)
            here = legal & follow(layer, found[-1])[:, None]
            found.append(np.zeros(len(after.acts), bool))
            np.logical_or.at(found[-1], leads[here], True)
        return tuple(found)


def lay_out(game: Game, max_states: int = MAX_STATES) -> Process:
    """Follows every token from the start; states that compare equal in a layer become one.

    Args:
      game: the rules.
      max_states: most states of one layer.

    Returns:
      The process, arrays on the host in float64.

    Raises:
      TypeError: a move that is none of `Act`, `Chance` and None.
      ValueError: no tokens or no positions, more than `max_states` states, a token out of range, a law that does not
        sum to 1, a reward that is not finite, an episode that goes on after `game.length` tokens, one observation with
        different legal tokens, or no action anywhere.
    """
    if game.num_tokens < 1 or game.length < 1:
        raise ValueError(f"game: num_tokens {game.num_tokens}, length {game.length}, wanted at least 1 each")
    observations: dict[Hashable, tuple[int, tuple[int, ...]]] = {}
    states: list[tuple[Hashable, ...]] = [(game.start(),)]
    layers: list[Layer] = []
    for position in range(game.length):
        layer, after = _layer(game, states[-1], position, observations, max_states)
        layers.append(layer)
        states.append(after)
    if going := [s for s in states[-1] if game.move(s) is not None]:
        raise ValueError(f"game: {going[0]!r} goes on after {game.length} tokens, wanted an end (`length`)")
    if not observations:
        raise ValueError("game: chance alone, wanted a state in which the policy acts (`Act`)")
    return Process(tuple(layers), tuple(observations), tuple(states))


def _layer(
    game: Game,
    states: tuple[Hashable, ...],
    position: int,
    observations: dict[Hashable, tuple[int, tuple[int, ...]]],
    max_states: int,
) -> tuple[Layer, tuple[Hashable, ...]]:
    size, width = len(states), game.num_tokens
    after: dict[Hashable, int] = {}
    table = Layer(
        next=np.zeros((size, width), np.int32),
        reward=np.zeros((size, width)),
        law=np.zeros((size, width)),
        legal=np.zeros((size, width), bool),
        acts=np.zeros(size, bool),
        live=np.zeros(size, bool),
        observation=np.zeros(size, np.int32),
        segment=np.full(size, -1, np.int32),
        agent=np.full(size, -1, np.int32),
    )
    for i, state in enumerate(states):
        move = game.move(state)
        if move is None:
            table.law[i, 0], table.legal[i, 0] = 1.0, True
            table.next[i, 0] = after.setdefault(state, len(after))
            continue
        if not isinstance(move, Act | Chance):
            raise TypeError(f"game: move {move!r} at position {position}, wanted Act, Chance or None")
        if move.segment < 0:
            raise ValueError(f"game: segment {move.segment} at position {position}, wanted at least 0")
        table.live[i], table.segment[i] = True, move.segment
        if isinstance(move, Act):
            tokens = tuple(sorted({int(token) for token in move.legal})) or tuple(range(width))
            known = observations.setdefault(move.observation, (len(observations), tokens))
            if known[1] != tokens:
                raise ValueError(
                    f"game: at observation {move.observation!r} tokens {list(tokens)} are legal in one state and "
                    f"{list(known[1])} in another, wanted the same"
                )
            table.acts[i], table.observation[i], table.agent[i] = True, known[0], move.agent
        else:
            tokens = tuple(token for token, probability in move.law.items() if probability > 0)
            # Negated, since NaN compares as false.
            if not (abs(sum(move.law.values()) - 1) <= 1e-9 and min(move.law.values()) >= 0):
                raise ValueError(f"game: the law {move.law} at position {position}, wanted probabilities that sum to 1")
        if not all(0 <= token < width for token in tokens):
            raise ValueError(f"game: tokens {list(tokens)} at position {position}, wanted 0 to {width - 1}")
        for token in tokens:
            state_after, reward = game.step(state, token)
            if not np.isfinite(reward):
                raise ValueError(f"game: reward {reward} of token {token} at position {position}, wanted a finite one")
            table.reward[i, token] = reward
            table.next[i, token] = after.setdefault(state_after, len(after))
            table.legal[i, token] = True
            if isinstance(move, Chance):
                table.law[i, token] = move.law[token]
    if len(after) > max_states:
        raise ValueError(f"game: {len(after)} states after position {position}, wanted at most {max_states}")
    return table, tuple(after)


def tabulate(process: Process, policy: Callable[[Hashable], np.ndarray]) -> np.ndarray:
    """Action probabilities at every observation, f64 ``[O, V]``, of a policy that is a function.

    Args:
      process: the game laid out.
      policy: from an observation to probabilities ``[V]``. Illegal tokens get none and the rest is scaled to sum to 1.

    Raises:
      ValueError: probabilities that are negative, not finite, or 0 on all legal tokens.
    """
    rows = [np.asarray(policy(key), np.float64) for key in process.observations]
    for key, row in zip(process.observations, rows, strict=True):
        if row.shape != (process.num_tokens,):
            raise ValueError(
                f"policy: gave probabilities {list(row.shape)}, wanted [{process.num_tokens}], at observation {key!r}"
            )
    table = np.where(process.choices, np.stack(rows), 0.0)
    total = table.sum(axis=1, keepdims=True)
    if not np.isfinite(table).all() or (table < 0).any() or (total <= 0).any():
        bad = int(np.flatnonzero(~np.isfinite(table).all(1) | (table < 0).any(1) | (total[:, 0] <= 0))[0])
        raise ValueError(f"policy: {table[bad]} at observation {process.observations[bad]!r}, wanted probabilities")
    return table / total


def softmax(process: Process, logits: Array) -> Array:
    """Action probabilities ``[O, V]`` of one logit an observation and token; illegal tokens get 0.

    Raises:
      ValueError: logits of another shape.
    """
    check_table("logits", logits, process)
    return jax.nn.softmax(logits, axis=-1, where=process.choices)


def check_table(name: str, table: Table, process: Process) -> None:
    """Raises a `ValueError` unless a table, traced or not, has a row an observation and a column a token."""
    if np.shape(table) != process.choices.shape:
        raise ValueError(f"{name}: shape {list(np.shape(table))}, wanted [O, V] = {list(process.choices.shape)}")


def check_policy(process: Process, policy: Table) -> np.ndarray:
    """A policy as f64 ``[O, V]`` on the host.

    Raises:
      ValueError: another shape; or a row that is negative or not finite, that does not sum to 1 within 1e-5 (float32
        will do), or that gives an illegal token more than that.
    """
    check_table("policy", policy, process)
    table = np.asarray(policy, np.float64)
    # Negated, since NaN compares as false.
    legal = np.where(process.choices, table, 0.0)
    bad = ~((table >= 0).all(axis=1) & (np.abs(legal.sum(axis=1) - 1) <= 1e-5) & (np.abs(table - legal) <= 1e-5).all(1))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"policy: {table[row]} at observation {process.observations[row]!r}, wanted probabilities that sum to 1 "
            f"over the legal tokens {np.flatnonzero(process.choices[row]).tolist()}"
        )
    return table
