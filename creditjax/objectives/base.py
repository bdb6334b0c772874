"""What an objective is: a frozen pytree that turns log-probabilities and credit into named ``(sum, count)`` pairs.

A new objective is one function. What comes before the ``*`` is what every objective sees, what comes after it are its
hyperparameters; the decorator makes it the public factory:

    @objective()
    def my_loss(new, credit, batch, *, eps: float = 0.2, aggregation: Aggregation | Mode = "token_mean") -> Terms:
        ...
        return {"policy": term}

    loss = my_loss(eps=0.1)                 # an Objective: floats are float32 leaves, everything else is static
    terms = loss(new, credit, batch)        # a dict of Term
    total(terms)                            # the scalar to differentiate

The counts never depend on `new`. So a step takes them from the whole batch first and adds up the gradients of
``total(loss(new, credit, part), counts(loss, credit, batch))`` over the parts: neither micro-batches nor shards change
the answer.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any, Concatenate, ParamSpec, Protocol

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import hyperparameters
from creditjax.models.base import PolicyOutput
from creditjax.objectives.aggregate import Aggregation
from creditjax.objectives.terms import Terms
from creditjax.trajectory import Trajectory, signal_spec, vote_mask, vote_weight

Array = jax.Array
P = ParamSpec("P")


class CreditLike(Protocol):
    """The part of :class:`creditjax.algebra.credit.Credit` that objectives use.

    Attributes:
      value: f32 ``[..., T]``, credit of each position.
      valid: bool ``[..., T]``, whether credit was assigned there at all.
      extras: what the estimator and `prepare` pass on, ``[..., T]`` each: `loss_mask` (replaces `action_mask`, in the
        loss *and* in its counts), `loss_weight` (multiplies the policy loss, leaves the counts alone), `clip_scale`
        (multiplies the clip range), `value_target`.
    """

    value: Array
    valid: Array
    extras: Mapping[str, Array]

    def with_extras(self, **extras: Array) -> "CreditLike":
        """A copy that carries more."""
        ...


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("leaves",),
    meta_fields=("function", "preparation", "needs", "statistics", "static"),
)
@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss with its hyperparameters; made by the factories, called as ``objective(new, credit, batch)``.

    Attributes:
      function: the function under :func:`objective`.
      preparation: its optional whole-minibatch stage.
      needs: fields and signals that the batch has to have.
      statistics: what it reads of the policy under update beside log-probability, entropy and value: entries of
        `PolicyOutput.statistics`, which whoever evaluates the policy for it asks for.
      static: the hyperparameters that are part of the program, as sorted items.
      leaves: the hyperparameters that are data: floats and inner objectives.
    """

    function: Callable[..., Terms]
    preparation: Callable[..., CreditLike] | None
    needs: tuple[str, ...]
    statistics: tuple[str, ...]
    static: tuple[tuple[str, Any], ...]
    leaves: dict[str, Any]

    def __call__(self, new: PolicyOutput, credit: CreditLike, batch: Trajectory) -> Terms:
        """Named terms of the batch, any leading axes. Gradients flow through `new` alone."""
        return self.function(new, credit, batch, **self.hyperparameters)

    def prepare(self, new: PolicyOutput, credit: CreditLike, batch: Trajectory) -> CreditLike:
        """Adds to `credit.extras` what the loss needs from the *whole* minibatch under the current policy.

        Called once a minibatch, before it is split. No gradient flows through what it adds.
        """
        if self.preparation is None:
            return credit
        return jax.lax.stop_gradient(self.preparation(new, credit, batch, **self.hyperparameters))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """All of them by name."""
        return {**dict(self.static), **self.leaves}

    @property
    def aggregation(self) -> Aggregation:
        """Its own aggregation; of a combination, its first part's; of a loss of pairs or groups, the token mean."""
        own = self.hyperparameters
        if "aggregation" in own:
            return own["aggregation"]
        inner = own.get("inner") or next(iter(own.get("parts", ())), None)
        return Aggregation() if inner is None else inner.aggregation

    def __repr__(self):
        return f"{self.function.__name__}({', '.join(f'{k}={v!s}' for k, v in self.hyperparameters.items())})"


