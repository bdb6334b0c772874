"""Methods that credit progress: what a critic, a probe of the answer or a belief gains from one point to the next.

Where a paper's group statistics are those of the population, `ddof` is 0.
"""

import math
from typing import Literal

from creditjax.algebra import (
    absolute,
    at_last_action,
    at_last_segment,
    at_least,
    at_segment_end,
    average_by_segment,
    batch_whiten,
    belief_gain,
    blend,
    budget_relative,
    center_tokens,
    chain,
    clip,
    consecutive_difference,
    discounted_return,
    drop_constant_groups,
    exponential_rank,
    extend_last,
    gae,
    gate,
    group_center,
    group_normalize,
    identity,
    kl_in_reward,
    leave_one_out,
    mark_reward,
    max_segments,
    modulate,
    only_where,
    outcome,
    pooled_normalize,
    potential_difference,
    prefix_difference,
    redistribute,
    renormalize_with_outcome,
    repeat_weight,
    rewards,
    saturation_weight,
    scale,
    scale_by_rms,
    segment_count,
    segment_gae,
    shift,
    signal,
    stated_value,
    step_potential,
    subtract_outcome_mean,
    sum_by_segment,
    sum_segments,
    to_tokens,
    watermark_gain,
    where,
)
from creditjax.naming import choose
from creditjax.objectives import (
    Aggregation,
    aligned_value,
    clipped_surrogate,
    combine,
    gated_supervised,
    in_turn,
    policy_gradient,
    weighted_cloning,
    with_value,
)
from creditjax.recipes.baselines import grpo_credit
from creditjax.recipes.registry import Parts, Sampler, is_on, register


def _clipped(eps_low: float, eps_high: float | None = None, mode="token_mean"):
    return clipped_surrogate(eps_low=eps_low, eps_high=eps_low if eps_high is None else eps_high, aggregation=mode)


@register("token_credit", claims=("scale_equivariant", "unbiased"))
def token_credit(value_coefficient: float = 0.5) -> Parts:
    """``r_t + V(s_{t+1}) - V(s_t)``: the one credit that adds up, depends on the past alone and is neutral (PACT).

    With the exact V (as `value` and `next_value`) this is `creditjax.exact.exact_credit`; with a critic of error e it
    is off by ``e_{t+1} - e_t``. It is `gae` at lam 0, gamma 1, not whitened. What observed positions change is nobody's
    credit, where `next_value` says what the state was worth before they came.
    """
    loss = with_value(policy_gradient(aggregation="seq_mean_token_sum"), value_coefficient, aggregation="token_mean")
    return Parts(chain(rewards(), gae(gamma=1.0, lam=0.0)), loss, Sampler(group_size=1))


@register("pact_critic", claims=("scale_equivariant",))
def pact_critic(
    correction: Literal["vtrace", "monte_carlo"] = "vtrace",
    gamma: float = 1.0,
    lam: float = 1.0,
    lam_critic: float = 1.0,
    rho_bar: float = 1.0,
    weight_bar: float = 2.0,
    value_coefficient: float = 0.5,
    eps_clip: float = 0.2,
) -> Parts:
    """The actor steps first; the critic then learns the value of the *updated* actor from the same batch (PACT).

    `correction` of the critic's target: "vtrace" (ratios clipped at `rho_bar`, trace `lam_critic`) or "monte_carlo"
    (returns weighted by the clipped ratio of all that follows, `weight_bar`). With an actor that did not move, it is
    the ordinary regression on lambda-returns. One optimiser steps both, so parameters that they share move twice, and
    a momentum of the actor's step goes on in the critic's.
    """
    critic = aligned_value(
        correction=correction,
        gamma=gamma,
        lam=lam_critic,
        rho_bar=rho_bar,
        weight_bar=weight_bar,
        coefficient=value_coefficient,
    )
    estimator = chain(rewards(), gae(gamma=gamma, lam=lam))
    return Parts(estimator, in_turn(_clipped(eps_clip), critic), Sampler(group_size=1))


