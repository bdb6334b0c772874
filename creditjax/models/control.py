"""Small policies for classical control: an MLP and a GRU over the signal `observation`, each with a value head.

Both keep the protocol `creditjax.models.base.Policy`, and both can be run one step at a time, which is what the sampler
does:

    memory = policy.initial_memory(batch_shape)
    memory, logits, value = policy.step(params, memory, observation, start)

`start` marks the first step of an episode: a recurrent memory is emptied there, wherever in a row it lies.
"""

from collections.abc import Sequence
import dataclasses

from flax import linen as nn
import jax
from jax import numpy as jnp

from creditjax.models import base
from creditjax.models.sampling import token_divergence, token_statistics
from creditjax.trajectory import Trajectory, signal_spec

Array = jax.Array


class _Head(nn.Module):
    """A linear read-out whose kernel is orthogonal with the given gain."""

    features: int
    gain: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.features, kernel_init=nn.initializers.orthogonal(self.gain))(x)


class _MLP(nn.Module):
    """Policy and value in separate tanh networks: a poor value fit cannot spoil the policy's features."""

    num_actions: int
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, memory, observation: Array, start: Array):
        del start

        def trunk(name: str, x: Array) -> Array:
            for i, width in enumerate(self.hidden):
                x = nn.tanh(nn.Dense(width, kernel_init=nn.initializers.orthogonal(2**0.5), name=f"{name}_{i}")(x))
            return x

        logits = _Head(self.num_actions, 0.01, name="logits")(trunk("policy", observation))
        value = _Head(1, 1.0, name="value")(trunk("critic", observation))
        return memory, logits, value[..., 0]


class _GRU(nn.Module):
    """One encoder, one GRU, two heads."""

    num_actions: int
    hidden: int

    @nn.compact
    def __call__(self, memory: Array, observation: Array, start: Array):
        memory = jnp.where(start[..., None], 0.0, memory)
        x = nn.tanh(nn.Dense(self.hidden, kernel_init=nn.initializers.orthogonal(2**0.5), name="encoder")(observation))
        memory, x = nn.GRUCell(self.hidden, name="memory")(memory, x)
        return memory, _Head(self.num_actions, 0.01, name="logits")(x), _Head(1, 1.0, name="value")(x)[..., 0]


@dataclasses.dataclass(frozen=True)
class _ControlPolicy:
    """What both policies share; see `MLPPolicy` and `GRUPolicy`."""

    num_actions: int
    observation_size: int

    def init(self, key: Array) -> base.Params:
        """Fresh parameters."""
        observation = jnp.zeros((1, self.observation_size), jnp.float32)
        return self._module.init(key, self.initial_memory((1,)), observation, jnp.ones((1,), bool))["params"]

    def step(self, params: base.Params, memory, observation: Array, start: Array):
        """The memory after `observation` ``[..., F]``, logits ``[..., A]`` and value ``[...]``, any batch axes."""
        return self._module.apply({"params": params}, memory, observation, start)

    def evaluate(
        self,
        params: base.Params,
        batch: Trajectory,
        sampling: base.Sampling = base.Sampling(),
        statistics: Sequence[str] = (),
    ) -> base.PolicyOutput:
        """Log-probability, entropy, value and next value of the actions of a batch of any leading axes.

        `next_value` is V of the signal `next_observation`, given all that the episode has shown before; it is None for
        a batch that lacks this signal. All outputs are 0 outside `action_mask`.

        Args:
          params: from `init`.
          batch: carries `observation` ``[..., T, F]``; `terminated` and `truncated` (if given) say where episodes end
            in a row.
          sampling: the distribution that log-probability and entropy are those of.
          statistics: names that `creditjax.models.sampling.token_statistics` knows.

        Raises:
          KeyError: the batch carries no observation.
          ValueError: observations that are not ``[..., T, observation_size]``, or an unknown statistic.
        """
        mask = batch.action_mask
        observation = self._observations(batch, "observation")
        if observation is None:
            spec = signal_spec("observation")
            raise KeyError(f"signal 'observation' {list(spec.axes)} is missing; it is made by {spec.producer}")
        next_observation = self._observations(batch, "next_observation")
        logits, value, next_value = self._run(params, observation, next_observation, _starts(batch), mask)

        found = token_statistics(logits, jnp.where(mask, batch.tokens, 0), sampling, statistics)

        def masked(x: Array | None) -> Array | None:
            return None if x is None else jnp.where(mask, x, 0.0)

        return base.PolicyOutput(
            logprob=masked(found["logprob"]),
            entropy=masked(found["entropy"]),
            value=masked(value),
            next_value=masked(next_value),
            statistics={name: masked(found[name]) for name in statistics},
        )

    def divergence(
        self, params: base.Params, other: base.Params, batch: Trajectory, sampling: base.Sampling = base.Sampling()
    ) -> Array:
        """``KL(pi || pi_other)`` over the actions at every acted position, f32 ``[..., T]`` in nats, 0 elsewhere."""
        observation, mask = self._observations(batch, "observation"), batch.action_mask
        logits = [self._run(p, observation, None, _starts(batch), mask)[0] for p in (params, other)]
        return jnp.where(mask, token_divergence(*logits, sampling), 0.0)

    def _observations(self, batch: Trajectory, name: str) -> Array | None:
        x = batch.signals.get(name)
        if x is not None and x.shape[-1] != self.observation_size:
            raise ValueError(f"{name}: shape {list(x.shape)}, wanted [..., T, F={self.observation_size}]")
        return None if x is None else jnp.where(batch.action_mask[..., None], x, 0.0)


