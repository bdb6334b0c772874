"""Exact values, credit and policy gradients by backward recursion over the layers of a process.

A policy is its table of action probabilities ``[O, V]`` (see `process.tabulate` and `process.softmax`). The discount
applies once from one action to the next, as in `creditjax.kernels`: a reward on an environment's token belongs to the
action before it and is not discounted against it, and nothing is discounted before the first action.

`values`, `reach` and `start_value` are pure and differentiable in the policy and compute in its precision;
:func:`solve` runs in float64 on the host's behalf.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.exact.process import Layer, Process, check_policy, check_table, softmax

Array = jax.Array


class Values(NamedTuple):
    """By layer: V of every state ``[S]`` and Q of every token ``[S, V]`` (0 at tokens that cannot come)."""

    v: tuple[Array, ...]
    q: tuple[Array, ...]


class Solution(NamedTuple):
    """What is known exactly about a policy, f64 on the host, by layer.

    Attributes:
      v: ``[S]``, value of each state.
      q: ``[S, V]``, value of each token.
      credit: ``[S, V]``, ``q - v``: the exact credit of a token, the environment's included; 0 where none can come.
      reach: ``[S]``, probability of coming through the state.
      policy: ``[O, V]``, the policy that they belong to.
      gamma: the discount.
    """

    v: tuple[np.ndarray, ...]
    q: tuple[np.ndarray, ...]
    credit: tuple[np.ndarray, ...]
    reach: tuple[np.ndarray, ...]
    policy: np.ndarray
    gamma: float

    @property
    def start(self) -> float:
        """J, the value of the start."""
        return float(self.v[0][0])


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a function in double precision; what it returns is on the host."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, function(*args, **kwargs))

    return wrapped


def law(layer: Layer, policy: Array) -> Array:
    """Probabilities of the next token in every state ``[S, V]``, the policy's or the environment's."""
    return jnp.where(layer.acts[:, None], policy[layer.observation], layer.law)


@jax.jit
def _values(layers: tuple[Layer, ...], acted: tuple[Array, ...], policy: Array, gamma: Array) -> Values:
    after = jnp.zeros(1, policy.dtype)
    discount = after
    v: list[Array] = []
    q: list[Array] = []
    for layer, begun in reversed(list(zip(layers, acted, strict=True))):
        # After the last layer there is one worthless end.
        future = (discount * after)[layer.next] if v else 0.0
        q.append(jnp.where(layer.legal, layer.reward + future, 0.0))
        after = jnp.sum(law(layer, policy) * q[-1], axis=-1)
        discount = jnp.where(layer.acts & begun, gamma, 1.0)
        v.append(after)
    return Values(tuple(reversed(v)), tuple(reversed(q)))


def _on_device(tables: Any) -> Any:
    # JAX keeps the float32 constant that it made of a NumPy array while tracing, and would give it to a program that is
    # differentiated in float64 later on.
    return jax.tree.map(jnp.asarray, tables)


def values(process: Process, policy: Array, gamma: float = 1.0) -> Values:
    """``Q(s, a) = r(s, a) + γ' V(s')`` and ``V(s) = Σ_a π(a|s) Q(s, a)``.

    γ' is `gamma` where s' acts and an action may have come before, and 1 elsewhere.

    Args:
      process: the game laid out.
      policy: ``[O, V]``, action probabilities.
      gamma: discount from one action to the next.

    Raises:
      ValueError: a policy of another shape.
    """
    check_table("policy", policy, process)
    return _values(_on_device(process.layers), _on_device(process.acted), jnp.asarray(policy), gamma)


def spread(process: Process, q: Sequence[np.ndarray]) -> list[np.ndarray]:
    """How far apart the best and the worst legal token of each state are, by layer ``[S]``."""
    return [
        np.where(layer.legal, x, -np.inf).max(axis=-1) - np.where(layer.legal, x, np.inf).min(axis=-1)
        for layer, x in zip(process.layers, q, strict=True)
    ]


def start_value(process: Process, policy: Array, gamma: float = 1.0) -> Array:
    """J, the value of the start, scalar."""
    return values(process, policy, gamma).v[0][0]


@jax.jit
def _reach(layers: tuple[Layer, ...], policy: Array) -> tuple[Array, ...]:
    mass = [jnp.ones(1, policy.dtype)]
    for layer, after in zip(layers[:-1], layers[1:], strict=True):
        flow = mass[-1][:, None] * law(layer, policy)
        mass.append(jnp.zeros(len(after.acts), policy.dtype).at[layer.next].add(jnp.where(layer.legal, flow, 0.0)))
    return tuple(mass)


def reach(process: Process, policy: Array) -> tuple[Array, ...]:
    """Probability of each state, by layer ``[S]``; every layer sums to 1."""
    check_table("policy", policy, process)
    return _reach(_on_device(process.layers), jnp.asarray(policy))


@in_float64
def solve(process: Process, policy: Array, gamma: float = 1.0) -> Solution:
    """Values, exact credit and the law of states, in float64.

    Args:
      process: the game laid out.
      policy: ``[O, V]``, action probabilities.
      gamma: discount from one action to the next.

    Raises:
      ValueError: a policy of another shape, or rows that are no probabilities over the legal tokens; a discount that is
        not in [0, 1]; a discount below 1 where a state is the first to act in some episodes and not in others, which
        gives it two values (`remember` keeps them apart).
    """
    _check_gamma(gamma)
    if gamma < 1 and (mixed := process.first_and_later) is not None:
        raise ValueError(
            f"gamma: {gamma} where state {mixed!r} may act first or later, wanted 1, or exact.remember(game) laid out"
        )
    policy = jnp.asarray(check_policy(process, policy))
    v, q = values(process, policy, gamma)
    credit = tuple(
        jnp.where(layer.legal, tokens - state[:, None], 0.0)
        for layer, state, tokens in zip(process.layers, v, q, strict=True)
    )
    # `in_float64` brings them to the host.
    found: dict[str, Any] = {"v": v, "q": q, "credit": credit, "reach": reach(process, policy), "policy": policy}
    return Solution(**found, gamma=gamma)


@in_float64
def policy_gradient(process: Process, logits: Array, gamma: float = 1.0) -> np.ndarray:
    """``dJ / dlogits`` of the softmax policy, f64 ``[O, V]``, by differentiating the recursion.

    Raises:
      ValueError: logits of another shape, or a discount that is not in [0, 1].
    """
    _check_gamma(gamma)
    start = functools.partial(start_value, process, gamma=gamma)
    return jax.grad(lambda x: start(softmax(process, x)))(jnp.asarray(logits, jnp.float64))


def _check_gamma(gamma: float) -> None:
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma: {gamma}, wanted a discount in [0, 1]")