@register("red")
def red(
    share: float = 1.0,
    beta: float = 0.1,
    critic: bool = True,
    strength: float = 1.0,
    gamma: float = 1.0,
    lam: float = 1.0,
    eps_clip: float = 0.2,
) -> Parts:
    """Each token is paid what it adds to a reward model's score of the text so far (RED, arXiv:2411.08302).

    ``r_t = share d_t + (1 - share) outcome 1[t is last] - beta log(π / π_ref)``, d the score with the token minus the
    score before it. The outcome is meant to be the score of the whole; then r adds up to it less ``share`` times the
    prompt's score. With a `critic` GAE follows (paper); without, RLOO's credit plus `strength` times the rollout's
    r around its mean (a reproduction's rule).
    """
    penalty = [kl_in_reward(beta=beta)] if is_on(beta) else []
    last = chain(outcome(), at_last_action())
    paid = chain(blend((prefix_difference("prefix_score", "prompt_score"), share), (last, 1 - share)), *penalty)
    if critic:
        return Parts(chain(paid, gae(gamma=gamma, lam=lam)), with_value(_clipped(eps_clip)), Sampler(group_size=1))
    compared = chain(outcome(), *penalty, leave_one_out())
    return Parts(blend((compared, 1.0), (chain(paid, center_tokens()), strength)), _clipped(eps_clip))


@register("rredcot")
def rredcot(lam: float = 1.0, mode: str = "blend", eps: float = 1e-6, eps_clip: float = 0.2) -> Parts:
    """The outcome, redistributed over reasoning segments by what each adds to the answer's probability (RREDCoT,
    arXiv:2606.06475).

    ``r_k = V_{k+1} - V_k``, the last segment gets ``outcome - V_k``, so that they add up to ``outcome - V_0``; divided
    by their root mean square in the group (nothing is centred: under the true V they are 0 on average). `mode` "blend"
    adds it to GRPO's credit, "pure" leaves it alone.
    """
    pieces = chain(redistribute("potential"), scale_by_rms(eps=eps), scale(lam))
    forms = {"blend": lambda: blend((grpo_credit(eps=eps), 1.0), (pieces, 1.0)), "pure": lambda: pieces}
    return Parts(choose("mode", mode, forms)(), _clipped(eps_clip))


@register("ma_rlhf")
def ma_rlhf(
    gamma: float = 1.0,
    lam: float = 0.95,
    weights: str = "equal",
    reward_reduce: str = "sum",
    beta: float = 0.0,
    eps_clip: float = 0.2,
    value_clip: float | None = 0.2,
) -> Parts:
    """Generalised advantages over macro actions instead of tokens (MA-RLHF, arXiv:2410.02743).

    The segments are the macro actions (`creditjax.segments_of_length` makes those of 5 tokens); all tokens of one share
    its advantage, and one `gamma` is one macro action. A macro's value is the mean of its tokens' values, `weights`
    "equal", "unit" (last token) or "decay" (1/j); its reward the sum ("sum", so that none is lost) or that same mean
    ("weighted", the code). `beta` > 0 takes the log-ratio to the reference off the rewards; 0 expects it inside.
    """
    penalty = [kl_in_reward(beta=beta)] if is_on(beta) else []
    reduced = {"sum": sum_by_segment, "weighted": lambda: average_by_segment(weights=weights)}
    paid = chain(rewards(), *penalty, choose("reward_reduce", reward_reduce, reduced)())
    critic = chain(signal("value"), average_by_segment(weights=weights))
    loss = with_value(_clipped(eps_clip), clip=value_clip)
    return Parts(chain(paid, segment_gae(critic, gamma=gamma, lam=lam)), loss, Sampler(group_size=1))


@register("grpo_vps", claims=("shift_invariant",))
def grpo_vps(
    lam: float = 1.0, mean_preserving: bool = False, ddof: int = 0, eps: float = 1e-6, eps_clip: float = 0.2
) -> Parts:
    """``A + lam |A| d_k``: segments that make the gold answer likelier are pushed up, others down (GRPO-VPS,
    arXiv:2604.20659).

    A is GRPO's credit and ``d_k = clip(p_{k+1} - p_k, -1, 1)`` the progress of the answer's probability. With
    `mean_preserving` d adds up to 0 over each rollout's tokens. Silent groups stay silent.
    """
    progress = chain(potential_difference("potential"), clip(-1.0, 1.0))
    if mean_preserving:
        progress = chain(progress, center_tokens())
    credit = grpo_credit(ddof, eps)
    refined = chain(credit, absolute(), to_tokens(), modulate(progress))
    return Parts(blend((credit, 1.0), (refined, lam)), _clipped(eps_clip, mode="seq_mean_token_mean"))


