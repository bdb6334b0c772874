"""Transforms along a rollout: returns, advantages and placements over positions or segments, on the kernels of
`creditjax.kernels`.
"""

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import numerics
from creditjax.algebra.core import Schedule, check_signal, transform
from creditjax.algebra.credit import Credit, Level
from creditjax.algebra.credit import lift as lift_credit
from creditjax.kernels import kl, prefix, returns, segments
from creditjax.kernels import vtrace as vtrace_kernel
from creditjax.trajectory import Trajectory, last_action, require_bootstrap, vote_mask, vote_weight

Array = jax.Array


@transform(takes=list(Level), gives=Level.TOKEN)
def to_tokens(credit: Credit, batch: Trajectory) -> Credit:
    """The lift to tokens, where a chain wants it before its end (to whiten over tokens, say)."""
    return lift_credit(credit, batch)


@transform(takes=Level.TRAJECTORY, gives=Level.TOKEN)
def at_last_action(credit: Credit, batch: Trajectory) -> Credit:
    """Puts a rollout's credit on its last acted position and 0 on the others."""
    return _tokens(jnp.where(last_action(batch), credit.value[..., None], 0.0), credit.valid[..., None], batch, credit)


@transform(takes=Level.SEGMENT, gives=Level.TOKEN, needs=("segment",))
def at_segment_end(credit: Credit, batch: Trajectory) -> Credit:
    """Puts a segment's credit on its last acted position and 0 on the others."""
    per_token = jax.vmap(segments.broadcast)(credit.value, batch.segment)
    ends = jax.vmap(lambda ids, mask: segments.segment_last(ids, mask, batch.num_segments))(
        batch.segment, batch.action_mask
    )
    return _tokens(jnp.where(ends, per_token, 0.0), vote_mask(batch)[:, None], batch, credit)


def _tokens(value: Array, valid: Array, batch: Trajectory, credit: Credit) -> Credit:
    valid = jnp.broadcast_to(batch.action_mask & valid, value.shape)
    return Credit(numerics.select(value, valid), valid, credit.extras, Level.TOKEN)


@transform(
    takes=(Level.TOKEN, Level.SEGMENT),
    gives=None,
    needs=lambda bootstrap, **_: ("next_value",) if bootstrap else (),
    uses=("terminated", "truncated"),
)
def discounted_return(
    credit: Credit,
    batch: Trajectory,
    *,
    gamma: float = 1.0,
    causal: bool = True,
    count_observations: bool = False,
    bootstrap: bool = False,
) -> Credit:
    """``G_t = r_t + gamma G_{t+1}`` over acted positions, or over segments (Williams 1992).

    At tokens an episode that ended or was cut off stops the sum.

    Args:
      gamma: discount per acted position (per segment at that level).
      causal: with False, every acted position gets the return of its rollout's first one.
      count_observations: discount over every position instead of acted ones.
      bootstrap: what was cut off goes on with the signal `next_value`; without, a truncated return is just shorter.
    """
    if credit.level is Level.SEGMENT:
        value = jax.vmap(returns.future_sum, in_axes=(0, 0, None))(credit.value, credit.valid, gamma)
        return credit.with_value(value)

    def one(reward, mask, terminated, truncated, next_value):
        return returns.discounted_return(
            reward,
            mask,
            gamma,
            terminated=terminated,
            truncated=truncated,
            next_value=next_value,
            count_observations=count_observations,
        )

    next_value = batch.signals["next_value"] if bootstrap else None
    value = jax.vmap(one)(credit.value, credit.valid, batch.terminated, batch.truncated, next_value)
    if not causal:
        first = jnp.argmax(credit.valid, axis=-1, keepdims=True)
        value = jnp.broadcast_to(jnp.take_along_axis(value, first, axis=-1), value.shape)
    return credit.with_value(value)


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def future_sum(credit: Credit, batch: Trajectory, *, decay: float = 1.0) -> Credit:
    """``F_t = x_t + decay F_{t+1}`` over acted positions of the whole row, whatever ends in between."""
    return credit.with_value(jax.vmap(returns.future_sum, in_axes=(0, 0, None))(credit.value, credit.valid, decay))


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=("value",), uses=("next_value", "terminated", "truncated"))
def gae(
    credit: Credit,
    batch: Trajectory,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    value_lam: float | None = None,
    truncation: returns.Truncation = "bootstrap",
) -> Credit:
    """Generalised advantage of a reward stream (Schulman et al. 2016, arXiv:1506.02438).

    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)``, ``A_t = delta_t + gamma lam A_{t+1}``. A terminated episode zeroes
    the bootstrap and the trace; a truncated one keeps the bootstrap (`next_value`) and cuts the trace.
    `extras["value_target"]` is the lambda-return ``A_t + V(s_t)``, what a critic should learn.

    Args:
      gamma: discount per acted position.
      lam: trace of the advantage.
      value_lam: trace of the value target where it differs.
      truncation: "bootstrap", or "drop" for data whose final observation is gone: the truncated step gets no advantage.

    Raises:
      ValueError: "bootstrap" for a batch that has `truncated` and no `next_value`.
    """

    def one(reward, mask, value, next_value, terminated, truncated):
        kept = dict(next_value=next_value, terminated=terminated, truncated=truncated, truncation=truncation)
        advantage, target = returns.gae(reward, value, mask, gamma, lam, **kept)
        if value_lam is not None:
            target = returns.lambda_return(reward, value, mask, gamma, value_lam, **kept)
        return advantage, target

    signals = batch.signals
    if truncation == "bootstrap":
        require_bootstrap(batch, "gae with truncation='bootstrap' (the other choice is 'drop')")
    advantage, target = jax.vmap(one)(
        credit.value,
        credit.valid,
        signals["value"],
        signals.get("next_value"),
        batch.terminated,
        batch.truncated,
    )
    return credit.with_value(advantage).with_extras(value_target=target)


