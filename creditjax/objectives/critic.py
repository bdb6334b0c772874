"""A critic trained after the actor and for the actor that is there by then (PACT)."""

from typing import Literal

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.kernels import returns, vtrace
from creditjax.kernels.losses import value_loss
from creditjax.models.base import PolicyOutput
from creditjax.objectives.aggregate import Aggregation, Mode, aggregate
from creditjax.objectives.base import CreditLike, Objective, learned_mask, objective, require, require_extra
from creditjax.objectives.regularizers import _of_parts, _prepare_parts
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory, require_bootstrap

Array = jax.Array

_MISSING = "call objective.prepare(new, credit, batch) once a minibatch, before it is split"


def _needs_value(correction: str, **_) -> tuple[str, ...]:
    return ("value", "logprob") if correction == "vtrace" else ("logprob",)


def _prepare(new: PolicyOutput, credit, batch: Trajectory, *, correction, gamma, lam, rho_bar, weight_bar, **_):
    mask, behaviour = learned_mask(credit, batch), require(batch, "logprob", "aligned_value")
    reward = batch.reward
    if reward is None:
        pay = returns.place_outcome
        for _axis in batch.batch_shape:
            pay = jax.vmap(pay)
        reward = pay(batch.outcome, mask)

    def traced(reward, mask, current, behaviour, value, next_value, terminated, truncated):
        ends = dict(terminated=terminated, truncated=truncated)
        made = vtrace.vtrace(
            reward, value, current, behaviour, mask, gamma, lam, rho_bar, next_value=next_value, **ends
        )
        return made.value_target, jnp.ones(mask.shape)

    def returned(reward, mask, current, behaviour, value, next_value, terminated, truncated):
        log_ratio = numerics.select(current, mask) - numerics.select(behaviour, mask)
        weight = numerics.safe_exp(returns.future_sum(log_ratio, mask))
        target = returns.discounted_return(reward, mask, gamma, terminated, truncated, next_value)
        return target, numerics.select(jnp.clip(weight, 1 / weight_bar, weight_bar), mask)

    one = {"vtrace": traced, "monte_carlo": returned}[correction]
    for _axis in batch.batch_shape:
        one = jax.vmap(one)
    value = require(batch, "value", "aligned_value") if correction == "vtrace" else None
    if correction == "vtrace":
        require_bootstrap(batch, "aligned_value with correction='vtrace'")
    next_value = batch.signals.get("next_value")
    target, weight = one(reward, mask, new.logprob, behaviour, value, next_value, batch.terminated, batch.truncated)
    weight = numerics.safe_divide(weight, numerics.masked_mean(weight, mask))
    return credit.with_extras(value_target=target, value_weight=weight)


@objective(needs=_needs_value, prepare=_prepare, above={"weight_bar": 0.0})
def aligned_value(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    correction: Literal["vtrace", "monte_carlo"] = "vtrace",
    gamma: float = 1.0,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    weight_bar: float = 2.0,
    coefficient: float = 0.5,
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """``coefficient · mean of w_t ½ (V(s_t) - target_t)²`` with a target of the policy that is being *updated*, not of
    the one that acted (PACT).

    Target and weight are made in `prepare`, from the policy as it is when the minibatch is taken up: after the actor's
    own step, if the two stand `in_turn`. Nothing flows through them, so no gradient reaches the actor by the ratio.
    Unscored rollouts are left out.

    Args:
      correction: "vtrace", the target of V-trace with weights 1; "monte_carlo", the return to go (to where the rollout
        was cut off, if there is no `next_value`) with the weight
        ``w_t ∝ clip(Π_{u >= t} π(a_u) / π_behaviour(a_u), 1 / weight_bar, weight_bar)`` of mean 1 over the minibatch.
        Without the clip its minimum is V of the updated policy, exactly.
      gamma: discount.
      lam: trace of the V-trace target.
      rho_bar: clip of the ratio in V-trace; its fixed point depends on it.
      weight_bar: > 0, clip of the Monte Carlo weight.
      coefficient: weight of the loss.
      aggregation: how token losses become one number.

    Raises:
      ValueError: the policy has no value head; or a batch with `truncated` has no `next_value`.
    """
    if new.value is None:
        raise ValueError("aligned_value needs `new.value` [..., T]; the policy has no value head")
    mask = learned_mask(credit, batch)
    weight, target = (
        jax.lax.stop_gradient(numerics.select(require_extra(credit, name, "aligned_value", _MISSING), mask))
        for name in ("value_weight", "value_target")
    )
    loss = weight * value_loss(numerics.select(new.value, mask), target)
    return {"value": Term(*aggregate(loss, mask, aggregation), coefficient)}


@objective(needs=_of_parts("needs"), statistics=_of_parts("statistics"), prepare=_prepare_parts)
def _in_turn(new: PolicyOutput, credit: CreditLike, batch: Trajectory, *, parts: tuple[Objective, ...]) -> Terms:
    terms: Terms = {}
    for part in parts:
        terms |= part(new, credit, batch)
    return terms


def in_turn(*parts: Objective) -> Objective:
    """Objectives that take their update steps one after the other on the same batch: all of the first one's epochs,
    then the second's, with whatever the first has made of the policy.

    Called as it is, it is their sum: that is what a log shows of it.
    """
    return _in_turn(parts=parts)


def phases(objective: Objective) -> tuple[Objective, ...]:
    """The objectives that a training step works through one after the other: one, unless they stand `in_turn`."""
    in_order = objective.function is _in_turn.__wrapped__  # type: ignore[attr-defined]  # what the factory wraps
    return objective.hyperparameters["parts"] if in_order else (objective,)
