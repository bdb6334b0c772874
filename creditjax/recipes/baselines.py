"""The methods that everything else is compared with, each as its reference implementation computes it.

Where papers and code differ, the default follows the code that is named on the card, and an argument reaches the
other form.
"""

from creditjax.algebra import (
    batch_whiten,
    blend,
    chain,
    discounted_return,
    drop_constant_groups,
    energy_baseline,
    gae,
    group_center,
    group_normalize,
    identity,
    kl_in_reward,
    leave_one_out,
    mean_normalize,
    outcome,
    overlong_penalty,
    rescale_valid,
    reward_component,
    rewards,
    scale,
    subtract_batch_mean,
    subtract_first_mean,
    subtract_signal,
    to_tokens,
    top_margin,
    vtrace,
)
from creditjax.objectives import (
    Aggregation,
    Objective,
    cispo,
    clip_cov,
    clipped_surrogate,
    geometric_mean,
    kl_cov,
    policy_gradient,
    sapo,
    with_entropy,
    with_kl,
    with_value,
)
from creditjax.recipes.registry import Parts, Sampler, is_on, register

# The laws of an outcome that is normalised in its group.
NORMALIZED = ("shift_invariant", "scale_invariant", "sign_preserved")


def grpo_credit(ddof: int = 1, eps: float = 1e-6, single: str = "zero"):
    """``(R - mean) / (std + eps)`` of the outcome in its group: the credit that half of the field starts from."""
    return chain(outcome(), group_normalize(ddof=ddof, eps=eps, single=single))


def _with_kl(objective: Objective, beta: float) -> Objective:
    return with_kl(objective, beta=beta, kind="k3") if is_on(beta) else objective


@register("reinforce", tier="baseline", claims=("scale_equivariant", "unbiased", "policy_invariant"))
def reinforce(gamma: float = 1.0, causal: bool = True, count_observations: bool = False) -> Parts:
    """Return from each position on: ``G_t = r_t + gamma G_{t+1}`` (Williams 1992).

    With `causal` False every position gets the whole return. The gradient is exact for gamma 1; below, the usual
    ``gamma^t`` is left out.
    """
    returned = discounted_return(gamma=gamma, causal=causal, count_observations=count_observations)
    return Parts(chain(rewards(), returned), policy_gradient(aggregation="seq_mean_token_sum"))


@register("reinforce_baseline", tier="baseline", claims=("scale_equivariant", "unbiased"))
def reinforce_baseline(baseline: str = "running", gamma: float = 1.0) -> Parts:
    """Return minus a baseline (Williams 1992; Sutton and Barto, chapter 13).

    `baseline` is "running" (a moving average that the loop keeps: the signal `running_baseline`), "value" (a critic),
    "group" or "batch" (the mean return of the group's or the batch's rollouts, which contains the rollout itself and
    so scales the expected gradient by 1 - 1/n). A group of one has no group baseline: 0.
    """
    subtract = {
        "running": subtract_signal("running_baseline"),
        "value": subtract_signal("value"),
        "group": subtract_first_mean(),
        "batch": subtract_batch_mean(),
    }
    if baseline not in subtract:
        raise ValueError(f"baseline: {baseline!r}, wanted one of {sorted(subtract)}")
    estimator = chain(rewards(), discounted_return(gamma=gamma), subtract[baseline])
    return Parts(estimator, policy_gradient(aggregation="seq_mean_token_sum"))


@register("rloo", tier="baseline", claims=("shift_invariant", "scale_equivariant", "sign_preserved", "unbiased"))
def rloo(single: str = "zero", beta: float = 0.0) -> Parts:
    """``R_i - mean_{j != i} R_j`` (Ahmadian et al. 2024, arXiv:2402.14740): unbiased.

    With `beta` > 0 the rollout's summed log-ratio to the reference is taken off its reward first.
    """
    penalty = [kl_in_reward(beta=beta)] if is_on(beta) else []
    return Parts(
        chain(outcome(), *penalty, leave_one_out(single=single)), policy_gradient(aggregation="seq_mean_token_sum")
    )


