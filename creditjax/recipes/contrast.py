"""Methods that compare rollouts with each other in the loss: contrasts, preferences, and shared or implied ratios.

A loss over pairs or groups has no credit of its own. Its recipe's estimator gives the credit that it implies at the
behaviour policy: minus the derivative of the loss by each token's log-probability, pairs and solved rollouts of a group
added up. It can be looked at and measured like any other; the loss itself reads nothing of it.
"""

from creditjax.algebra import (
    batch_whiten,
    blend,
    chain,
    contrast_credit,
    edit_preference_credit,
    future_sum,
    group_normalize,
    identity,
    likelihood_weighted_gap,
    log_ratio,
    outcome,
    preference_credit,
    regularized_preference_credit,
    scale,
    signal,
    span_preference_credit,
    sum_by_segment,
    verdict_reward,
)
from creditjax.objectives import (
    clipped_surrogate,
    combine,
    contrastive,
    edit_preference,
    entropy_grouped_surrogate,
    implied_value,
    looped_policy_gradient,
    preference,
    scaled,
    span_preference,
    token_regularized_preference,
    with_kl,
)
from creditjax.objectives.looped import Weighting
from creditjax.recipes.baselines import NORMALIZED, grpo_credit
from creditjax.recipes.registry import Parts, Sampler, is_on, register

PAIRWISE = "pairwise in G"
# The laws of an outcome of which nothing but the order is read.
RANKED = ("shift_invariant", "scale_invariant")


@register("espo_entropy", claims=NORMALIZED)
def espo_entropy(
    bins: int = 4,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
    q_min: float = 0.5,
    q_max: float = 4.0,
    eps: float = 1e-6,
) -> Parts:
    """Tokens of like entropy share a ratio and a clip range (arXiv:2512.00499), on the credit of GRPO.

    Between GSPO (`bins` 1) and GRPO (one bin a token, both q 1). The exponent of the ratio is held within ±20, as
    everywhere here, where the card has 10 above and no bound below; the entropy is that at the start of the update.
    """
    loss = entropy_grouped_surrogate(bins=bins, eps_low=eps_low, eps_high=eps_high, q_min=q_min, q_max=q_max)
    return Parts(grpo_credit(eps=eps), loss)


@register("lampo", cost=PAIRWISE, claims=("shift_invariant", "scale_equivariant"))
def lampo(
    tau: float = 1.0,
    eta: float = 0.1,
    references: bool = False,
    std: bool = False,
    eps_clip: float = 0.2,
    beta: float = 0.0,
    eps: float = 1e-6,
) -> Parts:
    """``A_i = mean_{j != i} w_ij (R_i - R_j)`` with ``w_ij = 2 sigmoid(-m_ij / tau)``, m_ij the lead in mean
    log-probability of the better of the two (arXiv:2605.21235, later withdrawn).

    A pair that the policy already ranks right counts less. `references` adds `eta` times the ROUGE-L F1 against a
    reference solution to the reward; `std` divides by the group's std; `beta` weighs the k3 divergence.
    """
    reward = blend((outcome(), 1.0), (signal("rouge_l"), eta)) if references else outcome()
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="seq_mean_token_mean")
    estimator = chain(reward, likelihood_weighted_gap(temperature=tau), group_normalize(eps=eps) if std else identity())
    return Parts(estimator, with_kl(loss, beta=beta, kind="k3") if is_on(beta) else loss)


@register("conspo")
def conspo(tau: float = 0.1, margin: float = 0.5, warmup: float = 1.0) -> Parts:
    """Each solved rollout against all unsolved ones of its group, by InfoNCE on mean log-probabilities
    (arXiv:2605.12969).

    ``l_i = -log( e^{(s_i - m)/tau} / (e^{(s_i - m)/tau} + sum_unsolved e^{s_j/tau}) )``; m grows to `margin` over the
    first `warmup` share of the run. On-policy: there is no ratio.
    """
    estimator = contrast_credit(temperature=tau, margin=margin, warmup=warmup)
    return Parts(estimator, contrastive(temperature=tau, margin=margin, warmup=warmup))


@register("vimpo")
def vimpo(beta: float = 5e-4, actor_weight: float = 5e-3, lam: float = 1.0, eps_clip: float = 0.2) -> Parts:
    """The policy as its own value function, and an actor that learns from it (arXiv:2606.20008).

    ``L = 1/2 (sum_t a_t - (R - mean R))^2 + actor_weight * PPO(A)``, ``a_t = beta (log pi/pi_ref - KL_t)`` and A its
    whitened future sum, decayed by `lam`. The credit is taken once, at the policy that the update starts from, as every
    credit here, and not again in each of its minibatches; the regression follows the policy. What the policy thinks a
    prefix is worth is ``sum_{s >= t} r_s - beta log(pi/pi_ref)_s``.
    """
    # The whitening takes any scale away, beta's too.
    centred = blend((log_ratio("logprob_current", "logprob_ref"), 1.0), (signal("token_kl"), -1.0))
    estimator = chain(centred, future_sum(lam), batch_whiten(eps=1e-16, ddof=0))
    actor = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(estimator, combine(implied_value(beta=beta), scaled(actor, actor_weight)))


