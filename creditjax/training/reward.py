"""Process-reward models that learn on the run's own rollouts, between the credit of a batch and the policy's update.

A learner says how a model starts (`fresh`), how badly it explains a batch (`loss`, a sum, and `count`, which does not
depend on the model), and with what optimiser it learns; the update step does the rest, over micro-batches and devices.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import optax

from creditjax.models.base import Params, Policy
from creditjax.process import prm
from creditjax.signals.implicit import OutcomeLoss, implicit_prm_loss
from creditjax.trajectory import Trajectory, vote_mask

Array = jax.Array


class RewardLearner(NamedTuple):
    """An implicit model (`creditjax.signals.implicit`): the policy as it is at first, trained on outcomes."""

    optimizer: optax.GradientTransformation
    beta: float = 0.05
    kind: OutcomeLoss = "ce"

    def fresh(self, params: Params) -> dict[str, Any]:
        """The model before its first update, and its optimiser's state."""
        return {"params": jax.tree.map(jnp.copy, params), "opt_state": self.optimizer.init(params)}

    def count(self, batch: Trajectory) -> Array:
        """Rollouts or pairs in the loss."""
        reference = batch.signals["logprob_ref"]
        return implicit_prm_loss(reference, reference, batch, kind=self.kind)[1]

    def loss(self, policy: Policy, params: Params, batch: Trajectory) -> Array:
        """The loss of a batch, summed."""
        logprob, reference = policy.evaluate(params, batch).logprob, batch.signals["logprob_ref"]
        return implicit_prm_loss(logprob, reference, batch, self.beta, self.kind)[0]


class StepRewardLearner(NamedTuple):
    """A head at the end of every segment (`creditjax.process.prm`), on the backbone of the policy as it is at first.

    With `labels` "outcome" every segment of a rollout is labelled with its outcome, so that the model learns the chance
    of success from there on (Wang et al. 2024, arXiv:2312.08935, with one completion a step). Otherwise `labels` is a
    signal ``[P, G, K]`` in [0, 1], such as `step_label`; NaN is no label.
    """

    optimizer: optax.GradientTransformation
    model: prm.StepRewardModel
    labels: str = "outcome"

    def fresh(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The policy's backbone with a head that scores every step 1/2, and the optimiser's state."""
        start = self.model.init(jax.random.key(0))
        backbone = {name: jax.tree.map(jnp.copy, params[name]) for name in start["backbone"]}
        start = {**start, "backbone": backbone}
        return {"params": start, "opt_state": self.optimizer.init(start)}

    def count(self, batch: Trajectory) -> Array:
        """Labelled segments."""
        return jnp.sum(self._labelled(batch)[1], dtype=jnp.float32)

    def loss(self, policy: Policy, params: Params, batch: Trajectory) -> Array:
        """Cross-entropy of the labelled segments, summed; the policy is not asked."""
        label, labelled = self._labelled(batch)
        right, wrong = self.model.logprob(params, prm.segment_stream(batch))
        flat = lambda x: x.reshape(-1, batch.num_segments)  # noqa: E731
        return prm.step_bce(right, wrong, flat(label), flat(labelled)).sum

    def _labelled(self, batch: Trajectory) -> tuple[Array, Array]:
        """Labels f32 ``[P, G, K]``, and where there is one, bool."""
        shape = (*batch.batch_shape, batch.num_segments)
        here = prm.segment_stream(batch).step_end.reshape(shape) >= 0
        here &= vote_mask(batch)[..., None]
        label = batch.outcome[..., None] if self.labels == "outcome" else batch.signals[self.labels]
        label = jnp.broadcast_to(label, shape).astype(jnp.float32)
        here &= jnp.isfinite(label)
        return jnp.clip(jnp.where(here, label, 0.0), 0.0, 1.0), here
