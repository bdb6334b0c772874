"""Pieces that start a chain: what the batch itself says. Rows that do not vote are assigned no credit."""

import dataclasses

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.algebra.core import check_signal, transform
from creditjax.algebra.credit import Credit, Level, credit
from creditjax.kernels import group, kl, matching, returns, segments
from creditjax.kernels.shapley import shapley_values
from creditjax.trajectory import Trajectory, last_action, segment_mask, signal_spec, takes_part, vote_mask

Array = jax.Array


def acted(batch: Trajectory) -> Array:
    """Positions that may be assigned credit: acted ones of voting rows, bool ``[..., T]``."""
    return batch.action_mask & vote_mask(batch)[..., None]


def owned(batch: Trajectory) -> Array:
    """Segments that may be assigned credit: those with an acted position, of voting rows, bool ``[..., K]``."""
    return segment_mask(batch) & vote_mask(batch)[..., None]


@transform(takes=None, gives=Level.TRAJECTORY)
def outcome(batch: Trajectory) -> Credit:
    """The verifier's score of each rollout."""
    return credit(batch.outcome, vote_mask(batch), Level.TRAJECTORY)


@transform(takes=None, gives=Level.TRAJECTORY, needs=("verdict", "solution_label"))
def verdict_reward(batch: Trajectory) -> Credit:
    """1 for a judge's rollout whose `verdict` on a solution is its true label; 0 for another or an unreadable one."""
    agrees = batch.signals["verdict"] == batch.signals["solution_label"]
    return credit(agrees, vote_mask(batch), Level.TRAJECTORY)


@transform(takes=None, gives=Level.TOKEN, uses=("reward", "terminated", "truncated"))
def rewards(batch: Trajectory) -> Credit:
    """The reward at each acted position; without a `reward` field, the outcome at the last acted one.

    A reward at a position that the policy did not act on (the environment's answer, say) belongs to the closest acted
    position before it; without one it is dropped.
    """
    valid = acted(batch)
    if batch.reward is None:
        return credit(jnp.where(last_action(batch), batch.outcome[..., None], 0.0), valid, Level.TOKEN)
    return credit(jax.vmap(returns.gather_rewards)(batch.reward, batch.action_mask), valid, Level.TOKEN)


@transform(takes=None, gives=Level.SEGMENT, needs=("segment",), uses=("reward",))
def segment_rewards(batch: Trajectory) -> Credit:
    """Sum of the rewards (see `rewards`) over the acted positions of each segment."""
    tokens = rewards().fn(batch)
    total = jax.vmap(lambda x, ids, mask: segments.segment_sum(x, ids, mask, batch.num_segments))(
        tokens.value, batch.segment, tokens.valid
    )
    return credit(total, owned(batch), Level.SEGMENT)


@transform(takes=None, gives=Level.TRAJECTORY, needs=("reward_components",))
def reward_component(batch: Trajectory, *, index: int, count: int) -> Credit:
    """Number `index` of the `count` separate rewards.

    Raises:
      ValueError: the batch has another number of components.
    """
    components = batch.signals["reward_components"]
    if components.shape[-1] != count or not 0 <= index < count:
        raise ValueError(f"reward_components: {components.shape[-1]} components, wanted number {index} of {count}")
    valid = vote_mask(batch) & jnp.isfinite(components[..., index])
    return credit(components[..., index], valid, Level.TRAJECTORY)


# The level of a signal, by the axes it has beside P and G.
_SIGNAL_LEVELS = {(): Level.TRAJECTORY, ("T",): Level.TOKEN, ("K",): Level.SEGMENT, ("N",): Level.AGENT}


def signal(name: str):
    """A signal as it is, at the level that its axes say: rollouts, tokens, segments or agents.

    Where it may be missing, NaN is no credit. A bool signal becomes 0 and 1, so that it can be a condition.

    Raises:
      KeyError: the signal is not declared.
      ValueError: its axes belong to no level.
    """
    axes = tuple(axis for axis in signal_spec(name).axes if axis not in ("P", "G"))
    if axes not in _SIGNAL_LEVELS:
        raise ValueError(f"signal {name!r}: axes {axes}, wanted one of {list(_SIGNAL_LEVELS)}")
    factory = {
        Level.TRAJECTORY: _signal_of_trajectory,
        Level.TOKEN: _signal_of_token,
        Level.SEGMENT: _signal_of_segment,
        Level.AGENT: _signal_of_agent,
    }
    # It prints as it was written.
    return dataclasses.replace(factory[_SIGNAL_LEVELS[axes]](name), name="signal")


