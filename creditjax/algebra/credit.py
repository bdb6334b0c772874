"""Credit: what an estimator says, at the level at which it says it, and the one lift to tokens."""

from collections.abc import Mapping
import dataclasses
import enum
from typing import Any

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.kernels import segments
from creditjax.trajectory import Trajectory

Array = jax.Array


class Level(enum.Enum):
    """Who a credit is assigned to; the value is the shape of one rollout's credit."""

    TRAJECTORY = ""
    SEGMENT = "K"
    TOKEN = "T"
    AGENT = "N"
    AGENT_TOKEN = "T, N"

    def __repr__(self) -> str:
        return f"{self.name}[{self.value}]"


@dataclasses.dataclass(frozen=True)
class Credit:
    """Credit of a group ``[G, ...]`` or a batch ``[P, G, ...]`` at one level.

    Attributes:
      value: f32, the credit; 0 where none is assigned.
      valid: bool, same shape: whether credit was assigned at all, which is not the same as a credit of 0.
      extras: what the objective needs beside the credit, at token level (``[..., T]``): `value_target`, `clip_scale`,
        `loss_mask`, `loss_weight`.
      level: whom the last axes stand for, static.
    """

    value: Any
    valid: Any
    extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    level: Level = Level.TOKEN

    def replace(self, **changes) -> "Credit":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def with_value(self, value: Array) -> "Credit":
        """The same credit with other numbers: 0 wherever none is assigned."""
        return self.replace(value=numerics.select(value, self.valid))

    def with_extras(self, **extras: Array) -> "Credit":
        """A copy that carries more for the objective."""
        return self.replace(extras={**self.extras, **extras})


jax.tree_util.register_dataclass(Credit, data_fields=["value", "valid", "extras"], meta_fields=["level"])


def credit(value: Array, valid: Array, level: Level) -> Credit:
    """A fresh credit, 0 in float32 wherever `valid` does not hold."""
    return Credit(numerics.select(value, valid), valid, {}, level)


# What a lift to tokens needs from the batch, by level.
LIFT_NEEDS: dict[Level, tuple[str, ...]] = {
    Level.TRAJECTORY: (),
    Level.SEGMENT: ("segment",),
    Level.TOKEN: (),
    Level.AGENT: ("agent",),
    Level.AGENT_TOKEN: ("agent",),
}


def lift(x: Credit, batch: Trajectory) -> Credit:
    """Credit of any level as credit of tokens: every acted position receives the credit of the one it belongs to.

    Positions outside `action_mask`, or that belong to no segment or agent, are assigned no credit. Works with any
    leading axes.
    """
    mask = batch.action_mask
    match x.level:
        case Level.TOKEN:
            value, valid = x.value, x.valid
        case Level.TRAJECTORY:
            value, valid = x.value[..., None], x.valid[..., None]
        case Level.SEGMENT:
            value = segments.broadcast(x.value, batch.segment)
            valid = segments.broadcast(x.valid, batch.segment)
        case Level.AGENT:
            value = segments.broadcast(x.value, batch.signals["agent"])
            valid = segments.broadcast(x.valid, batch.signals["agent"])
        case Level.AGENT_TOKEN:
            agents = batch.signals["agent"]
            index = jnp.maximum(agents, 0)[..., None]
            value = jnp.take_along_axis(x.value, index, axis=-1)[..., 0]
            valid = jnp.take_along_axis(x.valid, index, axis=-1)[..., 0] & (agents >= 0)
    valid = jnp.broadcast_to(mask & valid, mask.shape)
    return Credit(numerics.select(jnp.broadcast_to(value, mask.shape), valid), valid, x.extras, Level.TOKEN)