@transform(
    takes=Level.TOKEN,
    gives=Level.TOKEN,
    needs=("value", "logprob", "logprob_current"),
    uses=("next_value", "terminated", "truncated"),
)
def vtrace(
    credit: Credit,
    batch: Trajectory,
    *,
    gamma: float = 0.99,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    rho_pg_bar: float = 1.0,
) -> Credit:
    """V-trace advantage of a reward stream (Espeholt et al. 2018, arXiv:1802.01561).

    It already holds the truncated importance weight, so it goes with a plain ``-credit * logprob`` loss.
    `extras["value_target"]` is vs.

    Raises:
      ValueError: the batch has `truncated` and no `next_value`.
    """
    require_bootstrap(batch, "vtrace")

    def one(reward, mask, value, current, behaviour, next_value, terminated, truncated):
        kept = dict(next_value=next_value, terminated=terminated, truncated=truncated)
        hyper = (gamma, lam, rho_bar, rho_pg_bar)
        return vtrace_kernel.vtrace(reward, value, current, behaviour, mask, *hyper, **kept)

    signals = batch.signals
    result = jax.vmap(one)(
        credit.value,
        credit.valid,
        signals["value"],
        signals["logprob_current"],
        batch.logprob,
        signals.get("next_value"),
        batch.terminated,
        batch.truncated,
    )
    return credit.with_value(result.advantage).with_extras(value_target=result.value_target)


def _warm(temperature) -> None:
    ends = (temperature.start, temperature.stop) if isinstance(temperature, Schedule) else (temperature,)
    for end in ends:
        if isinstance(end, np.float32) and end <= 0:
            raise ValueError(
                f"soft_min: temperature = {float(end):g}, wanted > 0; the limit of 0 is min_return(), which the recipe "
                "'pure' calls mode='strict_min'"
            )


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT, check=_warm)
def soft_min(credit: Credit, batch: Trajectory, *, temperature: float = 0.1) -> Credit:
    """Weights each segment's score by a softmax of its negative, so that the sum approaches the minimum (PURE,
    arXiv:2504.15275).

    Args:
      temperature: above 0; the strict minimum is `min_return`.
    """
    weights = jax.vmap(returns.softmin_weights, in_axes=(0, 0, None))(credit.value, credit.valid, temperature)
    return credit.with_value(weights * credit.value)