@register("rltt", claims=NORMALIZED)
def rltt(weighting: Weighting = "uniform", power: float = 1.0, eps: float = 1e-6) -> Parts:
    """REINFORCE in every loop of a looped policy: ``-A sum_l w_l log pi_l`` on the credit of GRPO (arXiv:2602.10520).

    `weighting` is "uniform", "progressive" (``l^power``) or "exit" (the policy's own). The objective knows learned
    weights too. No divergence term: `objectives.with_kl` adds that of the last loop.
    """
    return Parts(grpo_credit(eps=eps), looped_policy_gradient(weighting=weighting, power=power))


@register("t_reg", cost=PAIRWISE, claims=RANKED)
def t_reg(beta: float = 0.1, alpha: float = 0.25, pair_weight: bool = True) -> Parts:
    """DPO plus a token reward that the reference gives itself, ``q_t = sigmoid(log pi_better - log pi_worse) - 1/2``
    (arXiv:2412.02685).

    ``L = -log sigmoid(h_w - h_l) - alpha sum_both (1/n) sum_t q_t beta log(pi/pi_ref)_t``. Pairs are all rollouts of a
    prompt whose outcomes differ; a data set of pairs is a batch of groups of two.
    """
    implied = regularized_preference_credit(beta=beta, alpha=alpha, pair_weight=pair_weight)
    return Parts(implied, token_regularized_preference(beta=beta, alpha=alpha, pair_weight=pair_weight))


@register("ctpd", cost=PAIRWISE, claims=RANKED)
def ctpd(beta: float = 0.1, low: float = -0.5, high: float = 1.5, scale: float = 1.0) -> Parts:
    """Preferences distilled from a teacher with another tokenizer, span by span (arXiv:2601.11865).

    DPO with the teacher as the reference, on the spans at whose ends both tokenizers agree, each weighed by how far a
    teacher trained on the preferences leads one trained on their opposite.
    """
    settings = {"beta": beta, "low": low, "high": high, "scale": scale}
    return Parts(span_preference_credit(**settings), span_preference(**settings), Sampler(group_size=2))


@register("rise_dpo", cost=PAIRWISE, claims=RANKED)
def rise_dpo(beta: float = 0.1, rest_weight: float = 1.0, nll: float = 0.05, edits: bool = True) -> Parts:
    """DPO on whole solutions and on steps into which one error was edited, plus imitation (arXiv:2410.06638).

    The paper's policy edits its own steps; here the run replaces one token of a step among those that the task says may
    stand for each other. Without `edits` it trains on whole solutions alone, on any task; with `nll` 0 that is DPO.
    """
    implied = edit_preference_credit(beta=beta, rest_weight=rest_weight, nll=nll, edits=edits)
    loss = edit_preference(beta=beta, rest_weight=rest_weight, nll=nll, edits=edits)
    return Parts(implied, loss, Sampler(edited=edits))


@register("steporlm_wdpo", cost=PAIRWISE, claims=RANKED)
def steporlm_wdpo(beta: float = 0.1, use_ref: bool = True) -> Parts:
    """DPO whose pairs are the solver's verdicts and, between equal ones, the judge's shares of right steps, weighed by
    their difference (arXiv:2509.22558).

    A judge never turns a verdict round. The loss is divided by the number of pairs and not by their weights.
    """
    implied = preference_credit(beta=beta, use_ref=use_ref, score="steps")
    return Parts(implied, preference(beta=beta, use_ref=use_ref, score="steps"))


@register("tips_prm")
def tips_prm(eps: float = 1e-6, eps_clip: float = 0.2) -> Parts:
    """GRPO with a judge as the policy: 1 if the outcome label that it wrote is the true one (RUCBM/TIPS).

    Its step labels earn nothing of their own; they come out right because the label of the outcome depends on them.
    `creditjax.signals.verdicts` reads what a judge wrote. Solutions whose judgements all agree teach nothing and are
    drawn again.
    """
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="seq_mean_token_mean")
    return Parts(chain(verdict_reward(), group_normalize(eps=eps)), loss, Sampler(group_size=8, dynamic=True))


@register("implicit_prm")
def implicit_prm(beta: float = 0.05, eps_clip: float = 0.2) -> Parts:
    """The step rewards of a model that was trained on outcomes alone: ``r_k = beta sum_{t in k} log pi_prm/pi_ref``
    (Yuan et al. 2024, arXiv:2412.01981).

    Here they are credit as they are; the paper ranks solutions by them. `prime` is the method that trains with them.
    The four losses by which the model learns are in `creditjax.signals.implicit`.
    """
    rewards = chain(log_ratio("logprob_prm", "logprob_ref"), scale(beta), sum_by_segment())
    return Parts(rewards, clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean"))
