"""The expected policy gradient of any estimator, over all groups of episodes of a game."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import exact
from creditjax.algebra import Credit, Level, Transform, transform
from creditjax.algebra.credit import credit
from creditjax.exact.signals import Oracle
from creditjax.testing.check import Estimator, as_function, as_traceable, reads
from creditjax.testing.games import Case
from creditjax.trajectory import FIELDS, SIGNALS, Trajectory


def expected(estimator: Estimator, case: Case, group_size: int) -> exact.Moments:
    """Exact moments of a `Transform` or a function; the signals it reads are those of a perfect model.

    Raises:
      KeyError: a signal that the game does not determine and the case does not give.
    """
    paths = exact.enumerate_paths(case.process)
    given = dict(case.signals)
    oracle = Oracle(case.process, case.solution)
    missing = tuple(n for n in reads(estimator) if n not in FIELDS and n not in given and n != "token_mask")
    given |= oracle.signals(paths, missing)
    chances = exact.probability(case.process, paths, case.solution.policy)
    count = exact.count_groups(int(np.sum(chances > 0)), group_size)
    # Few sizes, so that games share programs.
    chunk = 512 if count <= 512 else 4096
    made = _as_transform(estimator, exact.batch(paths, np.zeros((1, group_size), int), given, case.solution.policy))
    if made is None:
        return _on_host(estimator, case, paths, given, chances, group_size)
    return exact.enumerate_moments(
        made, case.process, case.solution, group_size, paths=paths, signals=given, chunk=chunk
    )


def _as_transform(estimator: Estimator, batch: Trajectory) -> Transform | None:
    """The estimator as a `Transform`, None if it is a function that JAX cannot trace."""
    if isinstance(estimator, Transform):
        return estimator
    try:
        made = jax.eval_shape(_as_array(estimator), batch)
    except Exception:
        return None
    if made.shape != batch.tokens.shape:
        return None  # on the host it is told what is wrong
    try:
        # Another function behind it would be another program for every game.
        return _traced_once(estimator)
    except TypeError:  # of an object without a hash nobody knows whether it has changed
        return _traced(estimator)


def _as_array(estimator: Estimator) -> Callable[[Trajectory], jax.Array]:
    value = as_traceable(estimator)
    return lambda batch: jnp.asarray(value(batch))


def _traced(estimator: Estimator) -> Transform:
    value = _as_array(estimator)

    @transform(takes=None, gives=Level.TOKEN, scope="batch", uses=(*FIELDS, *SIGNALS))
    def traced(batch: Trajectory, context: Any) -> Credit:
        return credit(value(batch), batch.action_mask, Level.TOKEN)

    return traced()


_traced_once = functools.lru_cache(maxsize=64)(_traced)


def _on_host(
    estimator: Estimator,
    case: Case,
    paths: exact.Paths,
    signals: Mapping[str, np.ndarray],
    chances: np.ndarray,
    group_size: int,
) -> exact.Moments:
    """What `exact.enumerate_moments` computes, group by group, for functions that run on the host."""
    function, policy = as_function(estimator), case.solution.policy
    shape, first, second, count = policy.shape, 0.0, 0.0, 0
    happens = np.flatnonzero(chances > 0)
    every = exact.groups(chances[happens], group_size, True, exact.count_groups(len(happens), group_size))
    for members, weight in zip(*next(every), strict=True):
        index = happens[members]
        credits = function(exact.batch(paths, index[None], signals, policy))[0].astype(np.float64)
        credits = np.where(paths.acts[index], credits, 0.0)
        at_token = np.zeros(shape)
        np.add.at(at_token, (paths.observation[index], paths.tokens[index]), credits)
        gradient = ((at_token - at_token.sum(axis=1, keepdims=True) * policy) / group_size).ravel()
        first, second, count = first + weight * gradient, second + weight * np.outer(gradient, gradient), count + 1
    nothing = np.zeros((0, case.process.length))
    return exact.Moments(
        np.reshape(first, shape), second - np.outer(first, first), nothing, nothing, np.zeros(shape), count, True
    )
