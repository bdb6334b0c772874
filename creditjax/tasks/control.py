"""Classical control: any gymnax environment with discrete actions.

A gymnax environment folds an automatic reset into its `step`, which returns the first observation of the *next* episode
in place of the last one of this episode. The adapter goes through `step_env` and `reset_env` instead, so `step` returns
the true next observation, and whether a row goes on with a new episode is the sampler's business (`auto_reset`).

How an episode ends is told apart as gymnax >= 1.0 tells it: `step_env` reports natural termination alone,
`is_truncated` reports the time limit (`max_steps_in_episode`). Where both hold at one step, the episode terminated.
Some environments of the bsuite (DiscountingChain above all) have no natural end in gymnax although their time limit
belongs to the problem: the observation shows the clock, and nothing is to be earned after it. `time_limit="terminates"`
says so.
"""

from collections.abc import Mapping
import functools
from typing import Any, Literal

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.naming import nearest
from creditjax.tasks import base

Array = jax.Array

_SPLITS = {"train": 0, "eval": 1}


class GymnaxTask:
    """A `ControlTask` around a gymnax environment.

    The observation is flattened to f32 ``[F]`` (a discrete one becomes one-hot; several leaves are concatenated).

    Attributes:
      num_actions: discrete actions.
      observation_size: F.
      length: T, steps of one row. A row that is shorter than the episode is cut off, not ended: its last position is
        truncated.
      auto_reset: whether a new episode begins in the same row after one has ended.
      eval_size: number of held-out start states.
    """

    def __init__(
        self,
        environment: str,
        *,
        length: int | None = None,
        auto_reset: bool = False,
        time_limit: Literal["truncates", "terminates"] = "truncates",
        arguments: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        eval_size: int = 64,
        seed: int = 0,
    ):
        """Builds the environment.

        Args:
          environment: an id of gymnax, such as ``"DiscountingChain-bsuite"``, ``"DeepSea-bsuite"`` or
            ``"CartPole-v1"``.
          length: T; the environment's own time limit by default.
          auto_reset: start a new episode in the same row after one has ended; otherwise the rest of the row is padding.
          time_limit: what reaching `max_steps_in_episode` means: the episode is cut off there and its value goes on
            ("truncates"), or the limit is part of the problem and nothing follows ("terminates").
          arguments: of the environment's constructor (``{"size": 8}`` for DeepSea).
          parameters: fields of its `EnvParams` to override (``{"memory_length": 3}``).
          eval_size: number of held-out start states.
          seed: of the start states.

        Raises:
          ValueError: an unknown environment, argument or parameter (with the nearest right ones); an environment whose
            actions are not discrete; a length below 1.
        """
        import gymnax

        if environment not in gymnax.registered_envs:
            near = nearest(environment, gymnax.registered_envs)
            raise ValueError(f"environment: {environment!r} is not registered with gymnax; {near}")
        if time_limit not in ("truncates", "terminates"):
            raise ValueError(f"time_limit: {time_limit!r}, wanted 'truncates' or 'terminates'")
        try:
            self._env, params = gymnax.make(environment, **(arguments or {}))
        except TypeError as error:
            raise ValueError(f"arguments: {environment} does not take {sorted(arguments or {})}: {error}") from error
        fields = params.__dataclass_fields__
        if unknown := sorted(set(parameters or {}) - set(fields)):
            raise ValueError(f"parameters: {environment} has no {unknown[0]!r}; {nearest(unknown[0], fields)}")
        # What is an array by default is indexed with traced integers, which a list is not.
        overrides = {
            key: jnp.asarray(x) if hasattr(getattr(params, key), "dtype") else x
            for key, x in (parameters or {}).items()
        }
        self._params = params.replace(**overrides)
        actions = self._env.action_space(self._params)
        if not isinstance(actions, gymnax.environments.spaces.Discrete):
            raise ValueError(f"{environment} has {type(actions).__name__} actions, wanted discrete ones")
        observations = self._env.observation_space(self._params)
        self._one_hot = observations.n if isinstance(observations, gymnax.environments.spaces.Discrete) else 0
        self._time_limit_terminates = time_limit == "terminates"
        self._seed = seed
        self.environment = environment
        self.num_actions = int(actions.n)
        self.length = int(self._params.max_steps_in_episode if length is None else length)
        if self.length < 1:
            raise ValueError(f"length: {self.length}, wanted at least 1")
        self.auto_reset = auto_reset
        self.eval_size = eval_size
        # A reset builds parts of its state from Python numbers, a step from arrays: one dtype for both, or no scan.
        key = jax.ShapeDtypeStruct((2,), jnp.uint32)
        _, start = jax.eval_shape(self._env.reset_env, key, self._params)
        _, self._state_like, *_ = jax.eval_shape(self._env.step_env, key, start, jnp.int32(0), self._params)
        self.observation_size = jax.eval_shape(self.reset, key)[0].shape[0]

    def prompts(self, split: str, start: int, count: int) -> base.Prompts:
        """Start states: `data` is u32 ``[P, 2]``, a PRNG key each.

        Raises:
          ValueError: an unknown split, or held-out start states past `eval_size`.
        """
        if split not in _SPLITS:
            raise ValueError(f"split: {split!r}, wanted 'train' or 'eval'")
        if split == "eval" and start + count > self.eval_size:
            raise ValueError(f"eval start states {start} to {start + count} were asked for, there are {self.eval_size}")
        keys = _keys(self._seed, _SPLITS[split], np.arange(start, start + count, dtype=np.uint32))
        return base.Prompts(tokens=jnp.zeros((count, 0), jnp.int32), mask=jnp.zeros((count, 0), bool), data=keys)

    def reset(self, key: Array) -> tuple[Array, Any]:
        """First observation f32 ``[F]`` and state."""
        observation, state = self._env.reset_env(key, self._params)
        return self._flatten(observation), self._canonical(state)

    def step(self, key: Array, state: Any, action: Array) -> tuple[Array, Any, Array, Array, Array]:
        """Next observation f32 ``[F]`` (of the true next state), state, reward, terminated, truncated (never both)."""
        observation, state, reward, terminated, _ = self._env.step_env(key, state, jnp.int32(action), self._params)
        limit = jnp.asarray(self._env.is_truncated(state, self._params), bool)
        terminated = jnp.asarray(terminated, bool)
        if self._time_limit_terminates:
            terminated = terminated | limit
        state = self._canonical(state)
        return self._flatten(observation), state, jnp.float32(reward), terminated, limit & ~terminated

    def decode(self, tokens: Any) -> list[str]:
        """One printable string an action."""
        return [str(int(token)) for token in np.asarray(tokens).reshape(-1)]

    def _flatten(self, observation: Any) -> Array:
        if self._one_hot:
            return jax.nn.one_hot(observation, self._one_hot, dtype=jnp.float32)
        return jnp.concatenate([jnp.ravel(jnp.asarray(x, jnp.float32)) for x in jax.tree.leaves(observation)])

    def _canonical(self, state: Any) -> Any:
        return jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), state, self._state_like)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _keys(seed: int, split: int, indices: Array) -> Array:
    key = jax.random.fold_in(jax.random.PRNGKey(seed), split)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)
