"""Everything that a run has to remember, as one pytree: what is in here resumes, what is not does not exist."""

from collections.abc import Callable, Mapping
import dataclasses
import enum
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
import optax

from creditjax.models.base import Params, Policy
from creditjax.samplers.replay import ReplayBuffer
from creditjax.training import mesh as mesh_lib

Array = jax.Array


# The key of an implicit process-reward model in `TrainState.extra`.
REWARD_MODEL = "reward_model"


class Stream(enum.IntEnum):
    """What randomness is for: every use has a stream of its own."""

    INIT = 0
    ROLLOUT = 1
    ORDER = 2
    EVALUATION = 3
    REPORT = 4
    REPLAY = 5
    EDITS = 6


def run_key(seed: int) -> Array:
    """The raw data of a run's key, uint32."""
    return jax.random.key_data(jax.random.key(seed))


def stream_key(key: Array, stream: Stream, step: int | Array = 0) -> Array:
    """The key of one use of randomness at one step, from the raw data of the run's key."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), int(stream)), step)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state of a run after `step` steps.

    Attributes:
      params: the policy's parameters.
      opt_state: the optimiser's state.
      step: i32, finished steps of the whole run, warm start included.
      key: uint32, raw data of the run's PRNG key.
      cursor: i32, index of the next training prompt.
      best: f32, best held-out score so far, -inf before the first evaluation.
      baseline: f32 ``[2]``, sum and weight of the moving average of outcomes (`running_baseline` is their ratio).
      reference: the frozen policy that KL terms compare with, or None.
      extra: states of learned models beside the policy, by name (an implicit process-reward model, say).
      replay: older rollouts and the latest outcomes of each prompt, or None.
    """

    params: Params
    opt_state: optax.OptState
    step: Array
    key: Array
    cursor: Array
    best: Array
    baseline: Array
    reference: Params | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    replay: ReplayBuffer | None = None

    def replace(self, **changes) -> "TrainState":
        """A copy with some parts changed."""
        return dataclasses.replace(self, **changes)


def create(
    policy: Policy,
    optimizer: optax.GradientTransformation,
    key: Array,
    with_reference: bool = False,
    make_reward_model: Callable[[Params], dict[str, Any]] | None = None,
    make_buffer: Callable[[], ReplayBuffer] | None = None,
) -> TrainState:
    """A fresh state; pure, so that it can be traced for its shapes or compiled with its shardings.

    Args:
      policy: the family.
      optimizer: of the policy.
      key: of everything random, see :func:`run_key`.
      with_reference: whether a frozen reference is kept.
      make_reward_model: makes a process-reward model before its first update, and its optimiser's state, from the
        policy's parameters; it is then kept too.
      make_buffer: makes an empty replay buffer, which is then kept too.
    """
    params = policy.init(stream_key(key, Stream.INIT))
    return TrainState(
        params=params,
        opt_state=optimizer.init(params),
        step=jnp.int32(0),
        key=key,
        cursor=jnp.int32(0),
        best=jnp.float32(-jnp.inf),
        baseline=jnp.zeros(2, jnp.float32),
        reference=jax.tree.map(jnp.copy, params) if with_reference else None,
        extra={} if make_reward_model is None else {REWARD_MODEL: make_reward_model(params)},
        replay=None if make_buffer is None else make_buffer(),
    )


def state_shardings(mesh: Mesh, state: TrainState) -> TrainState:
    """Where each part lives: parameters, and whatever has their shapes, are split; the counters are everywhere.

    The rollouts of a replay buffer are split as those of a batch are, if their number is a multiple of the devices.

    Args:
      mesh: the run's mesh.
      state: a state, or the shapes of one.
    """
    everywhere: NamedSharding = mesh_lib.replicated(mesh)
    split = {
        name: mesh_lib.shardings(mesh, getattr(state, name)) for name in ("params", "opt_state", "reference", "extra")
    }
    counters = {name: everywhere for name in ("step", "key", "cursor", "best", "baseline")}
    if state.replay is None:
        return TrainState(**split, **counters)
    rows = everywhere if state.replay.capacity % mesh_lib.batch_shards(mesh) else mesh_lib.batch_sharding(mesh)
    held = dataclasses.replace(
        jax.tree.map(lambda _: everywhere, state.replay), rows=jax.tree.map(lambda _: rows, state.replay.rows)
    )
    return TrainState(**split, **counters, replay=held)


def abstract_state(
    mesh: Mesh,
    policy: Policy,
    optimizer: optax.GradientTransformation,
    with_reference: bool = False,
    reward_optimizer: optax.GradientTransformation | None = None,
    make_buffer: Callable[[], ReplayBuffer] | None = None,
) -> TrainState:
    """Shapes, dtypes and shardings of a state, without making one: what a checkpoint is restored into."""
    shapes = jax.eval_shape(
        lambda: create(policy, optimizer, run_key(0), with_reference, reward_optimizer, make_buffer)
    )
    places = state_shardings(mesh, shapes)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, places)


def init_state(
    mesh: Mesh,
    policy: Policy,
    optimizer: optax.GradientTransformation,
    seed: int,
    with_reference: bool = False,
    reward_optimizer: optax.GradientTransformation | None = None,
    make_buffer: Callable[[], ReplayBuffer] | None = None,
) -> TrainState:
    """A fresh state on the mesh: each device makes only its own part, and the numbers do not depend on the mesh."""
    places = jax.tree.map(
        lambda x: x.sharding, abstract_state(mesh, policy, optimizer, with_reference, reward_optimizer, make_buffer)
    )
    key = run_key(seed)
    make = lambda: create(policy, optimizer, key, with_reference, reward_optimizer, make_buffer)  # noqa: E731
    return jax.jit(make, out_shardings=places)()
