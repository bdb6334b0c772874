"""Methods that give credit to the turns of an agent."""

from creditjax.algebra import (
    add_potential_shaping,
    at_last_action,
    balance_loss_mass,
    blend,
    chain,
    discounted_return,
    gae,
    group_center,
    group_normalize,
    linear_schedule,
    match_rewards,
    outcome,
    potential_difference,
    read_choice,
    record_clip_scale,
    route,
    segment_rewards,
    signal,
    signal_is,
    sqrt_rescale,
    state_normalize,
    sum_segments,
    turn_normalize,
)
from creditjax.objectives import clipped_surrogate, with_value
from creditjax.recipes.baselines import grpo_credit
from creditjax.recipes.registry import Parts, Sampler, register


@register("gigpo")
def gigpo(
    weight: float = 1.0, gamma: float = 0.95, divide: bool = False, eps: float = 1e-6, per: str = "rollouts"
) -> Parts:
    """Episode credit plus a comparison of turns acted in the same state (GiGPO, arXiv:2505.10978).

    ``A_k = A_episode + weight * (R_k - mean of R over the group's turns with the same state key)`` with R the
    discounted return of the turn rewards. `divide` normalises both by their std; `per` "segments" lets a rollout
    enter the episode mean once a turn, as the released code does, "rollouts" once.
    """
    episode = group_normalize(eps=eps, per=per) if divide else group_center(per=per)
    steps = chain(
        segment_rewards(), discounted_return(gamma=gamma), state_normalize("state_key", divide=divide, eps=eps)
    )
    loss = clipped_surrogate(aggregation="token_mean")
    return Parts(blend((chain(outcome(), episode), 1.0), (steps, weight)), loss)


# Potentials may be so alike in a turn that eps shows.
@register("a2tgpo", claims={"shift_invariant": {}, "scale_invariant": {"atol": 1e-3}})
def a2tgpo(
    alpha: float = 0.3,
    gamma: float = 1.0,
    eps: float = 1e-6,
    strength: float = 0.3,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
) -> Parts:
    """Information gain of each tool turn, normalised per turn index, accumulated and rescaled (A2TGPO,
    arXiv:2605.06200).

    ``D_k = sum_{j >= k} gamma^{j-k} n_j / sqrt(K - k)`` on top of GRPO's credit; the answer turn has the latter
    alone. The clip range of each turn's ratio is scaled by ``1 + strength * tanh(n_k / 2)``.
    """
    gain = chain(
        potential_difference("potential", answer_turn=False),
        turn_normalize(eps=eps),
        record_clip_scale(strength=strength),
        discounted_return(gamma=gamma),
        sqrt_rescale(),
    )
    loss = clipped_surrogate(eps_low=eps_low, eps_high=eps_high, ratio="segment", aggregation="token_mean")
    return Parts(blend((grpo_credit(eps=eps), 1.0), (gain, alpha)), loss)


@register("tips", claims=("unbiased", "policy_invariant"))
def tips(
    alpha: float = 0.02,
    gamma: float = 1.0,
    lam: float = 1.0,
    critic: bool = False,
    warmup: int = 0,
    eps_clip: float = 0.2,
) -> Parts:
    """Potential-based shaping by the answer's log-likelihood at turn boundaries, then GAE (TIPS, arXiv:2603.22293).

    Without a `critic` the value is 0 and credit is the shaped reward to go, with the potential as its baseline.
    `warmup` steps ramp `alpha` up.
    """
    shaping = add_potential_shaping("answer_logprob", scale=linear_schedule(0.0, alpha, warmup) if warmup else alpha)
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    if critic:
        advantage = gae(gamma=gamma, lam=lam)
        return Parts(chain(outcome(), at_last_action(), shaping, advantage), with_value(loss), Sampler(group_size=1))
    return Parts(chain(outcome(), at_last_action(), shaping, discounted_return(gamma=gamma)), loss)


@register("matchtir")
def matchtir(lam: float = 0.9, matcher: str = "exact", penalty: float = 0.0, eps: float = 1e-6) -> Parts:
    """Calls matched one to one with reference calls; credit of the rollout and of its turns, averaged
    (arXiv:2601.10712).

    `matcher` "exact" is the assignment of the paper, "greedy" what the release computes, "sinkhorn" its soft form.
    """
    reward = match_rewards(matcher=matcher, penalty=penalty)
    rollout = chain(reward, sum_segments(), group_normalize(eps=eps))
    turns = chain(reward, discounted_return(gamma=lam), turn_normalize(eps=eps))
    return Parts(blend((rollout, 0.5), (turns, 0.5)), clipped_surrogate(aggregation="token_mean"))


# Only the loss weights are the batch's.
@register("skillgate", claims=("shift_invariant", "scale_invariant", "prompt_independent", "micro_batches_agree"))
def skillgate(lam: float = 0.2, eps: float = 1e-6, eps_clip: float = 0.2) -> Parts:
    """Disjoint channels: execution tokens learn from the outcome, skill names from the choice of skill
    (arXiv:2608.18852).

    The wrapper of a read call belongs to neither. Both channels have a loss mass that does not depend on their number
    of tokens.
    """
    channels = route((signal_is("read_call", -1), grpo_credit(eps=eps)), (signal("read_identity"), read_choice()))
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(chain(channels, balance_loss_mass(weight=lam)), loss)
