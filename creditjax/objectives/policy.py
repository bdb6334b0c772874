"""The policy losses: credit, and how far the policy has moved, in; one loss a token, aggregated, out.

They share their inputs (:func:`read`), their ratios (:func:`move`) and their ending (:func:`policy_terms`), so each is
its formula and nothing else. A position without assigned credit (``credit.valid`` False) has no policy loss but stays
in the counts.

Channels (SkillGate, arXiv:2608.18852). A method that weighs the loss of disjoint kinds of tokens apart, say
``(1/N) Σ_t [w_t ℓ(A_t) + λ w'_t ℓ(A'_t)]`` with ``w_t w'_t = 0`` everywhere, needs no second pass: give each token the
credit of the channel that owns it and ``credit.extras["loss_weight"] = w + λ w'``. The weight multiplies the policy
loss and leaves the count N alone.
"""

from typing import Literal, NamedTuple

import jax
from jax import numpy as jnp

from creditjax.kernels import losses, ratios
from creditjax.kernels.kl import kl_estimate
from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_mean, safe_exp, select
from creditjax.objectives.aggregate import Aggregation, Mode, aggregate
from creditjax.objectives.base import CreditLike, loss_mask, objective, require
from creditjax.objectives.terms import Term, Terms, diagnostic
from creditjax.trajectory import Trajectory

Array = jax.Array
Ratio = Literal["token", "sequence", "sequence_product", "segment", "segment_product"]


class Inputs(NamedTuple):
    """What the losses with a ratio read, ``[..., T]`` each, 0 under the mask; no gradient but through `logprob`."""

    mask: Array
    advantage: Array
    logprob: Array
    behaviour: Array

    @property
    def log_ratio(self) -> Array:
        """``log π − log π_behaviour`` of the token."""
        return self.logprob - self.behaviour


def read(new: PolicyOutput, credit: CreditLike, batch: Trajectory, owner: str) -> Inputs:
    """The inputs, selected before anything is computed; a `ValueError` names `owner` if `batch.logprob` is missing."""
    mask = loss_mask(credit, batch)
    behaviour = jax.lax.stop_gradient(select(require(batch, "logprob", owner), mask))
    return Inputs(mask, _advantage(credit, mask), select(new.logprob, mask), behaviour)


def move(x: Inputs, batch: Trajectory, ratio: Ratio) -> Array:
    """The importance ratio that each token's loss uses, bounded, ``[..., T]``."""
    if ratio == "token":
        return safe_exp(x.log_ratio)
    unit, _, product = ratio.partition("_")
    if unit == "segment":
        streams = (x.log_ratio, x.mask, require(batch, "segment", f"ratio={ratio!r}"))
    else:
        streams = (x.log_ratio, x.mask, jnp.zeros(x.mask.shape, jnp.int32))
    num_segments = batch.num_segments if unit == "segment" else 1

    def shared(log_ratio, mask, segment):
        return ratios.shared_log_ratio(log_ratio, mask, segment, num_segments, mean=not product)

    unit_ratio = jnp.vectorize(shared, signature="(t),(t),(t)->(t)")(*streams)
    return safe_exp(unit_ratio if product else ratios.token_form(unit_ratio, x.log_ratio))


def policy_terms(
    loss: Array, x: Inputs, credit: CreditLike, aggregation: Aggregation | Mode, ratio: Array, clipped: Array
) -> Terms:
    """The policy term of a token loss, with what everybody wants to see: the ratio *before* clipping among them."""
    return {
        "policy": _policy_term(loss, x.mask, credit, aggregation),
        "clip_fraction": diagnostic(clipped, x.mask),
        "ratio": diagnostic(ratio, x.mask),
        "kl_behaviour": diagnostic(kl_estimate(x.behaviour, x.logprob, "k3"), x.mask),
    }


def _advantage(credit: CreditLike, mask: Array) -> Array:
    return jax.lax.stop_gradient(select(credit.value, mask & credit.valid))


def _policy_term(loss: Array, mask: Array, credit: CreditLike, aggregation: Aggregation | Mode) -> Term:
    if "loss_weight" in credit.extras:
        loss = loss * jax.lax.stop_gradient(select(credit.extras["loss_weight"], mask))
    return Term(*aggregate(loss, mask, aggregation))


def _behaviour(ratio: Ratio, **_) -> tuple[str, ...]:
    return ("logprob", "segment") if ratio.startswith("segment") else ("logprob",)


@objective()
def policy_gradient(
    new: PolicyOutput, credit: CreditLike, batch: Trajectory, *, aggregation: Aggregation | Mode = "token_mean"
) -> Terms:
    """``−A_t log π(a_t)``: REINFORCE (seq_mean_token_sum), GPG (token_mean), V-trace (whose credit holds the ratio).

    Needs no behaviour log-probabilities.
    """
    mask = loss_mask(credit, batch)
    loss = losses.policy_gradient_loss(select(new.logprob, mask), _advantage(credit, mask))
    return {"policy": _policy_term(loss, mask, credit, aggregation)}


