"""Methods that judge the steps of a rollout: labels, scores and verified rewards of steps next to the outcome.

Standard deviations over a group are those of the population (`ddof` 0), as these papers' own definitions have it; the
baselines of `baselines.py` divide by G - 1.
"""

from typing import Literal

from creditjax.algebra import (
    at_last_action,
    at_last_segment,
    at_segment_end,
    batch_turn_normalize,
    batch_whiten,
    blend,
    chain,
    clip,
    cosine_schedule,
    critique_vote,
    cumulative_product,
    drop_silent_groups,
    every_segment,
    exponential_schedule,
    gae,
    good_prefix,
    group_center,
    group_mean,
    group_normalize,
    identity,
    judged_wrong,
    kl_in_reward,
    leave_one_out,
    linear_schedule,
    log_ratio,
    outcome,
    pooled_normalize,
    rows_where,
    scale,
    share_segments,
    shift,
    signal,
    step_return,
    subtract_rollout_mean,
    sum_by_segment,
    sum_segments,
    to_segments,
    token_leave_one_out,
    turn_normalize,
    where,
)
from creditjax.naming import choose, nearest
from creditjax.objectives import clipped_surrogate, step_surrogate, with_kl, with_value
from creditjax.recipes.baselines import grpo_credit
from creditjax.recipes.registry import Parts, Sampler, is_on, register


@register("sum_form_prm", claims=("shift_invariant",))
def sum_form_prm(
    gamma: float = 1.0,
    channels: str = "split",
    outcome_weight: float = 1.0,
    whiten: bool = True,
    eps_clip: float = 0.2,
) -> Parts:
    """Sum of the process rewards of this and later steps, one `gamma` a step: what PURE argues against
    (arXiv:2504.15275).

    `channels` "split" gives the outcome RLOO's baseline of its own, "joint" pays it with the last step (as PURE's code
    does) under one token-level baseline. With gamma 1 and "split" this is ``pure`` in mode "sum". Every step that was
    acted in discounts, whether it has a score or not.
    """
    process = chain(signal("process_reward"), at_segment_end())
    baseline = (step_return(gamma), token_leave_one_out())
    if channels == "split":
        credit = blend((chain(outcome(), leave_one_out()), outcome_weight), (chain(process, *baseline), 1.0))
    elif channels == "joint":
        paid = blend((process, 1.0), (chain(outcome(), at_last_action()), outcome_weight))
        credit = chain(paid, *baseline)
    else:
        raise ValueError(f"channels: {channels!r}, {nearest(channels, ('split', 'joint'))}")
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(chain(credit, batch_whiten() if whiten else identity()), loss)


@register("decaying_process_reward", claims=("shift_invariant",))
def decaying_process_reward(
    weight: float = 0.5,
    decay_steps: float = 200.0,
    schedule: str = "linear",
    half_life: float | None = None,
    mode: str = "trajectory",
    ddof: int = 0,
    eps: float = 1e-6,
    eps_clip: float = 0.2,
) -> Parts:
    """GRPO on ``outcome + w(n) * mean process reward of the turns``, w falling to 0 at training step `decay_steps`
    (When Fine-Grained Credit Assignment Helps and Hurts, seed study).

    `schedule` is "linear", "cosine", "exp" (halves every `half_life` steps, by default an eighth of `decay_steps`) or
    "constant". Half of the training steps is a good `decay_steps`. `mode` "turn" adds ``w(n)`` times the process
    reward, normalised over all turns of the group, to GRPO's credit instead. The mean does not pay for more turns.
    """
    weights = {
        "linear": lambda: linear_schedule(weight, 0.0, decay_steps),
        "cosine": lambda: cosine_schedule(weight, 0.0, decay_steps),
        "exp": lambda: exponential_schedule(weight, 0.0, decay_steps, half_life),
        "constant": lambda: weight,
    }
    w, process = choose("schedule", schedule, weights)(), signal("process_reward")
    modes = {
        "trajectory": lambda: chain(
            blend((outcome(), 1.0), (chain(process, share_segments(), sum_segments()), w)),
            group_normalize(ddof=ddof, eps=eps),
        ),
        "turn": lambda: blend((grpo_credit(ddof, eps), 1.0), (chain(process, pooled_normalize(ddof=ddof, eps=eps)), w)),
    }
    return Parts(
        choose("mode", mode, modes)(),
        clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="seq_mean_token_mean"),
    )


