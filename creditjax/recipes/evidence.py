"""Methods that reshape credit by what the model's own computation says of a token: its probability under another
prompt, who attends to it, its features, what a judge's gradient or an explainer makes of it.
"""

from typing import Literal

from creditjax.algebra import (
    absolute,
    anchor_bonus,
    at_last_action,
    attributed_outcome,
    batch_whiten,
    blend,
    chain,
    clip,
    concentrate,
    discounted_return,
    discriminate,
    divergence_from,
    future_sum,
    gae,
    group_normalize,
    identity,
    log_ratio,
    mark_top,
    modulate,
    outcome,
    pooled_normalize,
    rollout_normalize,
    rollout_range_normalize,
    rollout_share,
    rollout_softmax,
    rubric_reward,
    rubric_support,
    scale,
    shift,
    signal,
    softplus,
    step_size,
    tanh_weight,
    to_tokens,
)
from creditjax.objectives import clipped_surrogate, with_value
from creditjax.recipes.baselines import NORMALIZED, grpo_credit
from creditjax.recipes.registry import Parts, Sampler, register


@register("delta", claims=NORMALIZED)
def delta(refinements: int = 1, lam_min: float = 0.8, lam_max: float = 1.2, eps: float = 1e-6) -> Parts:
    """GRPO's credit, tokens whose gradient sides with their own rollouts weighing up to `lam_max`, others down to
    `lam_min` (DelTA, arXiv:2605.21467).

    The gradient is that of the output layer, ``(1 - π) hidden``; sides are centroids over the batch, refined
    `refinements` times, and the mean weight is 1. As in the code the metric is Euclidean.
    """
    weighted = discriminate(refinements=refinements, low=lam_min, high=lam_max)
    loss = clipped_surrogate(eps_low=0.2, eps_high=0.28, dual_clip=10.0)
    return Parts(chain(grpo_credit(eps=eps), to_tokens(), weighted), loss, Sampler(group_size=16, dynamic=True))


@register("gcpo_guidance", claims=NORMALIZED, cost="T log T")
def gcpo_guidance(
    top_frac: float = 0.4,
    top_mass: float = 0.8,
    normalise: Literal["hist", "none", "softmax"] = "hist",
    tau: float = 1.0,
    eps: float = 1e-6,
) -> Parts:
    """GRPO's credit, heavier where the prompt decided the token: ``D = e^x - x - 1`` with x the log-ratio of a negative
    or empty prompt to the true one (GCPO, arXiv:2605.29198).

    `normalise` "hist" weighs by ranks of D within the rollout, so that the top `top_frac` of its tokens carry
    `top_mass` of its credit; ties share their average rank, where the code takes them in order. "softmax" is the
    rollout's length times a softmax of D at temperature `tau`; "none" is D itself, and moves the rollout's sum.
    """
    shapes = {
        "hist": [concentrate(share=top_frac, mass=top_mass), rollout_share(of="length")],
        "softmax": [rollout_softmax(temperature=tau), rollout_share(of="length")],
        "none": [],
    }
    if normalise not in shapes:
        raise ValueError(f"normalise: {normalise!r}, wanted one of {', '.join(shapes)}")
    weight = chain(divergence_from("logprob_negative"), *shapes[normalise])
    return Parts(chain(grpo_credit(eps=eps), to_tokens(), modulate(weight)), clipped_surrogate())


@register("cort_replay", claims=NORMALIZED)
def cort_replay(
    kappa: float = 0.5,
    tau: float = 1.0,
    w_min: float = 0.5,
    w_max: float = 2.0,
    mode: Literal["signed", "magnitude"] = "signed",
    eps: float = 1e-6,
) -> Parts:
    """GRPO's credit times ``clip(1 + kappa tanh(z / tau), w_min, w_max)`` over its mean in the rollout, z the
    standardised log-ratio of a prompt with the criteria to one without (CoRT, counterfactual replay).

    Each rollout keeps its sum. `mode` "magnitude" standardises ``|x|``. The squashing and the bounds are ours.
    """
    if mode not in ("signed", "magnitude"):
        raise ValueError(f"mode: {mode!r}, wanted 'signed' or 'magnitude'")
    ratio = log_ratio("logprob_rubric", "logprob_plain")
    z = chain(ratio, identity() if mode == "signed" else absolute(), rollout_normalize())
    weight = chain(z, tanh_weight(strength=kappa, scale=tau), clip(w_min, w_max), rollout_share(of="length"))
    return Parts(chain(grpo_credit(eps=eps), to_tokens(), modulate(weight)), clipped_surrogate())


@register("flowtracer", claims=NORMALIZED)
def flowtracer(rho: float = 0.4, kappa: float = 0.5, mode: Literal["top", "soft"] = "top", eps: float = 1e-6) -> Parts:
    """GRPO's credit times ``1 + kappa`` on the top `rho` of a rollout's tokens by attention flow f from prompt to
    answer, where f > 0 (FlowTracer, arXiv:2606.10646).

    `mode` "soft" multiplies by ``1 + kappa (f - mean f) / (max f - min f)``. The flow is a random walk along attention
    conditioned on reaching the answer (a Doob transform), see `creditjax.signals.attention.absorbing_flow`; the
    paper's own normaliser may differ. It costs O(T^2) where it is made, the estimator is linear.
    """
    shapes = {"top": mark_top(share=rho, positive=True), "soft": rollout_range_normalize()}
    if mode not in shapes:
        raise ValueError(f"mode: {mode!r}, wanted 'top' or 'soft'")
    weight = chain(signal("attention_flow"), shapes[mode], scale(kappa), shift(1.0))
    return Parts(chain(grpo_credit(eps=eps), to_tokens(), modulate(weight)), clipped_surrogate())


