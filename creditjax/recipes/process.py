"""Methods that use a process reward: of steps, of tokens, given or implicit."""

from creditjax.algebra import (
    at_last_action,
    at_segment_end,
    batch_whiten,
    blend,
    chain,
    future_sum,
    identity,
    kl_in_reward,
    leave_one_out,
    log_ratio,
    min_return,
    outcome,
    scale,
    scale_by_largest_future_sum,
    signal,
    soft_min,
    sum_tokens,
    token_leave_one_out,
)
from creditjax.naming import choose
from creditjax.objectives import clipped_surrogate
from creditjax.recipes.registry import Parts, Sampler, is_on, register


@register("pure")
def pure(
    temperature: float = 0.1,
    mode: str = "soft_min",
    channels: str = "split",
    outcome_weight: float = 1.0,
    beta: float = 0.0,
    whiten: bool = True,
    eps_clip: float = 0.2,
) -> Parts:
    """The value of a solution is that of its worst step, not the sum of all (Cheng et al. 2025, arXiv:2504.15275).

    `mode` is "soft_min" (scores weighted by ``softmax(-score / temperature)``), "strict_min" (the smallest score
    still to come) or "sum" (what the paper argues against). Scores have a token-level leave-one-out baseline. The
    outcome has RLOO's (`channels` "split", the paper), or is paid with the last token under the one baseline ("joint",
    the released code). `beta` is the weight of the divergence from the reference in the reward (0.001 in the code). The
    code's baseline averages over padded lengths; here it is over tokens, so that padding changes nothing.
    """
    forms = {
        "soft_min": lambda: (soft_min(temperature), at_segment_end(), future_sum()),
        "strict_min": lambda: (min_return(),),
        "sum": lambda: (at_segment_end(), future_sum()),
    }
    returns = chain(signal("process_reward"), *choose("mode", mode, forms)())
    paid = choose("channels", channels, {"split": 0.0, "joint": outcome_weight})
    if channels == "joint" or is_on(beta):
        penalty = [kl_in_reward(beta=beta, kind="k3")] if is_on(beta) else []
        rest = chain(outcome(), at_last_action(), scale(paid), *penalty, future_sum())
        returns = blend((returns, 1.0), (rest, 1.0))
    joined = chain(returns, token_leave_one_out())
    if channels == "split":
        joined = blend((chain(outcome(), leave_one_out()), outcome_weight), (joined, 1.0))
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(chain(joined, batch_whiten() if whiten else identity()), loss)


@register("prime", claims=("shift_invariant",))
def prime(
    beta: float = 0.05,
    norm: str = "batch",
    granularity: str = "token",
    baseline: str = "paper",
    gamma: float = 1.0,
    outcome_gamma: float = 1.0,
    whiten: bool = True,
    eps_clip: float = 0.2,
    kept: tuple[float, float] = (0.2, 0.8),
) -> Parts:
    """The log-ratio of an online implicit reward model is a token reward, next to the outcome (Cui et al. 2025,
    arXiv:2502.01456). Prompts of a mean outcome outside `kept` are replaced, up to four batches a step (released code).

    `norm` "batch" scales it so that no suffix sum of the batch leaves [-1, 1] (released code), "none" by `beta`
    (paper). Each channel has a leave-one-out baseline of its own: of a token's reward the mean of the others' means
    (`baseline` "paper"), or all means with the difference scaled up ("code"). `granularity` "whole" pays the sum of
    a rollout's rewards with its last token. The loop trains the model on the same outcomes.
    """
    if norm not in ("batch", "none"):
        raise ValueError(f"norm: {norm!r}, wanted 'batch' or 'none'")
    low, high = kept
    if not 0.0 <= low <= high <= 1.0:
        raise ValueError(f"kept: {low} to {high}, wanted 0 <= low <= high <= 1")
    bounded = scale_by_largest_future_sum() if norm == "batch" else scale(beta)
    average = choose("baseline", baseline, {"paper": "rollouts", "code": "all"})
    forms = {
        "token": lambda: (token_leave_one_out(average),),
        "whole": lambda: (sum_tokens(), leave_one_out(), at_last_action()),
    }
    compared = choose("granularity", granularity, forms)()
    implicit = chain(log_ratio("logprob_prm", "logprob_ref"), bounded, *compared, future_sum(gamma))
    verified = chain(outcome(), leave_one_out(), at_last_action(), future_sum(outcome_gamma))
    joined = blend((verified, 1.0), (implicit, 1.0))
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    sampler = Sampler(group_size=4, dynamic=True, accuracy=kept, max_batches=4)
    return Parts(chain(joined, batch_whiten() if whiten else identity()), loss, sampler)