@register("mig_watermark", claims=("shift_invariant",))
def mig_watermark(
    process_weight: float = 1.0,
    sft_weight: float = 0.1,
    format_weight: float = 0.1,
    mode: str = "step",
    ddof: int = 0,
    eps: float = 1e-6,
    eps_clip: float = 0.2,
) -> Parts:
    """A step is paid by how far it lifts the answer's likelihood above its best so far: swings earn nothing (MIG,
    arXiv:2602.01034).

    The process channel reaches thinking tokens alone: the gains to go, normalised over all steps of the group (`mode`
    "step"), or their sum in the group ("trajectory"). The outcome channel, GRPO's on
    ``outcome + format_weight * format_ok``, reaches all. Rollouts that are right and well-formed are imitated too.
    """
    modes = {
        "step": lambda: (discounted_return(), pooled_normalize(ddof=ddof, eps=eps)),
        "trajectory": lambda: (sum_segments(), group_normalize(ddof=ddof, eps=eps)),
    }
    gains = chain(watermark_gain("potential"), *choose("mode", mode, modes)(), gate(signal("thinking_mask")))
    paid = blend((outcome(), 1.0), (signal("format_ok"), format_weight))
    credit = blend((gains, process_weight), (chain(paid, group_normalize(ddof=ddof, eps=eps)), 1.0))
    return Parts(credit, combine(_clipped(eps_clip), gated_supervised(coefficient=sft_weight)))


@register("dash")
def dash(stay_right: float = 0.0, stay_wrong: float = 1.0, max_length: int = 1024, eps_clip: float = 0.2) -> Parts:
    """Each segment up to an answer on the way is graded like a rollout that stopped there: ``s_k (c_k - mean outcome)``
    (DASH, arXiv:2607.00482).

    c is whether the answer that ends the segment is right. s is 1 where that changed and for the first segment, else
    `stay_right` (checking what is right already) or `stay_wrong`. Tokens of no segment share the last one's credit; a
    rollout without an answer on the way gets Dr. GRPO's.
    """
    answers = signal("commitment_correct")
    graded = chain(
        answers, subtract_outcome_mean(), modulate(chain(answers, repeat_weight(stay_right, stay_wrong))), extend_last()
    )
    estimator = where(segment_count(), graded, chain(outcome(), group_center()))
    return Parts(estimator, _clipped(eps_clip, mode=Aggregation("seq_mean_token_sum_norm", max_length)))


@register("pav")
def pav(alpha: float = 5.0, tries: int = 4, baseline: str = "leave_one_out") -> Parts:
    """RLOO's credit plus `alpha` times the progress that each step makes under a prover (PAV, arXiv:2410.08146).

    ``a_k = V_{k+1} - V_k`` (``outcome - V_k`` for the last step) with V the success probability of the best of `tries`
    tries of the base prover; 1 takes the signal as it is. The progress is not summed over later steps, and a step
    beside a boundary that was never valued (NaN) has none. `alpha` was 5 for a small and 3 for a larger policy.
    `baseline` is "leave_one_out" or "group_mean".
    """
    centre = choose("baseline", baseline, {"leave_one_out": leave_one_out, "group_mean": group_center})()
    credit = blend((chain(outcome(), centre), 1.0), (redistribute("prover_value", tries), alpha))
    return Parts(credit, policy_gradient(aggregation="seq_mean_token_sum"))


@register("edit", claims=("shift_invariant",))
def edit(
    lam: float = 0.5,
    delta: float = 0.1,
    variant: str = "trajectory",
    reduce: str = "sum",
    belief: str = "exact",
    context_weight: float = 0.0,
    ddof: int = 0,
    eps: float = 1e-6,
    eps_clip: float = 0.2,
) -> Parts:
    """A grader pays for steps in which its belief in the true mark falls (EDIT, arXiv:2606.06350).

    A fall of more than `delta` costs ``h_k = max(0, -(phi_{k+1} - phi_k) - delta)``; rises are free. With R the mark's
    closeness to the true one, `variant` "trajectory" is GRPO on ``R - lam * (sum or max of h)``, "step" is GRPO on R
    less ``lam h_k`` on the tokens of each step. "sft" is the stage before: rollouts whose flagged steps
    (`algebra.flag_steps`) were rewritten are cloned there, with `context_weight` elsewhere, if their mark is right.
    `belief` is "exact" (phi is the probability of the true mark) or "ordinal" (closeness of what is expected).
    """
    ordinal = choose("belief", belief, {"exact": False, "ordinal": True})
    harm = chain(belief_gain(ordinal=ordinal), scale(-1.0), shift(-delta), clip(0.0, math.inf))
    total = choose("reduce", reduce, {"sum": sum_segments, "max": max_segments})()
    compare = group_normalize(ddof=ddof, eps=eps)
    variants = {
        "trajectory": lambda: chain(blend((mark_reward(), 1.0), (chain(harm, total), -lam)), compare),
        "step": lambda: blend((chain(mark_reward(), compare), 1.0), (harm, -lam)),
        "sft": lambda: chain(
            signal("revision_mask"),
            scale(1 - context_weight),
            shift(context_weight),
            only_where(chain(mark_reward(), at_least(1.0))),
        ),
    }
    loss = weighted_cloning() if variant == "sft" else _clipped(eps_clip, mode="seq_mean_token_mean")
    return Parts(choose("variant", variant, variants)(), loss)