@register("remax", tier="baseline", claims=("scale_equivariant", "unbiased"))
def remax() -> Parts:
    """Reward to go minus the reward of one greedy rollout (Li et al. 2023, arXiv:2310.10505). Works with one sample a
    prompt.
    """
    estimator = chain(rewards(), discounted_return(), subtract_signal("greedy_outcome"))
    return Parts(estimator, policy_gradient(aggregation="token_mean"), Sampler(group_size=1, greedy_baseline=True))


@register("grpo", tier="baseline", claims=NORMALIZED)
def grpo(eps: float = 1e-6, ddof: int = 1, single: str = "zero", eps_clip: float = 0.2, beta: float = 0.0) -> Parts:
    """Group-normalised outcome under a clipped ratio, averaged within and then over rollouts (Shao et al. 2024,
    arXiv:2402.03300).

    `beta` weighs the k3 divergence from a reference policy (0.04 in the paper, 0.001 or none in later practice).
    """
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="seq_mean_token_mean")
    return Parts(grpo_credit(ddof, eps, single), _with_kl(loss, beta))


@register(
    "dr_grpo",
    tier="baseline",
    claims=("shift_invariant", "scale_equivariant", "sign_preserved", "unbiased_up_to_scale"),
)
def dr_grpo(max_length: int = 1024, eps_clip: float = 0.2, single: str = "zero") -> Parts:
    """GRPO without the two biases: no division by the std, none by the rollout's length (Liu et al. 2025,
    arXiv:2503.20783).

    Token losses are summed and divided by the number of rollouts times `max_length`, the fixed generation budget.
    """
    constant = Aggregation("seq_mean_token_sum_norm", max_length)
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation=constant)
    return Parts(chain(outcome(), group_center(single=single)), loss)


@register("dapo", tier="baseline", claims=NORMALIZED)
def dapo(
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    dual_clip: float = 10.0,
    eps: float = 1e-6,
    max_length: int = 0,
    buffer: int = 0,
    factor: float = 1.0,
    dynamic: bool = True,
    max_batches: int = 10,
) -> Parts:
    """GRPO with clip-higher, dynamic sampling, a token-mean loss and soft overlong punishment (Yu et al. 2025,
    arXiv:2503.14476).

    `max_length` > 0 switches the punishment on; it goes down to `-factor` and no further, as in the paper
    (`overlong_penalty(floor=False)` goes on, as common code does). With `dynamic`, groups whose rollouts are all right
    or all wrong (signal `accuracy`), groups of one among them, leave the loss and its denominators, and the sampler is
    asked to replace them, up to `max_batches` batches a step.
    """
    punish = [overlong_penalty(max_length=max_length, buffer=buffer, factor=factor)] if max_length else []
    drop = [drop_constant_groups(by="accuracy")] if dynamic else []
    estimator = chain(outcome(), *punish, group_normalize(eps=eps), *drop)
    loss = clipped_surrogate(eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip, aggregation="token_mean")
    return Parts(estimator, loss, Sampler(group_size=16, dynamic=dynamic, max_batches=max_batches))


@register("gspo", tier="baseline", claims=NORMALIZED)
def gspo(eps_low: float = 3e-4, eps_high: float = 4e-4, eps: float = 1e-6) -> Parts:
    """GRPO's credit under one length-normalised ratio a rollout (Zheng et al. 2025, arXiv:2507.18071)."""
    loss = clipped_surrogate(eps_low=eps_low, eps_high=eps_high, ratio="sequence", aggregation="seq_mean_token_mean")
    return Parts(grpo_credit(eps=eps), loss)


@register("cispo", tier="baseline", claims=NORMALIZED)
def cispo_(eps_low: float = 1.0, eps_high: float = 0.28, eps: float = 1e-6) -> Parts:
    """GRPO's credit with the *weight* clipped and never the update: no token loses its gradient (MiniMax-M1,
    arXiv:2506.13585).
    """
    return Parts(grpo_credit(eps=eps), cispo(eps_low=eps_low, eps_high=eps_high))


