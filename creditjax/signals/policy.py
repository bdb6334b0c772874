"""Signals that one or two passes of a policy give."""

from collections.abc import Sequence

import jax

from creditjax.models.base import Params, Policy, Sampling
from creditjax.models.sampling import STATISTICS
from creditjax.trajectory import Trajectory

Array = jax.Array

PROBED = ("value", "next_value", "logprob_ref", "logprob_current", "entropy", *STATISTICS)
"""The signals that :func:`policy_probe` can make."""


def token_kl(
    policy: Policy, params: Params, ref_params: Params | None, batch: Trajectory, sampling: Sampling = Sampling()
) -> Array:
    """``KL(pi || pi_ref)`` over the vocabulary at every acted position, f32 ``[..., T]`` in nats, 0 elsewhere.

    Args:
      policy: a model with a `divergence` (the text and the control policies here have one).
      params: its current parameters.
      ref_params: those of the reference.
      batch: any leading axes.
      sampling: as the batch was sampled; only the temperature matters, see `divergence`.

    Raises:
      ValueError: there is no reference, or the policy cannot compare itself with another.
    """
    if ref_params is None:
        raise ValueError("signal token_kl: found no ref_params, wanted the reference policy's parameters")
    if not hasattr(policy, "divergence"):
        raise ValueError(
            f"signal token_kl: {type(policy).__name__} has no `divergence(params, other, batch, sampling)`"
        )
    return policy.divergence(params, ref_params, batch, sampling)


def policy_probe(
    policy: Policy,
    params: Params,
    batch: Trajectory,
    names: Sequence[str],
    ref_params: Params | None = None,
    sampling: Sampling = Sampling(),
) -> Trajectory:
    """Adds the named signals ``[..., T]`` to a batch; gradients are stopped, 0 outside `action_mask`.

    Names that it does not know are left to other producers, so a recipe's whole list may be passed. At most one pass of
    the policy and one of the reference are made.

    Args:
      policy: the model.
      params: its current parameters.
      batch: any leading axes.
      names: signals, those of `PROBED` are made here.
      ref_params: the reference policy's parameters, for `logprob_ref`.
      sampling: as the batch was sampled; static.

    Raises:
      ValueError: `logprob_ref` without `ref_params`, or a value from a policy without a value head.
    """
    wanted = [name for name in PROBED if name in names]
    made = {}
    if "logprob_ref" in wanted:
        if ref_params is None:
            raise ValueError("signal logprob_ref: found no ref_params, wanted the reference policy's parameters")
        made["logprob_ref"] = policy.evaluate(ref_params, batch, sampling).logprob
    if own := [name for name in wanted if name != "logprob_ref"]:
        out = policy.evaluate(params, batch, sampling, tuple(name for name in own if name in STATISTICS))
        found = {"logprob_current": out.logprob, **out._asdict(), **out.statistics}
        made |= {name: found[name] for name in own}
    if absent := [name for name, x in made.items() if x is None]:
        raise ValueError(f"signal {absent[0]}: {type(policy).__name__} has no value head")
    return batch.with_signals(**jax.lax.stop_gradient(made))