@objective(needs=_behaviour, above={"dual_clip": 1.0})
def clipped_surrogate(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
    ratio: Ratio = "token",
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """``max(−A r, −A clip(r, 1 − eps_low c, 1 + eps_high c))``, c the extra `clip_scale` where given, else 1.

    ===================  ==========================================  ===============================================
    PPO                  defaults, dual_clip=3                       arXiv:1707.06347, 1912.09729
    GRPO                 aggregation="seq_mean_token_mean"           arXiv:2402.03300
    Dr. GRPO             Aggregation("seq_mean_token_sum_norm", L)   arXiv:2503.20783
    DAPO                 eps_high=0.28, dual_clip=10                 arXiv:2503.14476
    GSPO                 ratio="sequence", eps 3e-4 and 4e-4,        arXiv:2507.18071 (GSPO-token)
                         aggregation="seq_mean_token_mean"
    A²TGPO               ratio="segment" with `clip_scale`           arXiv:2605.06200
    ===================  ==========================================  ===============================================

    Args:
      eps_low: how far below 1 the ratio may go.
      eps_high: how far above.
      dual_clip: C > 1, bounds the loss of a negative credit; None for no bound.
      ratio: one a token; or one a sequence or segment, either length-normalised and in token form or the plain product,
        through which the gradient of every token flows. Positions of no segment keep their own.
      aggregation: how token losses become one number.
    """
    x = read(new, credit, batch, "clipped_surrogate")
    r = move(x, batch, ratio)
    scale = jax.lax.stop_gradient(select(credit.extras["clip_scale"], x.mask)) if "clip_scale" in credit.extras else 1.0
    clip = (eps_low * scale, eps_high * scale, dual_clip)
    loss = losses.ppo_loss(r, x.advantage, *clip)
    return policy_terms(loss, x, credit, aggregation, r, losses.ppo_clipped(r, x.advantage, *clip))


@objective(needs=_behaviour)
def cispo(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    eps_low: float = 1.0,
    eps_high: float = 0.28,
    ratio: Ratio = "token",
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """``−sg(clip(r, 1 − eps_low, 1 + eps_high)) A log π``: CISPO, arXiv:2506.13585. eps_low = 1 is no lower bound."""
    x = read(new, credit, batch, "cispo")
    r = move(x, batch, ratio)
    loss = losses.cispo_loss(x.logprob, r, x.advantage, eps_low, eps_high)
    return policy_terms(loss, x, credit, aggregation, r, (r < 1.0 - eps_low) | (r > 1.0 + eps_high))


@objective(needs=("logprob",), above={"tau_positive": 0.0, "tau_negative": 0.0})
def sapo(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    aggregation: Aggregation | Mode = "seq_mean_token_mean",
) -> Terms:
    """``−A (4/τ) σ(τ (r − 1))``, τ by the sign of A: SAPO, arXiv:2511.20347. Nothing is clipped."""
    x = read(new, credit, batch, "sapo")
    r = move(x, batch, "token")
    loss = losses.sapo_loss(r, x.advantage, tau_positive, tau_negative)
    return policy_terms(loss, x, credit, aggregation, r, jnp.zeros_like(x.mask))


@objective(needs=("logprob",))
def geometric_mean(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    eps_low: float = 0.4,
    eps_high: float = 0.4,
    aggregation: Aggregation | Mode = "seq_mean_token_mean",
) -> Terms:
    """``−A exp((1/n) Σ_t clip_t)``, clip_t the log-ratio held back on the side of A's sign: GMPO, arXiv:2507.20673.

    A is the rollout's credit; where the credit of its tokens differs, their mean. `clip_fraction` counts held-back
    tokens, and `ratio` shows the geometric mean before they were.
    """
    x = read(new, credit, batch, "geometric_mean")
    advantage = jnp.broadcast_to(masked_mean(x.advantage, x.mask, axis=-1, keepdims=True), x.mask.shape)
    held = select(ratios.one_sided_log_ratio(x.log_ratio, advantage, eps_low, eps_high), x.mask)
    clipped = (advantage != 0) & (held != x.log_ratio)
    loss = -advantage * safe_exp(masked_mean(held, x.mask, axis=-1, keepdims=True))
    return policy_terms(loss, x, credit, aggregation, move(x, batch, "sequence"), clipped)


@objective()
def supervised(
    new: PolicyOutput, credit: CreditLike | None, batch: Trajectory, *, aggregation: Aggregation | Mode = "token_mean"
) -> Terms:
    """``−log π(a_t)`` of the batch's own tokens: cross-entropy, for the warm start on gold answers.

    `credit` may be None; of a credit only the extra `loss_mask` is read.
    """
    return {"policy": Term(*aggregate(-new.logprob, loss_mask(credit, batch), aggregation))}
