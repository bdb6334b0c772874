"""Episodes of a process: all of them with their probabilities, or samples; and batches of them for estimators."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.exact.process import Layer, Process, check_policy
from creditjax.exact.values import Solution, in_float64, law
from creditjax.trajectory import Trajectory, signal_spec

Array = jax.Array

MAX_PATHS = 2_000_000


class Paths(NamedTuple):
    """L episodes, one a row.

    Attributes:
      tokens: i32 ``[L, T]``, 0 after the end.
      states: i32 ``[L, T]``, index of the state before each position in its layer.
      reward: f64 ``[L, T]``.
      acts: bool ``[L, T]``, the policy chose the token.
      live: bool ``[L, T]``, the episode had not ended.
      observation: i32 ``[L, T]``, what the policy saw, 0 where it did not act.
      segment: i32 ``[L, T]``, -1 after the end.
      agent: i32 ``[L, T]``, -1 where nobody acts.
    """

    tokens: np.ndarray
    states: np.ndarray
    reward: np.ndarray
    acts: np.ndarray
    live: np.ndarray
    observation: np.ndarray
    segment: np.ndarray
    agent: np.ndarray

    @property
    def outcome(self) -> np.ndarray:
        """The undiscounted return, f64 ``[L]``."""
        return self.reward.sum(axis=1)

    def gather(self, tables: Sequence[np.ndarray]) -> np.ndarray:
        """The entries of tables by layer, ``[S]`` or ``[S, V]``, along each episode, ``[L, T]``."""
        columns = [
            table[state] if np.ndim(table) == 1 else table[state, token]
            for table, state, token in zip(tables, self.states.T, self.tokens.T, strict=True)
        ]
        return np.stack(columns, axis=1)


def enumerate_paths(process: Process, max_paths: int = MAX_PATHS) -> Paths:
    """All episodes that can happen, whatever the policy, in lexicographic order of their tokens.

    Raises:
      ValueError: more than `max_paths`.
    """
    state = np.zeros(1, np.int32)
    tokens: list[np.ndarray] = []
    states: list[np.ndarray] = []
    for layer in process.layers:
        legal = np.asarray(layer.legal)[state]
        if (count := int(legal.sum())) > max_paths:
            raise ValueError(f"process: {count} paths of {len(tokens) + 1} tokens, wanted at most {max_paths}; sample")
        row, token = np.nonzero(legal)
        tokens = [column[row] for column in tokens] + [token.astype(np.int32)]
        states = [column[row] for column in states] + [state[row]]
        state = np.asarray(layer.next)[state[row], token]
    return _record(process, np.stack(tokens, axis=1), np.stack(states, axis=1))


def sample_paths(process: Process, policy: np.ndarray, key: Array, count: int) -> Paths:
    """`count` independent episodes under a policy ``[O, V]``.

    Raises:
      ValueError: fewer than one, or no policy, see `solve`.
    """
    if count < 1:
        raise ValueError(f"count: {count}, wanted at least 1")
    tokens, states = _sample(process.layers, jnp.asarray(check_policy(process, policy)), key, count)
    return _record(process, np.asarray(tokens), np.asarray(states))


@in_float64
def probability(process: Process, paths: Paths, policy: np.ndarray) -> np.ndarray:
    """Probability of each episode, f64 ``[L]``, chance included.

    Raises:
      ValueError: no policy, see `solve`.
    """
    table = jnp.asarray(check_policy(process, policy))
    tables = [law(layer, table) for layer in process.layers]
    return np.prod(paths.gather([np.asarray(x) for x in tables]), axis=1)


def log_probability(paths: Paths, policy: np.ndarray) -> np.ndarray:
    """Log-probability of each action under a policy ``[O, V]``, 0 elsewhere, f64 ``[L, T]``."""
    chosen = np.where(paths.acts, policy[paths.observation, paths.tokens], 1.0)
    return np.log(np.maximum(chosen, 1e-30))


def exact_credit(paths: Paths, solution: Solution) -> np.ndarray:
    """The exact credit ``r_t + γ' V(s_{t+1}) - V(s_t)`` of every token, f64 ``[L, T]``, the environment's included.

    It is the only credit with completeness (it sums to outcome - V_0), prefix consistency and neutrality (mean 0 given
    the prefix): card `token_credit`, PACT.
    """
    return np.where(paths.live, paths.gather(solution.credit), 0.0)


def batch(
    paths: Paths,
    index: np.ndarray,
    signals: Mapping[str, np.ndarray] | None = None,
    policy: np.ndarray | None = None,
    *,
    stream: bool | None = None,
) -> Trajectory:
    """Groups of episodes as an estimator sees them.

    Args:
      paths: the episodes.
      index: i32 ``[P, G]``, which episodes.
      signals: by name. One whose axes begin with P, G has one entry an episode here, ``[L, …]``; one with P alone and
        one without either are taken as they are, for every prompt the same.
      policy: ``[O, V]``, the policy that rolled out, for `logprob`.
      stream: whether the rewards of tokens are given beside the outcome; by default where any episode is paid before
        its end.
    """
    index = np.asarray(index)
    table = {name: np.asarray(x) for name, x in (signals or {}).items()}
    given: dict[str, Any] = {"token_mask": paths.live[index]}
    for name, x in table.items():
        axes = signal_spec(name).axes
        if axes[:2] == ("P", "G"):
            given[name] = x[index]
        else:
            given[name] = np.broadcast_to(x, (index.shape[0], *x.shape)) if axes[:1] == ("P",) else x
    stream = pays_early(paths) if stream is None else stream
    return Trajectory(
        tokens=paths.tokens[index],
        action_mask=paths.acts[index],
        outcome=paths.outcome[index].astype(np.float32),
        reward=paths.reward[index].astype(np.float32) if stream else None,
        logprob=None if policy is None else log_probability(paths, policy)[index].astype(np.float32),
        segment=paths.segment[index],
        num_segments=int(paths.segment.max()) + 1,
        signals=given,
    )


def pays_early(paths: Paths) -> bool:
    """Whether any episode is paid before its end."""
    last = paths.live & ~np.pad(paths.live, ((0, 0), (0, 1)))[:, 1:]
    return bool((paths.reward[~last] != 0).any())


def _record(process: Process, tokens: np.ndarray, states: np.ndarray) -> Paths:
    blank = np.zeros(tokens.shape)
    paths = Paths(tokens, states, *([blank] * 6))
    columns = {name: paths.gather([np.asarray(getattr(x, name)) for x in process.layers]) for name in Paths._fields[2:]}
    return paths._replace(**columns)


@functools.partial(jax.jit, static_argnums=3)
def _sample(layers: tuple[Layer, ...], policy: Array, key: Array, count: int) -> tuple[Array, Array]:
    state, tokens, states = jnp.zeros(count, jnp.int32), [], []
    for layer, own in zip(layers, jax.random.split(key, len(layers)), strict=True):
        token = jax.random.categorical(own, jnp.log(law(layer, policy)[state])).astype(jnp.int32)
        tokens.append(token)
        states.append(state)
        state = layer.next[state, token]
    return jnp.stack(tokens, axis=1), jnp.stack(states, axis=1)