def _read(batch: Trajectory, name: str, valid: Array, level: Level) -> Credit:
    x = jnp.broadcast_to(batch.signals[name], valid.shape)
    if signal_spec(name).may_be_missing:
        valid = valid & ~jnp.isnan(x)
    return credit(x, valid, level)


def _named(name: str, **_) -> tuple[str, ...]:
    return (name,)


@transform(takes=None, gives=Level.TRAJECTORY, needs=_named)
def _signal_of_trajectory(batch: Trajectory, *, name: str) -> Credit:
    return _read(batch, name, vote_mask(batch), Level.TRAJECTORY)


@transform(takes=None, gives=Level.TOKEN, needs=_named)
def _signal_of_token(batch: Trajectory, *, name: str) -> Credit:
    return _read(batch, name, acted(batch), Level.TOKEN)


@transform(takes=None, gives=Level.SEGMENT, needs=lambda name: (name, "segment"))
def _signal_of_segment(batch: Trajectory, *, name: str) -> Credit:
    return _read(batch, name, owned(batch), Level.SEGMENT)


@transform(takes=None, gives=Level.AGENT, needs=lambda name: (name, "agent"))
def _signal_of_agent(batch: Trajectory, *, name: str) -> Credit:
    x = batch.signals[name]
    return _read(batch, name, jnp.broadcast_to(vote_mask(batch)[..., None], x.shape), Level.AGENT)


@transform(
    takes=None,
    gives=Level.TOKEN,
    needs=_named,
    check=lambda name, **_: check_signal("signal_is", name, ("P", "G", "T"), dtype="int32"),
)
def signal_is(batch: Trajectory, *, name: str, value: int) -> Credit:
    """Condition: 1 where a per-position integer signal has this value, 0 elsewhere."""
    return credit(batch.signals[name] == value, acted(batch), Level.TOKEN)


def _check_log_ratio(**names: str) -> None:
    for name in names.values():
        check_signal("log_ratio", name, ("P", "G", "T"), dtype="float32", fields=("logprob",))


@transform(
    takes=None,
    gives=Level.TOKEN,
    needs=lambda numerator, denominator: (numerator, denominator),
    check=_check_log_ratio,
)
def log_ratio(batch: Trajectory, *, numerator: str, denominator: str) -> Credit:
    """Difference of two per-token log-probabilities, such as `logprob_prm` and `logprob_ref` (the implicit process
    reward).
    """
    return credit(batch.get(numerator) - batch.get(denominator), acted(batch), Level.TOKEN)


@transform(takes=None, gives=Level.TOKEN, needs=("logprob",))
def surprisal(batch: Trajectory) -> Credit:
    """``-log π(a_t)`` of each token under the policy that drew it, in nats."""
    valid = acted(batch)
    return credit(-numerics.select(batch.logprob, valid), valid, Level.TOKEN)


@transform(takes=None, gives=Level.TOKEN, needs=("logprob", "logprob_ref"))
def divergence_to_go(batch: Trajectory, *, kind: kl.Divergence = "reverse_kl", per_token: bool = False) -> Credit:
    """``f'(x_t) - f'(1) + Σ_{u > t} f(x_u) / x_u`` with ``x = π / π_ref``: what each token adds to the divergence
    of the sequence from a reference (FRPO, arXiv:2601.10201).

    With minus this as credit the policy gradient is exactly minus the gradient of the sequence's divergence; for the
    reverse KL it is the log-ratio's sum from t on. The terms u > t are what a penalty in the loss leaves out.

    Args:
      kind: see `creditjax.kernels.kl.divergence_terms`.
      per_token: divide by the rollout's number of acted positions.
    """
    valid = acted(batch)
    own, later = kl.divergence_terms(
        numerics.select(batch.logprob, valid) - numerics.select(batch.signals["logprob_ref"], valid), kind
    )
    value = jax.vmap(returns.future_sum)(later, valid) + (own - later)
    if per_token:
        value = numerics.safe_divide(value, numerics.masked_count(valid, axis=-1, keepdims=True))
    return credit(value, valid, Level.TOKEN)


@transform(takes=None, gives=Level.TRAJECTORY)
def unanimous(batch: Trajectory, *, right: bool, threshold: float = 0.5) -> Credit:
    """Condition: 1 for the rollouts of a group whose voters all have the same outcome and are right, or all wrong.

    Args:
      right: which of the two.
      threshold: an outcome above it is right.
    """
    votes = vote_mask(batch)
    best = numerics.masked_max(batch.outcome, votes)
    holds = group.is_constant(batch.outcome, votes) & ((best > threshold) == right)
    return credit(jnp.broadcast_to(holds, votes.shape), votes, Level.TRAJECTORY)