@register("capo", claims=("shift_invariant",))
def capo(
    outcome_weight: float = 2.0,
    process_weight: float = 1.0,
    vote: str = "majority",
    ddof: int = 0,
    eps: float = 1e-6,
    eps_clip: float = 0.2,
) -> Parts:
    """``W_o * outcome - W_p * wrong(step)`` per token, normalised over all tokens of the group (CAPO,
    arXiv:2508.02298).

    Several critiques flag wrong steps; `vote` is "majority", "intersection" (conservative) or "average". With
    ``W_o > W_p`` a right answer with a wrong step still beats a wrong answer.
    """
    reward = blend((outcome(), outcome_weight), (critique_vote(vote), -process_weight))
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(chain(reward, pooled_normalize(ddof=ddof, eps=eps)), loss)


@register("vpr", claims=("shift_invariant",))
def vpr(
    mode: str = "mean_then_batch_whiten",
    outcome_scale: float = 1.0,
    min_group_size: int = 4,
    eps: float = 1e-8,
    eps_clip: float = 0.2,
    commit: Literal["max", "sample"] = "max",
) -> Parts:
    """Candidate actions of one state, scored by an oracle and compared with each other alone (Verifiable Process
    Rewards, arXiv:2605.10325).

    A *prompt* is a visited state and its group the candidates drawn there (`samplers.state_groups` makes such
    batches); the outcome of a row is the terminal success of its action. States whose candidates score alike leave the
    loss. `mode` "mean_then_batch_whiten" centres by state and divides by the std of the batch, "group_whiten" (the
    code's default) divides by that of the state. "turn_index" is for ordinary rollouts, one action a state: the
    `process_reward` of each turn, the outcome paid with the last, is normalised over the batch's turns of that index,
    or over all where fewer than `min_group_size` rollouts reach it. With state groups the episode goes on with one of
    the best candidates, or with any (`commit` "sample"), which keeps to the states that the policy itself visits.
    """
    centre = (drop_silent_groups(), group_center(), batch_whiten(ddof=0, eps=eps, under_root=False))
    divide = (drop_silent_groups(), group_normalize(ddof=0, eps=eps))
    by_state = blend((signal("candidate_reward"), 1.0), (outcome(), outcome_scale))
    paid = chain(outcome(), at_last_segment())
    by_turn = blend((signal("process_reward"), 1.0), (paid, outcome_scale), require="all")
    modes = {
        "mean_then_batch_whiten": lambda: chain(by_state, *centre),
        "group_whiten": lambda: chain(by_state, *divide),
        "turn_index": lambda: chain(by_turn, batch_turn_normalize(least=min_group_size, ddof=0, eps=eps)),
    }
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    sampler = Sampler(group_size=4, commit="" if mode == "turn_index" else commit)
    return Parts(choose("mode", mode, modes)(), loss, sampler)


@register("vppo_prefix")
def vppo_prefix(
    threshold: float = 0.8,
    alpha: float = 0.5,
    margin: str = "prompt",
    margin_size: float = 0.1,
    relu: bool = False,
    eps_clip: float = 0.2,
) -> Parts:
    """A wrong rollout keeps ``alpha`` on the prefix before its first error, a right one earns 1 everywhere; minus the
    group's mean (VPPO, arXiv:2601.18984).

    The first error is the first step whose score is below `threshold`; the prefix is shortened by a `margin`: the
    length of the "prompt", a "ratio" `margin_size` of the rollout, or a "fixed" number of tokens. `relu` keeps good
    prefixes from being pushed down. Outcomes are 0 (wrong) or 1.
    No division by a std.
    """
    prefix = good_prefix(threshold=threshold, margin=margin, size=margin_size)
    rescued = where(outcome(), outcome(), chain(prefix, scale(alpha)))
    spared = [where(prefix, clip(low=0.0, high=float("inf")), identity())] if relu else []
    return Parts(
        chain(rescued, subtract_rollout_mean(), *spared), clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip)
    )


@register("tp_grpo_thought")
def tp_grpo_thought(
    alpha: float = 0.5,
    force_last: bool = True,
    ddof: int = 0,
    eps: float = 1e-6,
    beta: float = 0.001,
    eps_clip: float = 0.2,
) -> Parts:
    """GRPO, less ``alpha * accuracy of the group`` on wrong thoughts of right solutions, and 0 on the thoughts of wrong
    solutions that did not lead to the answer (TP-GRPO, arXiv:2507.23317). Outcomes are 0 (wrong) or 1.

    A thought is a run of steps with equal `thought_label` (right, or in a wrong solution matched: 1). The paper adds up
    the rewards of this and later thoughts; labels of neighbouring thoughts differ, so that sum is the closed form here,
    and no merging is needed. `force_last` counts the last step as right or matched. The weight of the
    divergence, `beta`, is our choice.
    """
    grpo = grpo_credit(ddof, eps)
    blamed = where(
        outcome(),
        blend((grpo, 1.0), (chain(outcome(), group_mean()), -alpha)),
        chain(grpo, scale(0.0)),
    )
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="seq_mean_token_mean")
    return Parts(
        where(judged_wrong("thought_label", spare_last=force_last), blamed, grpo),
        with_kl(loss, beta=beta) if is_on(beta) else loss,
    )


