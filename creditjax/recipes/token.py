"""Methods that reshape a rollout's credit over its tokens."""

import math
from typing import Literal

from creditjax.algebra import (
    Transform,
    average_by_segment,
    baseline_normalize,
    batch_center,
    batch_unit_mean,
    batch_whiten,
    blend,
    cap_rows,
    certainty_modulation,
    chain,
    clip,
    damp_tail,
    divergence_to_go,
    emphasize_ends,
    exp_weight,
    favor_marked,
    focal,
    group_center,
    group_normalize,
    group_unit_mean,
    identity,
    limit_unanimous,
    logit_penalty,
    mean_tokens,
    modulate,
    only_where,
    outcome,
    pooled_normalize,
    rows_where,
    scale,
    signal,
    surprisal,
    to_tokens,
    unanimous,
)
from creditjax.kernels.kl import Divergence
from creditjax.objectives import by_origin, clipped_surrogate, future_kl
from creditjax.recipes.baselines import NORMALIZED, grpo_credit
from creditjax.recipes.registry import Parts, Sampler, is_on, register


@register("ucas", claims=("sign_preserved",))
def ucas(alpha: float = 0.25, beta: float = 0.35, lam: float = 0.05, reduce: str = "sum", eps: float = 1e-6) -> Parts:
    """Confident successes earn less, confident failures cost more, confident tokens pay a little (arXiv:2510.10649).

    `reduce` "sum" adds the certainty of a rollout's tokens, as the code does, which makes it partly a length; "mean"
    does not. Groups with equal outcomes are not silent: their tokens still pay.
    """
    modulated = chain(outcome(), group_normalize(eps=eps), certainty_modulation(alpha=alpha, beta=beta, reduce=reduce))
    return Parts(chain(modulated, to_tokens(), logit_penalty(scale=lam)), clipped_surrogate(aggregation="token_mean"))


@register("frpo", claims=("shift_invariant",))
def frpo(
    beta: float = 1e-3, divergence: Divergence = "reverse_kl", per_token: bool = False, eps: float = 1e-6
) -> Parts:
    """GRPO's credit minus ``beta`` times what the token adds to the divergence from the reference, then and later
    (arXiv:2601.10201): for the reverse KL ``A_i - beta Σ_{u>=t} log(π_u / π_ref,u)``.

    Added after normalisation, so the reward's spread does not rescale it. The loss has no KL term of its own.
    `per_token` divides the sum by the rollout's length.
    """
    penalty = divergence_to_go(kind=divergence, per_token=per_token)
    return Parts(blend((grpo_credit(eps=eps), 1.0), (penalty, -beta)), clipped_surrogate(aggregation="token_mean"))


@register("fipo", claims=NORMALIZED)
def fipo(
    half_life: float = 32.0,
    eps_future: float = 0.2,
    high_only: bool = True,
    safe_ratio: float = 4.0,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    dual_clip: float = 10.0,
    drop_runaway: bool = False,
    eps: float = 1e-6,
) -> Parts:
    """DAPO, each token's credit times ``clip(exp(Σ_{u>=t} 2^(-(u-t)/half_life) log r_u), 1, 1 + eps_future)``
    (arXiv:2603.19835).

    The ratios r are those of the inner loop, so the weight is the objective's: see
    `creditjax.objectives.future_kl`. With one inner step a batch it is 1 and this is DAPO.
    """
    loss = future_kl(
        half_life=half_life,
        eps=eps_future,
        high_only=high_only,
        safe_ratio=safe_ratio,
        eps_low=eps_low,
        eps_high=eps_high,
        dual_clip=dual_clip,
        drop_runaway=drop_runaway,
    )
    return Parts(grpo_credit(eps=eps), loss, Sampler(group_size=16, dynamic=True))


@register("aem", claims=NORMALIZED)
def aem(
    lam: float = 0.5,
    z_max: float = 3.0,
    scope: Literal["group", "batch"] = "group",
    proxy: Literal["entropy", "surprisal"] = "entropy",
    eps: float = 1e-6,
) -> Parts:
    """GRPO's credit times ``exp(-lam z)`` over its mean, z the standardised entropy of the turn (arXiv:2605.00425).

    Confident turns learn more from success and from failure. `scope` is over whose turns z and the mean are taken; in
    the batch 1e-12 is added to the variance, not 1e-6 to the standard deviation. `proxy` "surprisal" reads the drawn
    tokens' log-probabilities alone. Tokens of no turn are assigned no credit.
    """
    if scope not in ("group", "batch") or proxy not in ("entropy", "surprisal"):
        raise ValueError(f"scope: {scope!r}, proxy: {proxy!r}, wanted 'group' or 'batch' and 'entropy' or 'surprisal'")
    uncertainty = chain(signal("entropy") if proxy == "entropy" else surprisal(), average_by_segment())
    standardized, unit_mean = (
        (pooled_normalize(), group_unit_mean()) if scope == "group" else (batch_whiten(eps=1e-12), batch_unit_mean())
    )
    weight = chain(uncertainty, standardized, exp_weight(lam=-lam, bound=z_max), unit_mean)
    return Parts(
        chain(grpo_credit(eps=eps), to_tokens(), modulate(weight)), clipped_surrogate(aggregation="token_mean")
    )