def objective(
    *,
    needs: tuple[str, ...] | Callable[..., tuple[str, ...]] = (),
    statistics: tuple[str, ...] | Callable[..., tuple[str, ...]] = (),
    prepare: Callable[..., CreditLike] | None = None,
    above: Mapping[str, float] | None = None,
) -> Callable[[Callable[Concatenate[PolicyOutput, CreditLike, Trajectory, P], Terms]], Callable[P, Objective]]:
    """Makes a public factory of a loss function.

    The keyword-only parameters are the hyperparameters, as :mod:`creditjax.hyperparameters` describes; None in place of
    a float switches a feature off, and `aggregation` may be given as a bare mode.

    Args:
      needs: fields and signals that the loss cannot do without, or a function of the hyperparameters that returns them.
      statistics: what it reads of `new.statistics`, or a function of the hyperparameters that returns their names.
      prepare: called like the loss function, returns the credit with more extras; see :meth:`Objective.prepare`.
      above: exclusive lower bounds of float hyperparameters; those without one may not be negative. Python numbers are
        checked, arrays are not.

    Returns:
      The decorator. Its factories raise a `TypeError` for an unknown name or what is no number, and a `ValueError` for
      a bad value.
    """

    def decorate(function):
        def make(values: dict[str, Any]) -> Objective:
            for name, value in values.items():
                _check_bound(f"{function.__name__}: {name}", value, (above or {}).get(name))
            if "aggregation" in values:
                values["aggregation"] = Aggregation.of(values["aggregation"])
            leaves = {name: value for name, value in values.items() if _is_data(value)}
            static = tuple(sorted((name, value) for name, value in values.items() if name not in leaves))
            required = needs(**values) if callable(needs) else needs
            asked = statistics(**values) if callable(statistics) else statistics
            return Objective(function, prepare, required, asked, static, leaves)

        return hyperparameters.factory(function, make)

    return decorate


def _check_bound(label: str, value: Any, above: float | None) -> None:
    if isinstance(value, np.float32) and not (value >= 0 if above is None else value > above):
        raise ValueError(f"{label} = {value!s}, wanted {'>= 0' if above is None else f'> {above}'}")


def _is_data(value: Any) -> bool:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return all(isinstance(item, Objective) for item in value)
    return isinstance(value, np.float32 | np.ndarray | jax.Array | Objective)


def counts(objective: Objective, credit: CreditLike, batch: Trajectory) -> dict[str, Array]:
    """The count of every term, without a policy. `credit` has been through `prepare`."""
    nothing = jnp.zeros(batch.tokens.shape, jnp.float32)
    statistics = {name: statistic_like(name, nothing) for name in objective.statistics}
    terms = objective(PolicyOutput(nothing, nothing, nothing, nothing, statistics), credit, batch)
    return {name: term.count for name, term in terms.items()}


def statistic_like(name: str, x: Array) -> Array:
    """`x` ``[..., T]`` in the place of a statistic of the policy, its further axes of size 1."""
    return x.reshape(x.shape + (1,) * (len(signal_spec(name).axes) - 3))


def loss_mask(credit: CreditLike | None, batch: Trajectory) -> Array:
    """Which positions enter a loss and its counts, bool ``[..., T]``: the extra `loss_mask`, else `action_mask`."""
    return batch.action_mask if credit is None else credit.extras.get("loss_mask", batch.action_mask)


def learned_mask(credit: CreditLike, batch: Trajectory) -> Array:
    """Which positions a critic learns from, bool ``[..., T]``: those of the loss in rollouts that vote (are scored)."""
    return loss_mask(credit, batch) & vote_mask(batch)[..., None]


def loss_votes(credit: CreditLike, batch: Trajectory) -> Array:
    """Weight of each rollout in a loss over rollouts or pairs, f32 ``[..., G]``: its vote, 0 where it left the loss."""
    vote = vote_weight(batch)
    if "loss_mask" not in credit.extras:
        return vote
    return jnp.where(jnp.any(credit.extras["loss_mask"], axis=-1), vote, 0.0)


def over_groups(function: Callable[..., Any], batch: Trajectory) -> Callable[..., Any]:
    """`function` of arrays with a leading group axis ``[G, ...]``, for those of a batch with further axes before it."""
    if batch.tokens.ndim < 2:
        raise ValueError(f"tokens: shape {list(batch.tokens.shape)}, wanted [..., G, T]: the loss compares rollouts")
    for _ in batch.tokens.shape[:-2]:
        function = jax.vmap(function)
    return function


def require(batch: Trajectory, name: str, owner: str) -> Array:
    """The field or signal `name`, or a `ValueError` that says who needs it and what makes it."""
    if (value := batch.get(name)) is not None:
        return value
    source = f"made by {signal_spec(name).producer}" if name not in ("logprob", "segment") else "a field of Trajectory"
    raise ValueError(f"{owner} needs `{name}` [..., T] in the batch; {source}")


def require_statistic(new: PolicyOutput, name: str, owner: str) -> Array:
    """The entry `name` of ``new.statistics``, or a `ValueError` that says who needs it."""
    if name in new.statistics:
        return new.statistics[name]
    spec = signal_spec(name)
    raise ValueError(
        f"{owner} needs `{name}` [..., {', '.join(spec.axes[2:])}] in new.statistics; "
        f"evaluate the policy with statistics=objective.statistics ({spec.producer})"
    )


def require_extra(credit: CreditLike, name: str, owner: str, source: str) -> Array:
    """The extra `name` of the credit, or a `ValueError` that says who needs it and what makes it."""
    if name in credit.extras:
        return credit.extras[name]
    raise ValueError(f"{owner} needs `{name}` [..., T] in credit.extras; {source}")