@register("scrl", claims=("shift_invariant",))
def scrl(correction: bool = True, ddof: int = 0, eps: float = 1e-6, eps_clip: float = 0.2) -> Parts:
    """Subproblems of rising difficulty, each normalised over the group, none paid after the first failure; mixed with
    GRPO on rollouts of the bare problem (SCRL, arXiv:2605.22074).

    The two kinds of rollouts (`is_curriculum`) share a group and are compared among themselves. An answer that was not
    given counts as failed, in mean and std too.
    """
    corrected = [cumulative_product()] if correction else []
    curriculum = chain(
        every_segment("subproblem_reward"), rows_where("is_curriculum"), *corrected, turn_normalize(ddof=ddof, eps=eps)
    )
    bare = chain(outcome(), rows_where("is_curriculum", False), group_normalize(ddof=ddof, eps=eps))
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(blend((curriculum, 1.0), (bare, 1.0)), loss)


@register("prorag", claims=("shift_invariant",))
def prorag(prm_beta: float = 0.5, ddof: int = 0, eps: float = 1e-6, eps_clip: float = 0.2) -> Parts:
    """GRPO plus `prm_beta` times ``PRM score + format`` of each step, normalised over all steps of the group (ProRAG;
    release lilinwz/ProRAG).

    The outcome is ``2 F1 + format of the trace``; how it is made is the task's business. A step that was never scored
    has no say in the normalisation and gets the outcome's credit alone.
    """
    score = blend((signal("process_reward"), 1.0), (signal("step_format"), 1.0), require="all")
    steps = chain(score, pooled_normalize(ddof=ddof, eps=eps))
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(blend((grpo_credit(ddof, eps), 1.0), (steps, prm_beta)), loss)


@register("prlcoder")
def prlcoder(
    gamma: float = 1.0,
    lam: float = 0.95,
    outcome_weight: float = 1.0,
    beta: float = 0.05,
    length_normalize: bool = True,
    whiten: bool = True,
    eps_clip: float = 0.2,
) -> Parts:
    """PPO on ``2 p - 1`` at the end of each line, divided by the number of lines, plus the outcome, less the divergence
    (PRLCoder, arXiv:2502.01715).

    p is the reward model's probability that the line is right; `signals.steps.mutation_labels` makes its labels.
    """
    share = [share_segments()] if length_normalize else []
    lines = chain(signal("step_score"), scale(2.0), shift(-1.0), *share, at_segment_end())
    paid = blend((lines, 1.0), (chain(outcome(), at_last_action()), outcome_weight))
    penalty = [kl_in_reward(beta=beta)] if is_on(beta) else []
    credit = chain(paid, *penalty, gae(gamma=gamma, lam=lam), batch_whiten() if whiten else identity())
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(credit, with_value(loss), Sampler(group_size=1))


@register("oprl", claims=("shift_invariant",))
def oprl(
    beta: float = 0.05,
    alpha: float = 1.0,
    ratio_level: str = "step",
    ddof: int = 0,
    eps: float = 1e-6,
    eps_clip: float = 0.2,
) -> Parts:
    """GRPO plus `alpha` times the implicit reward of each turn, ``beta * log(pi_prm / pi_old)`` of its tokens,
    normalised over all turns of the group (OPRL, arXiv:2509.19199).

    The reward model learns from pairs of the same rollouts (`signals.implicit_pair_loss`). `ratio_level`
    "step" clips one ratio a turn, the product over its tokens, and averages over turns; "token" is the common variant.
    Tokens outside turns earn nothing.
    """
    implicit = chain(
        log_ratio("logprob_prm", "logprob"), scale(beta), sum_by_segment(), pooled_normalize(ddof=ddof, eps=eps)
    )
    losses = {"step": step_surrogate, "token": clipped_surrogate}
    episode = chain(grpo_credit(ddof, eps), to_segments())
    return Parts(
        blend((episode, 1.0), (implicit, alpha)),
        choose("ratio_level", ratio_level, losses)(eps_low=eps_clip, eps_high=eps_clip),
    )
