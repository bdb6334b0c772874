"""Step labels by Monte Carlo tree search with binary search for the first error (OmegaPRM, arXiv:2406.06592).

A node is a prefix of steps, its value the share of k completions that are right. Wrong completions of nodes with a
value strictly between 0 and 1 wait in a pool; the search picks one, finds its first error by bisection, and every
prefix that it evaluates on the way becomes a node. All of it is one JAX program over arrays of a fixed size:

    tree = search(key, rollout, SearchConfig(max_steps=8), prompt)
    labels, valid = tree.value, tree.is_edge          # soft labels of the edges (prefix, step)
"""

from collections.abc import Callable
import dataclasses
import math
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.objectives.terms import Term
from creditjax.process.records import Record

Array = jax.Array


def binary_search_first_error(alive: Callable[[Array], Array], length: Array | int) -> tuple[Array, Array]:
    """The first dead prefix: ``lo = 0, hi = n; while hi - lo > 1: mid = (lo + hi) // 2, alive -> lo, dead -> hi``.

    The empty prefix is taken to be alive and the whole one dead. If ``alive`` is monotone the result is the first dead
    length; else it is a dead one whose predecessor is alive. At most ``ceil(log2 n)`` prefixes are asked for.

    >>> first, asked = binary_search_first_error(lambda k: k < 5, 8)
    >>> int(first), int(asked)
    (5, 3)

    Args:
      alive: of the prefix of i32 scalar k steps, 0 < k < n.
      length: n, at least 1.

    Returns:
      The length of the first dead prefix, so that step ``length - 1`` is the first wrong one counted from 0; and how
      many prefixes were asked for.
    """

    def bisect(carry):
        lo, hi, asked = carry
        mid = (lo + hi) // 2
        good = alive(mid)
        return jnp.where(good, mid, lo), jnp.where(good, hi, mid), asked + 1

    start = (jnp.int32(0), jnp.asarray(length, jnp.int32), jnp.int32(0))
    _, first, asked = lax.while_loop(lambda carry: carry[1] - carry[0] > 1, bisect, start)
    return first, asked


class Completions(NamedTuple):
    """k completions of one prefix, as whole solutions.

    Attributes:
      steps: i32 ``[k, S]``, identifiers of the steps from the prompt on, the prefix's first; -1 behind the last one.
      length: i32 ``[k]``, number of steps, at least one more than the prefix has where that is possible.
      success: bool ``[k]``, whether the answer is right.
      size: f32 ``[k]``, length of the text in tokens or words.
    """

    steps: Array
    length: Array
    success: Array
    size: Array