@register("spae", claims=("shift_invariant",))
def spae(
    alpha: float = 0.5,
    xi: float = 0.5,
    threshold: float = 0.9,
    whiten: bool = True,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
) -> Parts:
    """``A f_k + xi g_k``: less credit once the answer is settled, more where its potential rises (SPAE,
    arXiv:2601.03823).

    A is the centred outcome; ``f = 1 - alpha (1 - exp(-C))`` with C the number of earlier steps whose potential is
    above `threshold`; g the exponential of the potential's rise, ranked and centred over the batch. The potential is
    1.5 a c + 0.5 a - c of an early answer's correctness and confidence. Silent groups leave the loss, not the
    statistics of the batch.
    """
    phi = step_potential()
    compared = chain(outcome(), group_center(), drop_constant_groups(by="outcome"))
    settled = modulate(chain(phi, saturation_weight(threshold, alpha)))
    rises = chain(phi, consecutive_difference(), exponential_rank())
    credit = blend((chain(compared, settled), 1.0), (rises, xi))
    return Parts(
        chain(credit, batch_whiten() if whiten else identity()), _clipped(eps_low, eps_high), Sampler(dynamic=True)
    )


@register("ppr_renorm")
def ppr_renorm(
    mode: str = "gae",
    gamma: float = 1.0,
    lam: float = 1.0,
    final_center: bool = False,
    whiten: bool = True,
    ddof: int = 0,
    eps: float = 1e-6,
    eps_clip: float = 0.2,
) -> Parts:
    """Turns are paid ``(judge's score - 1/2) + (outcome - 1/2)``, the last one the outcome (PPR with ReNorm,
    arXiv:2509.25598).

    `mode` "gae" puts it at the ends of turns and needs a critic; "turn_norm" normalises it over all turns of the group;
    "return" is the plain sum to go. `whiten` belongs to "gae".
    """
    paid = chain(signal("process_reward"), renormalize_with_outcome(final_center))
    modes = {
        "gae": lambda: (at_segment_end(), gae(gamma=gamma, lam=lam), batch_whiten() if whiten else identity()),
        "turn_norm": lambda: (pooled_normalize(ddof=ddof, eps=eps),),
        "return": lambda: (discounted_return(),),
    }
    loss = _clipped(eps_clip)
    return Parts(chain(paid, *choose("mode", mode, modes)()), with_value(loss) if mode == "gae" else loss)


@register("brpo")
def brpo(
    lam: float = 0.5,
    prior: str = "uniform",
    variance_reduction: str = "brpo",
    max_length: int = 1024,
    eps_clip: float = 0.2,
) -> Parts:
    """Thinking is paid for the answers that it allows at every later budget, less two baselines: the rollout's own
    answers at earlier budgets and the group's (AnytimeReasoner, arXiv:2505.13438).

    `prior` over budgets is "uniform", "linear" or "base" (the last alone); `variance_reduction` "brpo", "v1only",
    "v2only" or "none". See `algebra.budget_relative`. The summaries are rollouts of their own, each group the
    summaries of one cut: they learn by ``dr_grpo``.
    """
    credit = budget_relative(lam=lam, prior=prior, reduction=variance_reduction)
    return Parts(credit, _clipped(eps_clip, mode=Aggregation("seq_mean_token_sum_norm", max_length)))


@register("genac")
def genac(gamma: float = 1.0, lam: float = 1.0, whiten: bool = True, eps_clip: float = 0.2) -> Parts:
    """Advantages over steps against a critic that reasons before it states a value (GenAC, arXiv:2604.10701).

    ``delta_k = gamma v_{k+1} - v_k``, ``outcome - v_k`` for the last step; v is the mean of what the critic's draws
    state as the step begins, the group's mean outcome where none states a number. The critic is yours and learns by
    `signals.generative_critic_loss`; the training loop has none. Tokens outside steps have no credit and no say in
    the whitening.
    """
    paid = chain(outcome(), at_last_segment(), segment_gae(stated_value(), gamma=gamma, lam=lam))
    return Parts(chain(paid, to_tokens(), batch_whiten() if whiten else identity()), _clipped(eps_clip))