@register("tas", claims=NORMALIZED)
def tas(lam: float = 0.3, mean_preserving: bool = False, eps: float = 1e-6) -> Parts:
    """GRPO's credit times ``1 + lam (2u - 1)^2``, u from 0 at the first action to 1 at the last (temporal advantage
    shaping of AVATAR, arXiv:2508.03100): planning and conclusion count more than the middle.

    `mean_preserving`, not in the paper, divides by ``1 + lam / 3``.
    """
    return Parts(chain(grpo_credit(eps=eps), _ends(lam, mean_preserving)), clipped_surrogate())


def _ends(lam: float, mean_preserving: bool = False) -> Transform:
    return chain(to_tokens(), emphasize_ends(strength=lam, mean_preserving=mean_preserving))


@register("avatar")
def avatar(
    alpha: float = 1.0,
    lam: float = 0.3,
    ratio: Literal["sequence", "token"] = "sequence",
    replayed: int = 4,
    eps_clip: float = 0.2,
    eps: float = 1e-6,
) -> Parts:
    """Fresh rollouts against each other, replayed ones against the prompt's moving mean, both through `tas`
    (arXiv:2508.03100).

    Fresh rows get GRPO's credit among themselves, replayed ones ``(R - prompt_mean) / (std of the replayed + eps)``;
    one replayed row or equal ones get 0, where the formula would divide by eps alone. The loss is ``L_fresh + alpha
    L_replayed``, each with its own denominator; `ratio` is that of replayed rows against the log-probabilities stored
    with them. `replayed` of them join each group, from the buffer of `creditjax.samplers.replay`; with 0 it is `tas`.
    The hints of the paper, for prompts that stay hard, are not implemented.
    """
    fresh_credit = chain(outcome(), rows_where("is_offpolicy", holds=False), group_normalize(eps=eps))
    replayed_credit = chain(outcome(), rows_where("is_offpolicy"), baseline_normalize("prompt_mean", eps=eps))
    fresh = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip)
    old = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, ratio=ratio)
    joined = chain(blend((fresh_credit, 1.0), (replayed_credit, 1.0)), _ends(lam))
    return Parts(joined, by_origin(fresh, old, alpha=alpha), Sampler(group_size=4, replayed=replayed))


@register("taco_tail", claims=NORMALIZED)
def taco_tail(alpha: float = 0.01, lam: float = 0.9, eps: float = 1e-6) -> Parts:
    """GRPO's credit; at ``risk = -log π - H + log alpha > 0`` only ``1 - lam (1 - exp(-risk))`` of what is positive
    (TACO, tail-aware credit calibration).

    Computed once with the log-probabilities and entropies of the rollout; the released code recomputes it in every
    inner step, which on the first is the same.
    """
    return Parts(
        chain(grpo_credit(eps=eps), to_tokens(), damp_tail(alpha=alpha, lam=lam)),
        clipped_surrogate(aggregation="token_mean"),
    )


@register("miner")
def miner(
    gamma: float = 1.0,
    right_scale: float = 1.0,
    wrong_scale: float = 0.0,
    clip_high: float = 0.0,
    clip_low: float = 0.0,
    budget: float = 0.0015,
    scope: Literal["group", "batch"] = "group",
    eps: float = 1e-6,
) -> Parts:
    """GRPO where outcomes differ; where all are right, less confident rollouts are rewarded at their doubtful tokens
    (arXiv:2601.04731).

    With s the mean surprisal of a rollout: ``right_scale max(0, s_i - mean s) (1 - π)^gamma`` in groups that are all
    right, ``wrong_scale min(0, s_i - mean s) (1 - π)^gamma`` in those all wrong. In absolute sum this is at most
    `budget` times the rest; with `clip_high`, which caps a row, in mean over tokens at most the rest. A `scope` of
    "batch" takes the mean over all groups of the kind. 0 switches `wrong_scale`, either clip and the `budget` off.
    """
    if scope not in ("group", "batch"):
        raise ValueError(f"scope: {scope!r}, wanted 'group' or 'batch'")

    def doubt(right: bool, low: float, high: float) -> list[Transform]:
        center = group_center() if scope == "group" else batch_center()
        kind = only_where(unanimous(right=right))
        return [surprisal(), mean_tokens(), kind, center, clip(low, high), to_tokens(), focal(gamma=gamma)]

    parts = [chain(*doubt(True, 0.0, math.inf), scale(right_scale), cap_rows(clip_high))]
    if is_on(wrong_scale):
        floor = clip(-clip_low, 0.0) if is_on(clip_low) else identity()
        parts.append(chain(*doubt(False, -math.inf, 0.0), floor, scale(wrong_scale)))
    limit = limit_unanimous(1.0, "mean") if is_on(clip_high) else limit_unanimous(budget)
    joined = blend((grpo_credit(eps=eps), 1.0), *((part, 1.0) for part in parts))
    return Parts(chain(joined, limit if is_on(budget) else identity()), clipped_surrogate(aggregation="token_mean"))


@register("hicra", claims=NORMALIZED)
def hicra(alpha: float = 0.2, eps: float = 1e-6) -> Parts:
    """GRPO's credit plus ``alpha |A|`` on planning tokens: more praise, less blame (arXiv:2509.03646).

    Planning tokens lie inside strategic n-grams; `creditjax.signals.planning` marks them.
    """
    favored = favor_marked("planning_mask", alpha=alpha)
    return Parts(chain(grpo_credit(eps=eps), to_tokens(), favored), clipped_surrogate(aggregation="token_mean"))
