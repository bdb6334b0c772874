"""Moments over several prompts at once, for estimators whose credit of one prompt depends on the others.

Whitening over the batch, a batch mean, a count of the groups that teach something: with such statistics the expected
gradient of a prompt is not that of the prompt alone. Here every combination of one group per prompt is formed and
weighted by the product of their probabilities, and each prompt's gradient is held against its own exact one.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.algebra import Transform, estimate
from creditjax.exact import paths as path_lib
from creditjax.exact.moments import MAX_GROUPS, Moments, count_groups, group_sums, groups, to_moments
from creditjax.exact.process import Process
from creditjax.exact.values import Solution
from creditjax.packing import pad_positions
from creditjax.trajectory import Trajectory, signal_spec

Array = jax.Array


class Prompt(NamedTuple):
    """One prompt of a batch.

    Attributes:
      process: the game laid out.
      solution: of the policy that rolls out; its logits belong to this prompt alone.
      signals: see `paths.batch`, one entry an episode of `enumerate_paths(process)`.
    """

    process: Process
    solution: Solution
    signals: Mapping[str, np.ndarray] = {}


def enumerate_joint_moments(
    estimator: Transform,
    prompts: Sequence[Prompt],
    group_size: int,
    *,
    chunk: int = 4096,
    max_groups: int = MAX_GROUPS,
) -> tuple[Moments, ...]:
    """Exact moments of each prompt, averaged over the groups of all prompts together.

    The rollouts of a group have to be treated alike; those of different prompts need not. For an estimator without
    batch statistics the result is that of `enumerate_moments`, prompt by prompt.

    Args:
      estimator: a chain.
      prompts: with the same number of tokens and segments of a rollout, or padded to the longest.
      group_size: G of each prompt.
      chunk: batches in flight.
      max_groups: most combinations of groups.

    Raises:
      ValueError: no prompts, signals that only some prompts have, or too many combinations.
    """
    if not prompts:
        raise ValueError("prompts: none, wanted at least one")
    if len({frozenset(prompt.signals) for prompt in prompts}) > 1:
        raise ValueError(f"prompts: signals {[sorted(prompt.signals) for prompt in prompts]}, wanted the same of each")
    paths = [path_lib.enumerate_paths(prompt.process) for prompt in prompts]
    every = [_groups(prompt, own, group_size, max_groups) for prompt, own in zip(prompts, paths, strict=True)]
    sizes = [len(members) for members, _ in every]
    if (count := math.prod(sizes)) > max_groups:
        raise ValueError(f"group_size: {group_size}, {count} combinations of groups, wanted at most {max_groups}")
    length = max(prompt.process.length for prompt in prompts)
    segments = max(int(own.segment.max()) + 1 for own in paths)
    stream = any(path_lib.pays_early(own) for own in paths)
    totals: list[tuple[np.ndarray, ...]] = [() for _ in prompts]
    for start in range(0, count, chunk):
        # The last chunk is filled up with combinations that weigh nothing, so that there is one program.
        flat = np.arange(start, start + chunk)
        weight = (flat < count).astype(float)
        picks = np.unravel_index(np.minimum(flat, count - 1), sizes)
        index = [members[pick] for (members, _), pick in zip(every, picks, strict=True)]
        for (_, chances), pick in zip(every, picks, strict=True):
            weight = weight * chances[pick]
        rows = [
            _row(prompt, own, at, length, segments, stream)
            for prompt, own, at in zip(prompts, paths, index, strict=True)
        ]
        credit = _batch_credit(estimator, *rows)
        for p, (prompt, own) in enumerate(zip(prompts, paths, strict=True)):
            mine = credit[:, p, :, : prompt.process.length]
            sums = group_sums(mine, own, index[p], weight, prompt.solution.policy, len(own.tokens))
            totals[p] = tuple(a + b for a, b in zip(totals[p], sums, strict=True)) if totals[p] else sums
    return tuple(
        to_moments(total, own, prompt.solution.policy.shape, count)
        for total, own, prompt in zip(totals, paths, prompts, strict=True)
    )


def _groups(prompt: Prompt, paths: path_lib.Paths, group_size: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """All groups of one prompt ``[M, G]`` and their probabilities."""
    chances = path_lib.probability(prompt.process, paths, prompt.solution.policy)
    happens = np.flatnonzero(chances > 0)
    if (count := count_groups(len(happens), group_size)) > most:
        raise ValueError(
            f"group_size: {group_size} of {len(happens)} episodes are {count} groups, wanted at most {most}"
        )
    members, weight = next(groups(chances[happens], group_size, True, count))
    return happens[members], weight


def _row(
    prompt: Prompt, paths: path_lib.Paths, index: np.ndarray, length: int, segments: int, stream: bool
) -> Trajectory:
    """One prompt's groups of a chunk, as a batch whose prompt axis counts combinations."""
    made = path_lib.batch(paths, index, prompt.signals, prompt.solution.policy, stream=stream)
    grown = {name: _grow(name, x, segments) for name, x in made.signals.items()}
    return pad_positions(made.replace(signals=grown, num_segments=segments), length)


def _grow(name: str, x: Any, segments: int) -> Any:
    """A signal with room for `segments`; what is added is never read."""
    room = {"K": segments, "K+1": segments + 1}
    pad = [(0, room.get(axis, size) - size) for axis, size in zip(signal_spec(name).axes, np.shape(x), strict=True)]
    return np.pad(np.asarray(x), pad) if any(more for _, more in pad) else x


@jax.jit
def _batch_credit(estimator: Transform, *rows: Trajectory) -> Array:
    """Credit ``[N, P, G, T]`` of N batches, one at a time, each of one group per prompt."""
    shared = {name: x for name, x in rows[0].signals.items() if "P" not in signal_spec(name).axes}
    own = [row.replace(signals={k: x for k, x in row.signals.items() if k not in shared}) for row in rows]

    def one(*groups: Trajectory) -> Array:
        together = jax.tree.map(lambda *x: jnp.stack(x), *groups)
        return estimate(estimator, together.with_signals(**shared)).value

    return jax.vmap(one)(*own)