@register("preplan_anchor", claims=NORMALIZED)
def preplan_anchor(
    mode: Literal["local", "global", "coupled"] = "coupled",
    q: float = 0.4,
    g_amp: float = 1.5,
    alpha: float = 0.5,
    k: int = 3,
    eps: float = 1e-6,
) -> Parts:
    """GRPO's praise times up to `g_amp` where attention says that a chunk is planned or that later text is anchored;
    blame stays (arXiv:2510.13554).

    `mode` "local" amplifies the top `q` of a rollout's tokens by ``|WAAD_t - WAAD_{t+1}|``, "global" the top `q` by
    FAI, "coupled" the latter, `alpha` of a dominated anchor's bonus going to the token among the `k` before it that
    introduces it, see `creditjax.algebra.anchor_bonus`. The signals `attention_distance` (WAAD) and `future_influence`
    (FAI) cost O(T^2) where they are made, the estimator is linear.
    """
    bonuses = {
        "local": chain(signal("attention_distance"), step_size(), mark_top(share=q)),
        "global": chain(signal("future_influence"), mark_top(share=q)),
        "coupled": anchor_bonus(share=q, alpha=alpha, window=k),
    }
    if mode not in bonuses:
        raise ValueError(f"mode: {mode!r}, wanted one of {', '.join(bonuses)}")
    praise = chain(clip(0.0, float("inf")), modulate(bonuses[mode]))
    amplified = blend((identity(), 1.0), (praise, g_amp - 1))
    return Parts(chain(grpo_credit(eps=eps), to_tokens(), amplified), clipped_surrogate())


@register("grad2reward")
def grad2reward(
    weights: tuple[float, ...] = (),
    mode: Literal["abs", "pos"] = "abs",
    credit: Literal["redistribute", "return"] = "redistribute",
    eps: float = 1e-6,
) -> Parts:
    """A judge's reward, handed out over tokens by its gradient along their embeddings (Grad2Reward, arXiv:2602.01791).

    ``a_t = Σ_c w_c <d log p(verdict c) / d e_t, e_t>``, share ``s_t = |a_t| / Σ |a|`` (`mode` "pos":
    ``softplus(a)`` for ``|a|``), reward ``R = Σ_c w_c verdict_c``. `credit` "redistribute" is ``n s_t GRPO(R)``, which
    keeps each rollout's sum; "return" the returns of ``R s_t``, standardised over the group's tokens. `weights` are
    those of the criteria, by default their mean. How the shares meet the advantage is ours. The gradients cost a
    backward pass a criterion where they are made.
    """
    if mode not in ("abs", "pos") or credit not in ("redistribute", "return"):
        raise ValueError(f"mode: {mode!r}, credit: {credit!r}, wanted 'abs' or 'pos' and 'redistribute' or 'return'")
    support = chain(rubric_support(weights), absolute() if mode == "abs" else softplus())
    reward = rubric_reward(weights)
    if credit == "redistribute":
        weight = modulate(chain(support, rollout_share(of="length")))
        estimator = chain(reward, group_normalize(eps=eps), to_tokens(), weight)
    else:
        dense = chain(reward, to_tokens(), modulate(chain(support, rollout_share())))
        estimator = chain(dense, future_sum(), pooled_normalize(eps=eps))
    return Parts(estimator, clipped_surrogate())


@register("explainable_shaping", claims=("scale_invariant",))
def explainable_shaping(
    weights: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25),
    inner: Literal["reinforce_plus_plus", "gae"] = "reinforce_plus_plus",
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Parts:
    """Returns of ``r_t = outcome Σ_s W_s attribution_{t,s}``, the last source being all of it at the last action
    (arXiv:2504.16272).

    One weight for each explainer of the signal `attributions`, and one for the sparse reward; on the simplex, so that
    rewards sum to the outcome. They are leaves: the paper's outer loop, Bayesian optimisation of W by the validation
    reward of short runs, belongs to the caller and compiles once. Explainers are gradient, attention and LIME; Kernel
    SHAP over spans would be one more. `inner` is what makes credit of the rewards: whitened returns, or generalised
    advantages with a critic.
    """
    if len(weights) < 2:
        raise ValueError(f"weights: {weights}, wanted one for each explainer and one for the sparse reward")
    if all(isinstance(w, int | float) for w in weights) and (min(weights) < 0 or abs(sum(weights) - 1) > 1e-6):
        raise ValueError(f"weights: {weights}, wanted numbers >= 0 that sum to 1")
    if inner not in ("reinforce_plus_plus", "gae"):
        raise ValueError(f"inner: {inner!r}, wanted 'reinforce_plus_plus' or 'gae'")
    *explained, sparse = weights
    dense = [(attributed_outcome(s, len(explained)), w) for s, w in enumerate(explained)]
    reward = blend(*dense, (chain(outcome(), at_last_action()), sparse))
    returns = discounted_return(gamma=gamma) if inner == "reinforce_plus_plus" else gae(gamma=gamma, lam=lam)
    loss = clipped_surrogate() if inner == "reinforce_plus_plus" else with_value(clipped_surrogate())
    return Parts(chain(reward, returns, batch_whiten()), loss)