@transform(
    takes=None,
    gives=Level.SEGMENT,
    needs=lambda name, **_: (name, "segment"),
    check=lambda name, **_: check_signal("potential_difference", name, ("P", "G", "K+1"), dtype="float32"),
)
def potential_difference(batch: Trajectory, *, name: str = "potential", answer_turn: bool = True) -> Credit:
    """Gain of a potential over each segment, ``Phi_{k+1} - Phi_k``; none where either end was never evaluated.

    Args:
      name: a signal over the K+1 boundaries.
      answer_turn: whether the last segment of a rollout, which gives the answer, gets one too.
    """
    potential = batch.signals[name]
    gain = potential[..., 1:] - potential[..., :-1]
    valid = owned(batch) & jnp.isfinite(gain)
    if not answer_turn:
        last = jnp.max(jnp.where(segment_mask(batch), jnp.arange(batch.num_segments), -1), axis=-1, keepdims=True)
        valid = valid & (jnp.arange(batch.num_segments) < last)
    return credit(gain, valid, Level.SEGMENT)


@transform(
    takes=None, gives=Level.SEGMENT, needs=("segment", "call_similarity", "call_turn", "reference_mask", "answer_score")
)
def match_rewards(batch: Trajectory, *, matcher: matching.Matcher = "exact", penalty: float = 0.0) -> Credit:
    """Mean matching reward of each segment's calls, plus the answer's score on the last segment (card
    `tool_match_reward`).

    Args:
      matcher: "exact" assignment, "greedy" or "sinkhorn".
      penalty: reward of a call that matches no reference call.
    """
    turn, valid = batch.signals["call_turn"], owned(batch)

    def one(similarity, turn, references):
        return matching.match_reward(similarity, turn >= 0, references, penalty=penalty, method=matcher)

    per_call = jax.vmap(one)(batch.signals["call_similarity"], turn, batch.signals["reference_mask"])
    k = jnp.arange(batch.num_segments)
    ours = turn[..., None, :] == k[:, None]
    last = jnp.max(jnp.where(segment_mask(batch), k, -1), axis=-1, keepdims=True)
    is_answer = (k == last) & valid
    answer = jnp.where(is_answer, batch.signals["answer_score"][..., None], 0.0)
    calls = jnp.sum(ours, axis=-1)
    total = jnp.sum(jnp.where(ours, per_call[..., None, :], 0.0), axis=-1) + answer
    return credit(numerics.safe_divide(total, calls + is_answer), valid, Level.SEGMENT)


@transform(takes=None, gives=Level.TOKEN, needs=("read_call", "read_identity", "read_is_oracle", "read_mask"))
def read_choice(batch: Trajectory) -> Credit:
    """Centred choice of skills, on the tokens that name one (SkillGate, arXiv:2608.18852).

    A read action is worth 1 if its rollout read exactly one skill and that was the oracle, else 0; the baseline is
    the mean over all read actions of the group. No credit where nothing was read.
    """
    votes = vote_mask(batch)
    reads = batch.signals["read_mask"] & votes[..., None]
    clean = (jnp.sum(reads, axis=-1, keepdims=True) == 1) & batch.signals["read_is_oracle"]
    utility = credit(clean, reads, Level.SEGMENT).value
    centred = utility - numerics.masked_mean(utility, reads)
    named = acted(batch) & batch.signals["read_identity"] & (batch.signals["read_call"] >= 0)
    per_token = jax.vmap(segments.broadcast)(jnp.where(reads, centred, 0.0), batch.signals["read_call"])
    return credit(per_token, named, Level.TOKEN)


@transform(takes=None, gives=Level.AGENT, needs=("coalition_value", "agent"))
def shapley(batch: Trajectory) -> Credit:
    """Exact Shapley value of each agent from the value of every coalition (Shapley 1953); none where one is missing."""
    values = batch.signals["coalition_value"]
    known = jnp.all(jnp.isfinite(values), axis=-1, keepdims=True)
    phi = jax.vmap(shapley_values)(jnp.where(known, values, 0.0))
    # No outcome is read, so an unscored rollout has its values all the same.
    there = known & takes_part(batch)[..., None]
    return credit(phi, jnp.broadcast_to(there, phi.shape), Level.AGENT)