@transform(takes=Level.SEGMENT, gives=Level.TOKEN, needs=("segment",))
def min_return(credit: Credit, batch: Trajectory) -> Credit:
    """The worst score among segments that end here or later; 0 where none does (the strict minimum form of PURE)."""

    def one(x, valid, ids, mask):
        ends = segments.segment_last(ids, mask, batch.num_segments)
        at_end = jnp.where(ends & segments.broadcast(valid, ids), segments.broadcast(x, ids), jnp.inf)
        return returns.min_return(at_end, mask)

    value = jax.vmap(one)(credit.value, credit.valid, batch.segment, batch.action_mask)
    return _tokens(jnp.where(jnp.isfinite(value), value, 0.0), vote_mask(batch)[:, None], batch, credit)


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT)
def sqrt_rescale(credit: Credit, batch: Trajectory) -> Credit:
    """Divides each segment by the root of the number of credited segments from it to the end (A2TGPO,
    arXiv:2605.06200).

    A sum of n independent unit-variance terms keeps unit variance at every depth.
    """
    left = jnp.cumsum(credit.valid[:, ::-1], axis=-1)[:, ::-1]
    return credit.with_value(credit.value / jnp.sqrt(jnp.maximum(left, 1)))


@transform(takes=Level.SEGMENT, gives=Level.TRAJECTORY)
def sum_segments(credit: Credit, batch: Trajectory) -> Credit:
    """The sum over a rollout's segments; 0 for a voting rollout that has none."""
    value = numerics.masked_sum(credit.value, credit.valid, axis=-1)
    return Credit(value, vote_mask(batch), credit.extras, Level.TRAJECTORY)


@transform(takes=Level.TOKEN, gives=Level.TRAJECTORY)
def sum_tokens(credit: Credit, batch: Trajectory) -> Credit:
    """The sum over a rollout's acted positions; 0 for a voting rollout that has none."""
    value = numerics.masked_sum(credit.value, credit.valid, axis=-1)
    return Credit(value, vote_mask(batch), credit.extras, Level.TRAJECTORY)


@transform(takes=Level.TOKEN, gives=Level.TRAJECTORY)
def mean_tokens(credit: Credit, batch: Trajectory) -> Credit:
    """The mean over a rollout's acted positions; 0 for a voting rollout that has none."""
    value = numerics.masked_mean(credit.value, credit.valid, axis=-1)
    return Credit(value, vote_mask(batch), credit.extras, Level.TRAJECTORY)


@transform(takes=Level.TRAJECTORY, gives=Level.TOKEN, uses=("token_mask",))
def branch_td(credit: Credit, batch: Trajectory) -> Credit:
    """Temporal difference of prefix values over the tree that the rollouts of a group form (TEMPO, arXiv:2509.18314).

    The value of a prefix is the mean credit of the voters that share it; the difference at t is 0 unless some rollout
    leaves rollout i's prefix exactly there. No tree is built: prefixes are compared pairwise, at G^2 T cost.
    """
    tokens = batch.signals.get("token_mask", batch.action_mask)
    length = jnp.max(jnp.where(tokens, jnp.arange(batch.length) + 1, 0), axis=-1)
    td = prefix.branch_td(batch.tokens, length, credit.value, vote_weight(batch))
    return _tokens(td, credit.valid[..., None], batch, credit)


def _check_potential(name: str, **_) -> None:
    boundaries = ("P", "G", "K+1")
    check_signal("add_potential_shaping", name, boundaries, (*boundaries, "C"), dtype="float32")


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=lambda name, **_: (name, "segment"), check=_check_potential)
def add_potential_shaping(
    credit: Credit, batch: Trajectory, *, name: str = "answer_logprob", scale: float = 1.0
) -> Credit:
    """Adds potential-based shaping at segment ends, with the terminal potential taken to be 0 (TIPS, arXiv:2603.22293).

    With K the number of a rollout's segments: ``+ scale (Phi_{k+1} - Phi_k)`` on the last acted position of segment
    k, and ``- scale Phi_K`` on the last acted position of the rollout, so that the shaping of every rollout of a
    prompt adds up to ``- scale Phi_0``: policy invariance (Ng et al. 1999). A segment in which the policy did not act
    hands its share to the last acted position before it, else to the first one. A signal with several accepted
    answers (last axis C) is reduced by logsumexp.
    """
    potential = batch.signals[name]
    if potential.ndim == 3:
        potential = jax.nn.logsumexp(jnp.where(jnp.isfinite(potential), potential, -jnp.inf), axis=-1)
    potential = jnp.where(jnp.isfinite(potential), potential, 0.0)

    def one(phi: Array, ids: Array, mask: Array) -> Array:
        count = jnp.max(jnp.where(mask, ids, -1)) + 1
        k = jnp.arange(batch.num_segments)
        gain = jnp.where(k < count, phi[1:] - phi[:-1], 0.0)
        positions = jnp.arange(ids.shape[0])
        last_of = segments.last_position(ids, mask, batch.num_segments)
        # An empty segment hands its share backwards, at the very front to the first acted position.
        target = jax.lax.cummax(last_of)
        target = jnp.where(target >= 0, target, jnp.argmax(mask))
        shaped = jnp.zeros(ids.shape, jnp.float32).at[target].add(gain)
        last = jnp.max(jnp.where(mask, positions, -1))
        return shaped - jnp.where(positions == last, phi[count], 0.0)

    return credit.with_value(credit.value + scale * jax.vmap(one)(potential, batch.segment, batch.action_mask))