@register("gpg", tier="baseline", claims=("scale_equivariant", "sign_preserved"))
def gpg(count_by: str = "reward", f_norm: float = 1.0) -> Parts:
    """Group-mean baseline, scaled up for rollouts without reward; plain policy gradient (Chu et al. 2025,
    arXiv:2504.02546). The credit is divided by `f_norm`.
    """
    if not is_on(f_norm):
        raise ValueError("f_norm = 0, wanted a number > 0")
    estimator = chain(outcome(), group_center(), rescale_valid(count_by=count_by), scale(1.0 / f_norm))
    return Parts(estimator, policy_gradient(aggregation="token_mean"))


@register("opo", tier="baseline", claims=("shift_invariant", "scale_equivariant"))
def opo(single: str = "zero") -> Parts:
    """Length-weighted group mean as the variance-optimal baseline of on-policy updates (Hao et al. 2025,
    arXiv:2505.23585).
    """
    return Parts(chain(outcome(), group_center(per="tokens", single=single)), policy_gradient(aggregation="token_mean"))


@register("reinforce_plus_plus", tier="baseline", claims=("shift_invariant", "scale_invariant"))
def reinforce_plus_plus(gamma: float = 1.0, beta: float = 0.0, eps_clip: float = 0.2) -> Parts:
    """Returns of a reward with the divergence inside, whitened over the batch (Hu et al. 2025, arXiv:2501.03262).

    `beta` > 0 takes the log-ratio to the reference off each token's reward (small in the paper; 0 expects it inside).
    Observation gaps are transparent; the reference code resets the return at each of them.
    """
    penalty = [kl_in_reward(beta=beta)] if is_on(beta) else []
    estimator = chain(rewards(), *penalty, discounted_return(gamma=gamma), batch_whiten())
    return Parts(estimator, clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean"))


@register("reinforce_plus_plus_baseline", tier="baseline", claims=("shift_invariant", "scale_invariant"))
def reinforce_plus_plus_baseline(shift: bool = True, eps_clip: float = 0.2) -> Parts:
    """Group-centred outcome, whitened over the tokens of the batch (Hu et al. 2025, arXiv:2501.03262).

    With `shift` False only the std is divided by, so that sums stay 0 and silent groups silent.
    """
    estimator = chain(outcome(), group_center(), to_tokens(), batch_whiten(shift=shift))
    return Parts(estimator, clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean"))


@register("ppo", tier="baseline")
def ppo(
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
    eps_clip: float = 0.2,
    dual_clip: float | None = 3.0,
    value_clip: float | None = 0.5,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.0,
    beta: float = 0.0,
) -> Parts:
    """Generalised advantages under a clipped ratio, with a critic (Schulman et al. 2017, arXiv:1707.06347).

    Defaults are those of language-model trainers; control wants ``gamma=0.99, lam=0.95``. `value_clip` None takes the
    plain squared error.
    """
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, dual_clip=dual_clip, aggregation="token_mean")
    loss = with_value(loss, coefficient=value_coefficient, clip=value_clip)
    loss = with_entropy(loss, coefficient=entropy_coefficient) if is_on(entropy_coefficient) else loss
    estimator = chain(rewards(), gae(gamma=gamma, lam=lam), batch_whiten() if whiten else identity())
    return Parts(estimator, _with_kl(loss, beta), Sampler(group_size=1))


@register("gae", tier="baseline")
def gae_(gamma: float = 1.0, lam: float = 1.0, whiten: bool = True, value_coefficient: float = 0.5) -> Parts:
    """Generalised advantages with a plain policy gradient (Schulman et al. 2016, arXiv:1506.02438): one update a
    batch.
    """
    estimator = chain(rewards(), gae(gamma=gamma, lam=lam), batch_whiten() if whiten else identity())
    loss = with_value(policy_gradient(aggregation="token_mean"), coefficient=value_coefficient)
    return Parts(estimator, loss, Sampler(group_size=1))


@register("vtrace", tier="baseline")
def vtrace_(
    gamma: float = 0.99,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    rho_pg_bar: float = 1.0,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.0,
) -> Parts:
    """Off-policy actor-critic credit with truncated importance weights (Espeholt et al. 2018, arXiv:1802.01561)."""
    estimator = chain(rewards(), vtrace(gamma=gamma, lam=lam, rho_bar=rho_bar, rho_pg_bar=rho_pg_bar))
    loss = with_value(policy_gradient(aggregation="token_mean"), coefficient=value_coefficient)
    loss = with_entropy(loss, coefficient=entropy_coefficient) if is_on(entropy_coefficient) else loss
    return Parts(estimator, loss, Sampler(group_size=1))


@register("optimal_token_baseline", tier="baseline", claims=("shift_invariant", "scale_equivariant"))
def optimal_token_baseline(eps: float = 1e-8) -> Parts:
    """Reward to go minus a position-wise group mean weighted by the score energy so far; prompts of a group are
    equally long.
    """
    estimator = chain(rewards(), discounted_return(), energy_baseline(eps=eps))
    return Parts(estimator, policy_gradient(aggregation="token_mean"))


@register("pass_at_k_grpo", tier="baseline", claims=NORMALIZED)
def pass_at_k_grpo(divide: bool = True, eps: float = 1e-6, eps_clip: float = 0.2) -> Parts:
    """Only the best rollout of a group is paid, by its lead over the second best: group pass@k (arXiv:2503.19595).

    `divide` also divides by the group's standard deviation.
    """
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(chain(outcome(), top_margin(divide=divide, eps=eps)), loss)


@register("gdpo", tier="baseline", claims=("shift_invariant", "scale_invariant"))
def gdpo(weights: tuple[float, ...] = (1.0, 1.0), eps: float = 1e-6, eps_clip: float = 0.2) -> Parts:
    """Normalises each reward in its group, sums, then whitens over the batch (Liu et al. 2026, arXiv:2601.05242).

    Normalising the sum instead lets the reward of the largest spread drown the others. One weight for each entry of
    the signal `reward_components`.
    """
    channels = [(chain(reward_component(i, len(weights)), group_normalize(eps=eps)), w) for i, w in enumerate(weights)]
    loss = clipped_surrogate(eps_low=eps_clip, eps_high=eps_clip, aggregation="token_mean")
    return Parts(chain(blend(*channels), to_tokens(), batch_whiten()), loss)


@register("max_rl", tier="baseline", claims=("scale_invariant", "sign_preserved"))
def max_rl(eps: float = 1e-6) -> Parts:
    """``(R - mean) / mean`` for rewards in [0, 1]: ascends the likelihood of success, truncated at order G
    (arXiv:2602.02710).
    """
    return Parts(chain(outcome(), mean_normalize(eps=eps)), policy_gradient(aggregation="seq_mean_token_sum"))


@register("sapo", tier="baseline", claims=NORMALIZED)
def sapo_(tau_positive: float = 1.0, tau_negative: float = 1.05, eps: float = 1e-6) -> Parts:
    """GRPO's credit under a soft gate in place of the clip, sharper for negative credit (Gao et al. 2025,
    arXiv:2511.20347).
    """
    return Parts(grpo_credit(eps=eps), sapo(tau_positive=tau_positive, tau_negative=tau_negative))


@register("gmpo", tier="baseline", claims=NORMALIZED)
def gmpo(eps_low: float = 0.4, eps_high: float = 0.4, eps: float = 1e-6) -> Parts:
    """GRPO's credit under the geometric mean of clipped token ratios (Zhao et al. 2025, arXiv:2507.20673)."""
    return Parts(grpo_credit(eps=eps), geometric_mean(eps_low=eps_low, eps_high=eps_high))


@register("clip_cov", tier="baseline", claims=NORMALIZED)
def clip_cov_(fraction: float = 2e-4, lowest: float = 1.0, highest: float = 5.0, eps: float = 1e-6) -> Parts:
    """GRPO's credit; the few tokens of highest covariance drop out of the loss (Cui et al. 2025, arXiv:2505.22617)."""
    return Parts(grpo_credit(eps=eps), clip_cov(fraction=fraction, lowest=lowest, highest=highest))


@register("kl_cov", tier="baseline", claims=NORMALIZED)
def kl_cov_(fraction: float = 2e-3, beta: float = 1.0, eps: float = 1e-6) -> Parts:
    """GRPO's credit; the few tokens of highest covariance pay a divergence penalty (Cui et al. 2025,
    arXiv:2505.22617).
    """
    return Parts(grpo_credit(eps=eps), kl_cov(fraction=fraction, beta=beta))