@dataclasses.dataclass(frozen=True)
class MLPPolicy(_ControlPolicy):
    """A memoryless policy over A = `num_actions` actions.

    Attributes:
      num_actions: A.
      observation_size: F.
      hidden: widths of the hidden layers of policy and critic.
    """

    hidden: tuple[int, ...] = (64, 64)

    @property
    def _module(self) -> nn.Module:
        return _MLP(self.num_actions, tuple(self.hidden))

    def initial_memory(self, batch_shape: tuple[int, ...] = ()) -> tuple:
        """No memory."""
        del batch_shape
        return ()

    def _run(self, params, observation, next_observation, start, acted):
        del acted
        _, logits, value = self.step(params, (), observation, start)
        after = None if next_observation is None else self.step(params, (), next_observation, start)[2]
        return logits, value, after


@dataclasses.dataclass(frozen=True)
class GRUPolicy(_ControlPolicy):
    """A recurrent policy over A = `num_actions` actions, for what a single observation does not show.

    Attributes:
      num_actions: A.
      observation_size: F.
      hidden: width of encoder and memory.
    """

    hidden: int = 64

    @property
    def _module(self) -> nn.Module:
        return _GRU(self.num_actions, self.hidden)

    def initial_memory(self, batch_shape: tuple[int, ...] = ()) -> Array:
        """Memory before the first step, f32 ``[..., hidden]``."""
        return jnp.zeros((*batch_shape, self.hidden), jnp.float32)

    def _run(self, params, observation, next_observation, start, acted):
        def step(memory, inputs):
            observation, next_observation, start, acted = inputs
            new, logits, value = self.step(params, memory, observation, start)
            after = None
            if next_observation is not None:
                # The end of an episode empties the memory at the next position: the value after a truncation knows the
                # episode.
                _, _, after = self.step(params, new, next_observation, jnp.zeros_like(start))
            return jnp.where(acted[..., None], new, memory), (logits, value, after)

        time = start.ndim - 1
        inputs = jax.tree.map(lambda x: jnp.moveaxis(x, time, 0), (observation, next_observation, start, acted))
        _, outputs = jax.lax.scan(step, self.initial_memory(start.shape[:-1]), inputs)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, time), outputs)


def _starts(batch: Trajectory) -> Array:
    """True at the first position of every episode of a row, bool ``[..., T]``."""
    ended = jnp.zeros_like(batch.action_mask)
    for flag in (batch.terminated, batch.truncated):
        ended = ended if flag is None else ended | flag
    first = jnp.ones_like(ended[..., :1])
    return jnp.concatenate([first, ended[..., :-1]], axis=-1)