RolloutSuccess = Callable[[Array, Array, Array, int, Any], Completions]
"""``rollout(key, steps [S], length, k, prompt) -> Completions``: completes a prefix k times; pure JAX."""


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """Constants of the search; static.

    Attributes:
      max_steps: S, most steps of a solution.
      searches: selections from the pool.
      completions: k of a node.
      alpha: base of the preference for wrong completions of nodes with a high value.
      beta: base of the preference for short ones.
      scale: L, the size at which a completion weighs `beta`.
      c_puct: weight of exploration.

    Raises:
      ValueError: a size below 1, or `alpha` or `beta` outside (0, 1].
    """

    max_steps: int
    searches: int = 100
    completions: int = 8
    alpha: float = 0.5
    beta: float = 0.9
    scale: float = 500.0
    c_puct: float = 0.125

    def __post_init__(self):
        for name in ("max_steps", "searches", "completions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}, wanted at least 1")
        for name in ("alpha", "beta"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: {getattr(self, name)}, wanted more than 0 and at most 1")

    @property
    def nodes(self) -> int:
        """M, room for every node that the search can make."""
        return 1 + self.searches * math.ceil(math.log2(self.max_steps)) if self.max_steps > 1 else 1


def selection_value(value: Array, size: Array, config: SearchConfig) -> Array:
    """``Q = alpha^(1 - MC) beta^(size / L)``, in (0, 1]: a node that often succeeds, and a short one that did not."""
    return config.alpha ** (1.0 - value) * config.beta ** (size / config.scale)


def exploration(visits: Array, total: Array, config: SearchConfig) -> Array:
    """``U = c sqrt(max(1, sum of all visits)) / (1 + visits)``."""
    return config.c_puct * jnp.sqrt(jnp.maximum(total, 1.0)) / (1.0 + visits)


class Tree(NamedTuple):
    """A searched tree of M nodes, the first being the bare prompt.

    Attributes:
      steps: i32 ``[M, S]``, the prefix of each node, -1 behind its last step.
      length: i32 ``[M]``, its number of steps.
      value: f32 ``[M]``, share of right completions.
      visits: f32 ``[M]``, how often a completion of it was selected.
      is_node: bool ``[M]``, which nodes there are.
      rollouts: i32 scalar, completions that were drawn.
      first_error: i32 ``[N_search]``, the first wrong step, from 0, of the completion of each search; -1 if the pool
        was empty.
    """

    steps: Array
    length: Array
    value: Array
    visits: Array
    is_node: Array
    rollouts: Array
    first_error: Array

    @property
    def is_edge(self) -> Array:
        """Nodes that a step leads to, bool ``[M]``: (prefix without it, step) is an example with label `value`."""
        return self.is_node & (self.length > 0)


class _Pool(NamedTuple):
    steps: Array  # [M, k, S]
    length: Array  # [M, k]
    size: Array  # [M, k]
    waiting: Array  # bool [M, k]


def search(key: Array, rollout: RolloutSuccess, config: SearchConfig, prompt: Any = ()) -> Tree:
    """Grows a tree; jit with `rollout` and `config` static.

    A prefix that has been evaluated is not evaluated again. Search goes on to the end of `config.searches`, doing
    nothing once the pool is empty.

    Args:
      key: PRNG key.
      rollout: completes prefixes of `prompt`.
      config: constants.
      prompt: whatever `rollout` needs.
    """
    m, k, s = config.nodes, config.completions, config.max_steps
    order = jnp.arange(s)
    tree = Tree(
        steps=jnp.full((m, s), -1, jnp.int32),
        length=jnp.zeros(m, jnp.int32),
        value=jnp.zeros(m),
        visits=jnp.zeros(m),
        is_node=jnp.zeros(m, bool),
        rollouts=jnp.int32(0),
        first_error=jnp.full(config.searches, -1, jnp.int32),
    )
    nothing = jnp.zeros((m, k))
    pool = _Pool(jnp.full((m, k, s), -1, jnp.int32), nothing.astype(jnp.int32), nothing, nothing > 0)

    def evaluate(tree: Tree, pool: _Pool, steps: Array, length: Array) -> tuple[Tree, _Pool, Array]:
        """The value of a prefix, which becomes a node unless it is one."""
        prefix = jnp.where(order < length, steps, -1)
        same = tree.is_node & (tree.length == length) & jnp.all(tree.steps == prefix, axis=-1)

        def draw(tree: Tree, pool: _Pool):
            at = jnp.sum(tree.is_node, dtype=jnp.int32)
            found = rollout(jax.random.fold_in(key, at), prefix, length, k, prompt)
            value = jnp.mean(found.success, dtype=jnp.float32)
            wrong = ~found.success & (value > 0) & (value < 1)  # some succeed, so the prefix is alive
            tree = tree._replace(
                steps=tree.steps.at[at].set(prefix),
                length=tree.length.at[at].set(length),
                value=tree.value.at[at].set(value),
                is_node=tree.is_node.at[at].set(True),
                rollouts=tree.rollouts + k,
            )
            pool = _Pool(
                pool.steps.at[at].set(found.steps),
                pool.length.at[at].set(found.length),
                pool.size.at[at].set(found.size.astype(jnp.float32)),
                pool.waiting.at[at].set(wrong & (found.length > length)),
            )
            return tree, pool, value

        return lax.cond(jnp.any(same), lambda t, p: (t, p, t.value[jnp.argmax(same)]), draw, tree, pool)

    def expand(number: Array, carry: tuple[Tree, _Pool]) -> tuple[Tree, _Pool]:
        tree, pool = carry
        score = selection_value(tree.value[:, None], pool.size, config)
        score += exploration(tree.visits, jnp.sum(tree.visits), config)[:, None]
        best = jnp.argmax(jnp.where(pool.waiting, score, -jnp.inf))
        node, index = jnp.divmod(best, k)
        steps, length = pool.steps[node, index], pool.length[node, index]
        tree = tree._replace(visits=tree.visits.at[node].add(1.0))
        pool = pool._replace(waiting=pool.waiting.at[node, index].set(False))

        def bisect(carry):
            tree, pool, lo, hi = carry
            mid = (lo + hi) // 2
            tree, pool, value = evaluate(tree, pool, steps, mid)
            return tree, pool, jnp.where(value > 0, mid, lo), jnp.where(value > 0, hi, mid)

        tree, pool, _, first = lax.while_loop(
            lambda carry: carry[3] - carry[2] > 1, bisect, (tree, pool, tree.length[node], length)
        )
        return tree._replace(first_error=tree.first_error.at[number].set(first - 1)), pool

    tree, pool, _ = evaluate(tree, pool, tree.steps[0], jnp.int32(0))

    def one(number: Array, carry: tuple[Tree, _Pool]) -> tuple[Tree, _Pool]:
        return lax.cond(jnp.any(carry[1].waiting), lambda c: expand(number, c), lambda c: c, carry)

    return lax.fori_loop(0, config.searches, one, (tree, pool))[0]


def sibling_pairs(tree: Tree) -> Array:
    """bool ``[M, M]``: a and b are other steps after the same prefix, and a has the higher value."""
    last = tree.length[:, None] - 1
    parent = jnp.where(jnp.arange(tree.steps.shape[1]) < last, tree.steps, -1)
    together = jnp.all(parent[:, None] == parent[None, :], axis=-1) & (tree.length[:, None] == tree.length[None, :])
    real = tree.is_edge[:, None] & tree.is_edge[None, :]
    return together & real & (tree.value[:, None] > tree.value[None, :])


def pair_loss(score: Array, pairs: Array) -> Term:
    """``-log sigmoid(f_a - f_b)`` over the pairs, as a sum and a count (Bradley and Terry 1952).

    Args:
      score: f32 ``[M]``, a model's logit of each edge; not read where no pair is.
      pairs: bool ``[M, M]``, a above b.
    """
    score = numerics.select(score, jnp.any(pairs, axis=0) | jnp.any(pairs, axis=1))
    each = -jax.nn.log_sigmoid(score[:, None] - score[None, :])
    return Term(numerics.masked_sum(each, pairs), numerics.masked_count(pairs))


def to_records(tree: Tree, problem: str, texts: Callable[[int], str], id: str = "") -> list[Record]:
    """Every edge as a record whose last step alone is labelled, by its value; on the host.

    Args:
      tree: searched.
      problem: its text.
      texts: the text of a step's identifier.
      id: of the tree; edges are numbered behind it.
    """
    steps, length, value, edge = (jax.device_get(x) for x in (tree.steps, tree.length, tree.value, tree.is_edge))
    return [
        Record(
            f"{id}/{i}",
            problem,
            tuple(texts(int(step)) for step in steps[i, : length[i]]),
            step_labels=(*(None,) * (int(length[i]) - 1), float(value[i])),
        )
        for i in range(len(edge))
        if edge[i]
    ]
