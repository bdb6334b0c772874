"""A replay buffer of rollouts, stratified by how hard their prompts are: one pure pytree of static shapes.

The rollouts of a prompt are compared with what the policy usually gets on it, so the buffer keeps, beside the rows, the
latest on-policy outcomes of every prompt. Their mean is the signal `prompt_mean`, and its place among all prompts the
tier: hard, medium or easy (AVATAR, arXiv:2508.03100). In a step:

    prompts = sample_prompts(buffer, key, count)                      # some of each tier
    rows, found = draw(buffer, key, prompts, per_prompt)              # high and low outcomes mixed
    batch = join(fresh, rows, found, prompt_mean(buffer, prompts))    # signals `is_offpolicy`, `prompt_mean`
    buffer = add(buffer, fresh, prompts)

Everything may be jitted; a row keeps the log-probabilities of the policy that drew it, which the ratio needs.
"""

import dataclasses

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.trajectory import Trajectory, signal_spec, takes_part, vote_mask

Array = jax.Array

HARD, MEDIUM, EASY, UNSEEN = 0, 1, 2, -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayBuffer:
    """N rollouts and the latest W outcomes of each of Q prompts.

    Attributes:
      rows: a `Trajectory` with leading axis ``[N]``; an empty place acts nowhere.
      prompt: i32 ``[N]``, whose rollout it is, -1 for an empty place.
      added: i32 scalar, how many rollouts were ever stored; the oldest is overwritten.
      outcomes: f32 ``[Q, W]``, on-policy outcomes, a ring.
      seen: i32 ``[Q]``, how many outcomes of each prompt were ever recorded.
    """

    rows: Trajectory
    prompt: Array
    added: Array
    outcomes: Array
    seen: Array

    @property
    def capacity(self) -> int:
        """N."""
        return self.prompt.shape[0]


def empty(example: Trajectory, num_prompts: int, *, capacity: int = 10_000, window: int = 20) -> ReplayBuffer:
    """A buffer for rollouts like those of `example`.

    Args:
      example: a batch ``[P, G]``, of arrays or of shapes; what it carries is what is stored. Signals without an axis G
        belong to the prompt or to the step and are left out.
      num_prompts: Q; prompts are numbers below it.
      capacity: N.
      window: W.

    Raises:
      ValueError: a batch of other leading axes or of rows cut from rollouts, or a size below 1.
    """
    _check_batch(example)
    if min(num_prompts, capacity, window) < 1:
        raise ValueError(f"num_prompts, capacity, window: {num_prompts}, {capacity}, {window}, wanted at least 1 each")
    rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape[2:]), x.dtype), _own(example))
    return ReplayBuffer(
        rows=rows,
        prompt=jnp.full(capacity, -1, jnp.int32),
        added=jnp.int32(0),
        outcomes=jnp.zeros((num_prompts, window), jnp.float32),
        seen=jnp.zeros(num_prompts, jnp.int32),
    )


def add(buffer: ReplayBuffer, batch: Trajectory, prompts: Array) -> ReplayBuffer:
    """Stores the voting rollouts of an on-policy batch and records their outcomes.

    Args:
      buffer: the buffer.
      batch: ``[P, G]``, drawn by the current policy, with the fields and signals of the buffer's example.
      prompts: i32 ``[P]``, which prompt each group is of, all different.

    Raises:
      ValueError: a batch of other leading axes, with more rollouts than the buffer holds, or with more rollouts a
        prompt than its window.
    """
    _check_batch(batch)
    p, g = batch.batch_shape
    window = buffer.outcomes.shape[1]
    if p * g > buffer.capacity or g > window:
        raise ValueError(f"batch: {p} x {g} rollouts, wanted at most {buffer.capacity}, and {window} a prompt")
    votes = vote_mask(batch)
    flat = votes.reshape(-1)
    # Those that do not vote are written nowhere.
    place = jnp.where(flat, (buffer.added + jnp.cumsum(flat) - 1) % buffer.capacity, buffer.capacity)
    own = jax.tree.map(lambda x: x.reshape(p * g, *x.shape[2:]), _own(batch))
    turn = jnp.where(votes, (buffer.seen[prompts][:, None] + jnp.cumsum(votes, axis=1) - 1) % window, window)
    return ReplayBuffer(
        rows=jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), buffer.rows, own),
        prompt=buffer.prompt.at[place].set(jnp.repeat(prompts.astype(jnp.int32), g), mode="drop"),
        added=buffer.added + jnp.sum(flat, dtype=jnp.int32),
        outcomes=buffer.outcomes.at[prompts[:, None], turn].set(batch.outcome, mode="drop"),
        seen=buffer.seen.at[prompts].add(jnp.sum(votes, axis=1, dtype=jnp.int32)),
    )


def prompt_mean(buffer: ReplayBuffer, prompts: Array | None = None) -> Array:
    """Mean of the latest on-policy outcomes of each prompt, f32 ``[P]`` (``[Q]`` for all of them); 0 where unseen."""
    recorded = jnp.arange(buffer.outcomes.shape[1]) < buffer.seen[:, None]
    mean = numerics.masked_mean(buffer.outcomes, recorded, axis=1)
    return mean if prompts is None else mean[prompts]


