"""Every loop of a looped policy read out: log-probability of the tokens, and where it would have left (RLTT,
arXiv:2602.10520).
"""

from collections.abc import Sequence

import jax

from creditjax.models.base import Params, Policy, Sampling
from creditjax.trajectory import Trajectory

Array = jax.Array

LOOPED = ("loop_logprob", "exit_pdf")
"""The signals of :func:`loop_signals`."""


def loop_signals(
    policy: Policy, params: Params, batch: Trajectory, names: Sequence[str] = LOOPED, sampling: Sampling = Sampling()
) -> dict[str, Array]:
    """Signals of `LOOPED`, f32 ``[..., T, L]``; a policy that does not loop has L = 1.

    A loss that needs their gradient asks for them as statistics of the policy under update instead.
    """
    wanted = tuple(name for name in LOOPED if name in names)
    found = policy.evaluate(params, batch, sampling, wanted).statistics
    return {name: found[name] for name in wanted}
