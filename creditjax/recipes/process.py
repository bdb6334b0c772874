"""Methods that use a process reward: of steps, of tokens, given or implicit."""

from creditjax.algebra import (
    at_last_action,
    at_segment_end,
    batch_whiten,
    blend,
    chain,
    future_sum,
    identity,
    leave_one_out,
    log_ratio,
    min_return,
    outcome,
    scale,
    scale_by_largest_future_sum,
    signal,
    soft_min,
    token_leave_one_out,
)
from creditjax.naming import choose
from creditjax.objectives import clipped_surrogate
from creditjax.recipes.registry import Parts, Sampler, register


@register("pure")
def pure(
    temperature: float = 0.1,
    mode: str = "soft_min",
    outcome_weight: float = 1.0,
    whiten: bool = True,
    eps_clip: float = 0.2,
) -> Parts:
    """The value of a solution is that of its worst step, not the sum of all (Cheng et al. 2025, arXiv:2504.15275).

    `mode` is "soft_min" (scores weighted by ``softmax(-score / temperature)``), "strict_min" (the smallest score
    still to come) or "sum" (what the paper argues against). The process channel has a token-level leave-one-out
    baseline, the outcome RLOO's.
    """
    forms = {
        "soft_min": lambda: (soft_min(temperature), at_segment_end(), future_sum()),
        "strict_min": lambda: (min_return(),),
        "sum": lambda: (at_segment_end(), future_sum()),
    }
    process = chain(signal("process_reward"), *choose("mode", mode, forms)(), token_leave_one_out())
    joined = blend((chain(outcome(), leave_one_out()), outcome_weight), (process, 1.0))
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(chain(joined, batch_whiten() if whiten else identity()), loss)


@register("prime", claims=("shift_invariant",))
def prime(
    beta: float = 0.05,
    norm: str = "batch",
    gamma: float = 1.0,
    outcome_gamma: float = 1.0,
    whiten: bool = True,
    eps_clip: float = 0.2,
    kept: tuple[float, float] = (0.2, 0.8),
) -> Parts:
    """The log-ratio of an online implicit reward model is a token reward, next to the outcome (Cui et al. 2025,
    arXiv:2502.01456). Prompts of a mean outcome outside `kept` are replaced, up to four batches a step (released code).

    `norm` "batch" scales it so that no suffix sum of the batch leaves [-1, 1] (released code), "none" by `beta`
    (paper). Each channel has a leave-one-out baseline of its own. The loop trains the model on the same outcomes.
    """
    if norm not in ("batch", "none"):
        raise ValueError(f"norm: {norm!r}, wanted 'batch' or 'none'")
    low, high = kept
    if not 0.0 <= low <= high <= 1.0:
        raise ValueError(f"kept: {low} to {high}, wanted 0 <= low <= high <= 1")
    bounded = scale_by_largest_future_sum() if norm == "batch" else scale(beta)
    implicit = chain(
        log_ratio("logprob_prm", "logprob_ref"), bounded, token_leave_one_out("rollouts"), future_sum(gamma)
    )
    verified = chain(outcome(), leave_one_out(), at_last_action(), future_sum(outcome_gamma))
    joined = blend((verified, 1.0), (implicit, 1.0))
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    sampler = Sampler(group_size=4, dynamic=True, accuracy=kept, max_batches=4)
    return Parts(chain(joined, batch_whiten() if whiten else identity()), loss, sampler)