def tiers(buffer: ReplayBuffer, *, hard: float = 0.4, medium: float = 0.35) -> Array:
    """`HARD`, `MEDIUM`, `EASY` or `UNSEEN` for every prompt, i32 ``[Q]``: by the rank of its mean among those seen.

    Args:
      buffer: the buffer.
      hard: share of the seen prompts, those of lowest mean, that is hard. Equal means rank by number.
      medium: share that is medium; the rest is easy.
    """
    seen = buffer.seen > 0
    order = jnp.argsort(jnp.where(seen, prompt_mean(buffer), jnp.inf), stable=True)
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(order.size))
    # From the middle of its place, so that a share of 0.4 of five prompts is two, whatever the rounding.
    level = (rank + 0.5) / jnp.maximum(jnp.sum(seen), 1)
    tier = jnp.where(level < hard, HARD, jnp.where(level < hard + medium, MEDIUM, EASY))
    return jnp.where(seen, tier, UNSEEN).astype(jnp.int32)


def sample_prompts(
    buffer: ReplayBuffer,
    key: Array,
    count: int,
    *,
    shares: tuple[float, float, float] = (0.4, 0.35, 0.25),
    hard: float = 0.4,
    medium: float = 0.35,
) -> Array:
    """Different prompts at random, of each tier its share, i32 ``[count]``.

    A tier that is too small is filled up from the others. Prompts that were never seen come last; one whose rollouts
    are all overwritten is drawn like any other, or it would never get new ones.

    Args:
      buffer: the buffer.
      key: PRNG key.
      count: static, at most Q.
      shares: of hard, medium and easy prompts in what is drawn.
      hard: see `tiers`.
      medium: see `tiers`.

    Raises:
      ValueError: more prompts than there are.
    """
    num_prompts = buffer.seen.shape[0]
    if not 0 < count <= num_prompts:
        raise ValueError(f"count: {count}, wanted 1 to {num_prompts}")
    tier = tiers(buffer, hard=hard, medium=medium)
    chance = jax.random.uniform(key, (num_prompts,))
    score = jnp.full(num_prompts, jnp.inf)
    for level, share in enumerate(shares):
        # The n-th of a tier is due at n / share: merging the tiers in that order keeps the shares at every length.
        mine = tier == level
        nth = _ranks(jnp.where(mine, chance, jnp.inf)) + 0.5
        score = jnp.where(mine, nth / max(share, 1e-9), score)
    return jnp.argsort(score, stable=True)[:count].astype(jnp.int32)


def draw(buffer: ReplayBuffer, key: Array, prompts: Array, count: int) -> tuple[Trajectory, Array]:
    """Rollouts of each prompt without replacement, high and low outcomes in turn.

    High is above the mean of the prompt's stored rollouts. Where one kind runs out the other goes on.

    Args:
      buffer: the buffer.
      key: PRNG key.
      prompts: i32 ``[P]``.
      count: rollouts of each, static, at most N.

    Returns:
      A `Trajectory` ``[P, count]``, and bool ``[P, count]``: whether there was one. A place without acts nowhere.

    Raises:
      ValueError: more rollouts than the buffer has places.
    """
    if not 0 < count <= buffer.capacity:
        raise ValueError(f"count: {count}, wanted 1 to {buffer.capacity}")

    def one(key: Array, prompt: Array) -> tuple[Array, Array]:
        mine = buffer.prompt == prompt
        high = buffer.rows.outcome > numerics.masked_mean(buffer.rows.outcome, mine)
        chance = jax.random.uniform(key, mine.shape)
        turn = [2 * _ranks(jnp.where(mine & kind, chance, jnp.inf)) + i for i, kind in enumerate((high, ~high))]
        score = jnp.where(mine, jnp.where(high, *turn), 2 * buffer.capacity)
        index = jnp.argsort(score, stable=True)[:count]
        return index, mine[index]

    index, found = jax.vmap(one)(jax.random.split(key, prompts.shape[0]), prompts)
    rows = jax.tree.map(lambda x: x[index], buffer.rows)
    return rows.replace(action_mask=rows.action_mask & found[..., None]), found


def join(fresh: Trajectory, replayed: Trajectory, found: Array, mean: Array) -> Trajectory:
    """One batch ``[P, G + count]`` of fresh rollouts and replayed ones, with `is_offpolicy` and `prompt_mean`.

    Args:
      fresh: ``[P, G]``, on-policy.
      replayed: ``[P, count]``, from :func:`draw`.
      found: bool ``[P, count]``; a place that was not filled does not vote.
      mean: f32 ``[P]``, from :func:`prompt_mean`, before the fresh rollouts are added.
    """
    shared = {name: x for name, x in fresh.signals.items() if name not in _own(fresh).signals}
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), _own(fresh), replayed)
    votes = jnp.concatenate([takes_part(fresh), found], axis=1)
    off = jnp.broadcast_to(jnp.arange(votes.shape[1]) >= fresh.batch_shape[1], votes.shape)
    return joined.replace(votes=votes).with_signals(**shared, is_offpolicy=off, prompt_mean=mean)


def _own(batch: Trajectory) -> Trajectory:
    """What belongs to the rollouts themselves.

    Signals of the prompt and of the step are not stored with them, nor votes, which every stored one has.
    """
    kept = {name: x for name, x in batch.signals.items() if "G" in signal_spec(name).axes and name != "is_offpolicy"}
    return batch.replace(signals=kept, votes=None)


def _ranks(x: Array) -> Array:
    """Place of each element in ascending order, i32."""
    return jnp.zeros(x.shape, jnp.int32).at[jnp.argsort(x, stable=True)].set(jnp.arange(x.size, dtype=jnp.int32))


def _check_batch(batch: Trajectory) -> None:
    if len(batch.batch_shape) != 2:
        raise ValueError(f"tokens: shape {list(batch.tokens.shape)}, wanted [P, G, T]")
    if batch.trajectory is not None:
        raise ValueError("trajectory: given, wanted whole rollouts: rows cut from one cannot be replayed apart")
