"""The axioms of Shapley (1953), for estimators that share an outcome among agents by the value of every coalition.

Without masks and gaps in the way, an agent's credit is that of its positions: each agent acts at least once.
"""

import functools
from typing import Unpack

import numpy as np

from creditjax.testing.batches import random_batch
from creditjax.testing.check import (
    SHAPE,
    Estimator,
    Function,
    Mismatch,
    Options,
    Property,
    check,
    compare,
    reads,
    tolerances,
)
from creditjax.trajectory import Trajectory


def assert_efficient(estimator: Estimator, **options: Unpack[Options]) -> None:
    """The agents' credits sum to ``v(all) - v(none)``."""

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        values = batch.signals["coalition_value"]
        found, there = _by_agent(function(batch), batch)
        wanted = np.where(there, values[..., -1] - values[..., 0], 0.0)
        found = np.where(there, found.sum(axis=-1), 0.0)
        return compare("agents' credits do not sum to v(all) - v(none)", found, wanted, **tolerances(options))

    _check("assert_efficient", estimator, holds, options)


def assert_symmetric(estimator: Estimator, **options: Unpack[Options]) -> None:
    """Agents that add the same to every coalition get the same credit."""

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        values = batch.signals["coalition_value"]
        index = np.arange(values.shape[-1])
        # Agents 0 and 1 exchanged: bits 0 and 1 of the coalition.
        swapped = (index & ~3) | ((index & 1) << 1) | ((index & 2) >> 1)
        alike = batch.with_signals(coalition_value=(values + values[..., swapped]) / 2)
        credit, there = _by_agent(function(alike), alike)
        found, wanted = (np.where(there, credit[..., agent], 0.0) for agent in (0, 1))
        return compare("agents that add the same get different credit", found, wanted, **tolerances(options))

    _check("assert_symmetric", estimator, holds, options)


def assert_null_player(estimator: Estimator, **options: Unpack[Options]) -> None:
    """An agent that adds nothing to any coalition gets no credit."""

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        values = batch.signals["coalition_value"]
        useless = batch.with_signals(coalition_value=values[..., np.arange(values.shape[-1]) & ~1])
        credit, there = _by_agent(function(useless), useless)
        found = np.where(there, credit[..., 0], 0.0)
        return compare("an agent that adds nothing gets credit", found, np.zeros_like(found), **tolerances(options))

    _check("assert_null_player", estimator, holds, options)


def _check(name: str, estimator: Estimator, holds: Property, options: Options) -> None:
    extra = {*reads(estimator), "coalition_value", "agent"}
    usual = functools.partial(random_batch, shape=SHAPE, needs=extra, degenerate=False)
    batches = options.get("batches") or usual
    check(name, estimator, holds, {**options, "batches": lambda seed: _everybody_acts(batches(seed))})


def _everybody_acts(batch: Trajectory) -> Trajectory:
    """The agents take turns, as many as there are coalitions of, at every position."""
    agents = int(np.log2(batch.signals["coalition_value"].shape[-1]))
    turns = np.broadcast_to(np.arange(batch.length) % agents, batch.tokens.shape)
    return batch.replace(action_mask=np.ones_like(batch.action_mask)).with_signals(
        agent=turns, coalition_value=np.nan_to_num(batch.signals["coalition_value"])
    )


def _by_agent(credit: np.ndarray, batch: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Each agent's credit ``[P, G, N]``, read at its first position, and where all agents act ``[P, G]``."""
    agents = int(np.log2(batch.signals["coalition_value"].shape[-1]))
    own = batch.action_mask[..., None] & (batch.signals["agent"][..., None] == np.arange(agents))
    first = np.argmax(own, axis=-2)
    return np.take_along_axis(credit, first, axis=-1), own.any(axis=-2).all(axis=-1)
