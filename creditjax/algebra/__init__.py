"""The algebra of credit: sources, transforms and combinators, and running what they compose."""

from creditjax.algebra.batch import (
    balance_loss_mass,
    batch_whiten,
    logit_penalty,
    rescale_valid,
    scale_by_largest_future_sum,
    subtract_batch_mean,
)
from creditjax.algebra.combinators import blend, chain, gate, modulate, route, where
from creditjax.algebra.core import Context, Schedule, Transform, linear_schedule, transform
from creditjax.algebra.credit import Credit, Level, lift
from creditjax.algebra.estimate import credit_trace, estimate, explain, needs
from creditjax.algebra.group import (
    certainty_modulation,
    drop_constant_groups,
    energy_baseline,
    group_center,
    group_normalize,
    leave_one_out,
    mean_normalize,
    state_normalize,
    subtract_first_mean,
    token_leave_one_out,
    top_margin,
    turn_normalize,
)
from creditjax.algebra.pointwise import clip, identity, scale
from creditjax.algebra.position import (
    add_potential_shaping,
    at_last_action,
    at_segment_end,
    branch_td,
    discounted_return,
    future_sum,
    gae,
    kl_in_reward,
    min_return,
    overlong_penalty,
    record_clip_scale,
    soft_min,
    sqrt_rescale,
    subtract_signal,
    sum_segments,
    sum_tokens,
    to_tokens,
    vtrace,
)
from creditjax.algebra.sources import (
    log_ratio,
    match_rewards,
    outcome,
    potential_difference,
    read_choice,
    reward_component,
    rewards,
    segment_rewards,
    shapley,
    signal,
    signal_is,
)

__all__ = [name for name in dir() if not name.startswith("_")]
