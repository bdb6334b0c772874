"""Pairs of a step and the same step with one error in it, as RISE (arXiv:2410.06638) trains on.

The paper asks the policy itself for the error. :func:`inject_error` makes the same three kinds in arithmetic text
without a model, on the host: REPLACE a number or an operator, SWAP two operands, DELETE a term.
:func:`with_edited_steps` does the first of them to rollouts that were sampled, in pure JAX.
"""

from collections.abc import Sequence
import re
from typing import NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.naming import nearest
from creditjax.signals.overlap import common_subsequence
from creditjax.trajectory import Trajectory, vote_mask

Array = jax.Array

OPERATIONS = ("replace", "swap", "delete")
_NUMBER = re.compile(r"\d+")
_OPERATOR = re.compile(r"(?<=[\w)])\s*([-+*/])\s*(?=[\w(])")
_TERM = re.compile(r"(\d+)(\s*[-+*/]\s*)(\d+)")


class Edit(NamedTuple):
    """A step of a right solution and its edited version, as tokens.

    Attributes:
      prefix: prompt and solution up to the step.
      chosen: the step.
      rejected: the step with an error.
    """

    prefix: Sequence[int]
    chosen: Sequence[int]
    rejected: Sequence[int]


def edit_masks(chosen: Sequence[int], rejected: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens of two versions of a step are outside their longest common subsequence, bool ``[n]`` and ``[m]``.

    Both are all False if and only if the versions are equal; one of them is after a mere insertion or deletion.
    """
    common_chosen, common_rejected = common_subsequence(chosen, rejected)
    return ~common_chosen, ~common_rejected


def edit_size(chosen: Sequence[int], rejected: Sequence[int]) -> int:
    """How many tokens have to be deleted and inserted to get from one version to the other."""
    return int(sum(mask.sum() for mask in edit_masks(chosen, rejected)))


def edited_batch(edits: Sequence[Edit], length: int, max_edit: int = 8) -> Trajectory:
    """Groups of two, ``[P, 2, T]``: the step with outcome 1 and its edited version with outcome 0, after one prefix.

    The policy acts in the step alone. The signals are `token_mask`, `step_mask` and `edit_mask`. An edit that changes
    nothing or more than `max_edit` tokens is left out, so P may be less than their number, and 0.

    Args:
      edits: the pairs.
      length: T.
      max_edit: the largest :func:`edit_size` of a pair that is kept.

    Raises:
      ValueError: a pair that is longer than `length`.
    """
    kept = [edit for edit in edits if 0 < edit_size(edit.chosen, edit.rejected) <= max_edit]
    shape = (len(kept), 2, length)
    tokens = np.zeros(shape, np.int32)
    real, step, changed = (np.zeros(shape, bool) for _ in range(3))
    for p, edit in enumerate(kept):
        start = len(edit.prefix)
        for g, (side, mask) in enumerate(
            zip((edit.chosen, edit.rejected), edit_masks(edit.chosen, edit.rejected), strict=True)
        ):
            end = start + len(side)
            if end > length:
                raise ValueError(f"edits: a pair of {end} tokens, wanted at most length = {length}")
            tokens[p, g, :end] = [*edit.prefix, *side]
            real[p, g, :end] = step[p, g, start:end] = True
            changed[p, g, start:end] = mask
    return Trajectory(
        tokens=tokens,
        action_mask=step,
        outcome=np.tile(np.float32([1, 0]), (len(kept), 1)),
        votes=np.ones((len(kept), 2), bool),
        signals={"token_mask": real, "step_mask": step, "edit_mask": changed},
    )


def with_edited_steps(batch: Trajectory, key: Array, replaceable: Array, *, success_at: float = 1.0) -> Trajectory:
    """Rollouts ``[P, G, T]`` and, behind each group, one of an edited step of it: ``[2 P, G, T]``.

    The edited group of a prompt has the first right rollout up to a step of it, with outcome 1, and the same with one
    of the step's tokens replaced, with outcome 0; the policy acts in the step alone, and the other rows take no part.
    The token is drawn uniformly among those acted in a segment that may be replaced, and so is what replaces it. A
    prompt without a right rollout, or with nothing in it to replace, has an edited group that takes no part.

    Args:
      batch: rollouts with `segment`, the steps, and the signal `token_mask`.
      key: of the draws.
      replaceable: i32 ``[n]``, distinct tokens that may replace each other (the digits, say), at least two.
      success_at: least outcome of a right rollout.

    Returns:
      The batch with `segment`, `votes` and the signals `token_mask`, `step_mask` and `edit_mask`, both False in the
      rollouts that were given, and nothing else. Add `logprob`, of the policy, before a recipe reads it.

    Raises:
      ValueError: groups of one, no segments, or fewer than two tokens.
    """
    if batch.segment is None or len(batch.batch_shape) != 2 or batch.batch_shape[1] < 2:
        found = f"shape {list(batch.tokens.shape)}{'' if batch.segment is not None else ' without segment'}"
        raise ValueError(f"batch: {found}, wanted [P, G, T] with G at least 2 and with segment")
    if len(replaceable) < 2:
        raise ValueError(f"replaceable: {len(replaceable)} tokens, wanted at least 2")
    replaceable = jnp.asarray(replaceable)
    votes = vote_mask(batch)
    right = votes & (jnp.where(votes, batch.outcome, -jnp.inf) >= success_at)

    def group(key, tokens, acted, real, segment, right):
        g = jnp.argmax(right)
        tokens, acted, real, segment = (x[g] for x in (tokens, acted, real, segment))
        which, other = jax.random.split(key)
        places = acted & (segment >= 0) & jnp.any(tokens[:, None] == replaceable, axis=-1)
        at = jax.random.categorical(which, jnp.where(places, 0.0, -jnp.inf))
        shift = jax.random.randint(other, (), 1, len(replaceable))
        index = jnp.argmax(replaceable == tokens[at]) + shift
        edited = tokens.at[at].set(replaceable[index % len(replaceable)])
        found = jnp.any(right) & jnp.any(places)
        order = jnp.arange(len(tokens))
        step = acted & (segment == segment[at]) & found
        kept = real & (order <= jnp.max(jnp.where(step, order, -1)))
        return jnp.where(kept, jnp.stack([tokens, edited]), 0), kept, step, step & (order == at), segment

    keys = jax.random.split(key, len(batch.tokens))
    real = batch.signals["token_mask"]
    tokens, kept, step, edit, segment = jax.vmap(group)(
        keys, batch.tokens, batch.action_mask, real, batch.segment, right
    )

    def behind(given: Array, pair: Array, fill=0) -> Array:
        """Each group, then its pair ``[P, 2, …]`` or ``[P, …]`` with rows of `fill`. No row leaves its device."""
        pair = pair if pair.ndim == given.ndim else jnp.repeat(pair[:, None], 2, axis=1)
        rest = jnp.full((*pair.shape[:1], given.shape[1] - 2, *pair.shape[2:]), fill, pair.dtype)
        both = jnp.stack([given, jnp.concatenate([pair, rest], axis=1).astype(given.dtype)], axis=1)
        return both.reshape(-1, *given.shape[1:])

    nowhere = jnp.zeros_like(real)
    found = jnp.any(step, axis=-1)
    return Trajectory(
        tokens=behind(batch.tokens, tokens),
        action_mask=behind(batch.action_mask, step),
        outcome=behind(batch.outcome, jnp.tile(jnp.array([1.0, 0.0]), (len(found), 1))),
        segment=behind(batch.segment, jnp.where(kept, segment, -1), -1),
        votes=behind(votes, jnp.stack([found, found], axis=1)),
        signals={
            "token_mask": behind(real, kept),
            "step_mask": behind(nowhere, step),
            "edit_mask": behind(nowhere, edit),
        },
        num_segments=batch.num_segments,
    )


def inject_error(text: str, operation: str, rng: np.random.Generator) -> str | None:
    """The text with one error of a kind in it, None if it has no place for one.

    "replace" writes another number or operator, "swap" exchanges the two operands of an operation that is not
    commutative, "delete" leaves one term out.

    >>> inject_error("7 - 2 = 5", "swap", np.random.default_rng(0))
    '2 - 7 = 5'

    Raises:
      ValueError: no such operation.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation: {operation!r}; {nearest(operation, OPERATIONS)}")
    if operation == "replace":
        numbers = [(m.start(), m.end(), "number") for m in _NUMBER.finditer(text)]
        places = numbers + [(m.start(1), m.end(1), "operator") for m in _OPERATOR.finditer(text)]
        if not places:
            return None
        start, end, kind = places[int(rng.integers(len(places)))]
        old = text[start:end]
        if kind == "operator":
            new = str(rng.choice([x for x in "+-*/" if x != old]))
        else:
            new = str(rng.choice([x for x in range(max(int(old) - 9, 0), int(old) + 10) if x != int(old)]))
        return text[:start] + new + text[end:]
    terms = [m for m in _TERM.finditer(text) if operation == "delete" or (m[1] != m[3] and m[2].strip() in ("-", "/"))]
    if not terms:
        return None
    m = terms[int(rng.integers(len(terms)))]
    new = m[3] + m[2] + m[1] if operation == "swap" else m[1] if rng.random() < 0.5 else m[3]
    return text[: m.start()] + new + text[m.end() :]