@transform(
    takes=Level.TOKEN,
    gives=Level.TOKEN,
    needs=lambda name: (name,),
    check=lambda name: check_signal("subtract_signal", name, ("P", "G", "T"), ("P",), (), dtype="float32"),
)
def subtract_signal(credit: Credit, batch: Trajectory, *, name: str) -> Credit:
    """Subtracts a signal that is a baseline: `value` per token, `greedy_outcome` per prompt, `running_baseline` for
    all.
    """
    baseline = batch.signals[name]
    return credit.with_value(credit.value - (baseline if baseline.ndim != 1 else baseline[:, None]))


@transform(takes=(Level.TOKEN, Level.TRAJECTORY), gives=None, needs=("logprob", "logprob_ref"))
def kl_in_reward(credit: Credit, batch: Trajectory, *, beta: float = 0.01, kind: kl.Kind = "k1") -> Credit:
    """Subtracts ``beta * k(logprob, logprob_ref)`` from the reward of each token, or their sum from that of a rollout.

    Args:
      beta: weight of the penalty.
      kind: see `creditjax.kernels.kl`.
    """
    mask = batch.action_mask & (credit.valid if credit.level is Level.TOKEN else credit.valid[..., None])
    penalty = kl.kl_estimate(
        numerics.select(batch.logprob, mask), numerics.select(batch.signals["logprob_ref"], mask), kind
    )
    if credit.level is Level.TRAJECTORY:
        penalty = numerics.masked_sum(penalty, mask, axis=-1)
    return credit.with_value(credit.value - beta * penalty)


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY)
def overlong_penalty(
    credit: Credit, batch: Trajectory, *, max_length: int, buffer: int, factor: float = 1.0, floor: bool = True
) -> Credit:
    """Soft punishment of long rollouts (DAPO, arXiv:2503.14476): 0 up to ``max_length - buffer``, linear down to
    ``-factor``.

    Args:
      max_length: acted positions at which the penalty is `-factor`.
      buffer: positions over which it builds up; 0 makes it a step after `max_length`.
      factor: size of the penalty.
      floor: whether it stays at `-factor` beyond `max_length` (the paper) or goes on falling (common code).
    """
    n = jnp.sum(batch.action_mask, axis=-1).astype(jnp.float32)
    exceed = n - (max_length - buffer)
    if buffer == 0:
        penalty = jnp.where(n > max_length, -1.0, 0.0)
    else:
        penalty = jnp.minimum(-exceed / buffer, 0.0)
    penalty = jnp.maximum(penalty, -1.0) if floor else penalty
    return credit.with_value(credit.value + factor * penalty)


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT, needs=("segment",))
def record_clip_scale(credit: Credit, batch: Trajectory, *, strength: float = 0.3) -> Credit:
    """Keeps ``1 + b tanh(x / 2)`` of this credit for the objective as `clip_scale`, 1 where there is none (A2TGPO)."""
    scale = 1 + strength * jnp.tanh(credit.value / 2)
    lifted = lift_credit(credit.replace(value=scale, extras={}), batch)
    return credit.with_extras(clip_scale=jnp.where(lifted.valid, lifted.value, 1.0))
