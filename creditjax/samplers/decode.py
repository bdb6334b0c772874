"""The one decode loop: prompts in, turns of sampled and environment tokens out, with a KV cache.

Positions are those of the rollout's static layout (`creditjax.tasks.base.TurnFormat`), and a cache slot is a position,
so every row writes to the same slot at the same time; what a row did not use stays masked. Prompts may have padding
anywhere.
Pure and jittable; a caller jits it with whatever shardings it likes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from creditjax.models.base import DecodeState, Params, Sampling, TextPolicy
from creditjax.models.sampling import filter_logits
from creditjax.tasks.base import Prompts, TurnEnvironment, TurnFormat

Array = jax.Array


class Turns(NamedTuple):
    """What happened in the turns of B rows.

    Attributes:
      tokens: i32 ``[B, K, A + O]``, action and observation; padding is `TurnFormat.pad_token`.
      mask: bool ``[B, K, A + O]``, real tokens.
      acted: bool ``[B, K, A + O]``, those that the policy sampled.
      logprob: f32 ``[B, K, A + O]``, under the distribution sampled from, 0 elsewhere.
      reward: f32 ``[B, K]``, what the environment paid for each turn.
      terminated: bool ``[B, K]``, the episode ended in this turn.
      states: final environment states ``[B, ...]``, ``None`` without an environment; with `choose` those after each
        turn, ``[B, K, ...]``.
      chosen: i32 ``[P, K]``, which row of its group the group went on from after each turn, ``None`` without `choose`.
    """

    tokens: Array
    mask: Array
    acted: Array
    logprob: Array
    reward: Array
    terminated: Array
    states: Any
    chosen: Any = None


class _Action(NamedTuple):
    """One turn's action under way: ``[B, A]`` buffers, and which rows go on."""

    tokens: Array
    mask: Array
    logprob: Array
    active: Array


def row_keys(key: Array, prompts: int, group_size: int) -> Array:
    """Key ``[P, G]`` of each row, ``fold_in(fold_in(key, p), g)``: independent of sharding and of the other prompts."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(fold, (0, None))(fold(key, jnp.arange(prompts)), jnp.arange(group_size))


def generate(
    policy: TextPolicy,
    params: Params,
    prompts: Prompts,
    keys: Array,
    turns: TurnFormat,
    sampling: Sampling,
    environment: TurnEnvironment | None = None,
    choose: Callable[[Array, Any], Array] | None = None,
) -> Turns:
    """Rolls every prompt out once for each of its keys.

    The prompt is fed once and its cache repeated for the group. Each turn samples until every row has emitted the stop
    token or `action_length` tokens, then steps the environment and feeds its answer as one chunk. The token at position
    t is drawn with ``fold_in(row key, t)``.

    Args:
      policy: the model.
      params: its parameters.
      prompts: P prompts of length L.
      keys: ``[P, G]``, one for each row.
      turns: static layout.
      sampling: static.
      environment: answers between turns; without one there is a single turn.
      choose: ``choose(turn, states)`` with environment states ``[B, ...]`` names one row of each group, i32 ``[P]``:
        after each turn the whole group goes on from there, cache and episode, so that its rows act in one state again.
        Without it each row goes its own way. Needs an environment.

    Returns:
      `Turns` with ``B = P * G`` rows, the rows of a prompt next to each other.
    """
    count, group_size = keys.shape
    rows, prompt_length = count * group_size, prompts.tokens.shape[1]
    stride = turns.action_length + turns.observation_length
    keys = keys.reshape(rows)

    state = policy.start(params, count, prompt_length + turns.max_turns * stride)
    state = policy.extend(params, state, prompts.tokens, prompts.mask, 0)
    state = state._replace(
        logits=_repeat(state.logits, group_size),
        mask=_repeat(state.mask, group_size),
        cache=jax.tree.map(lambda x: _repeat(x, group_size, axis=1), state.cache),
    )
    # Derived from the inputs, not from constants: the carry then varies over the same mesh axes as its update.
    done = _repeat(jnp.any(prompts.mask, axis=1), group_size) & False

    if environment is None:
        _, action = _act(policy, params, state, ~done, keys, prompt_length, turns, sampling, feed_last=False)
        stopped = jnp.any(action.mask & (action.tokens == turns.stop_token), axis=1)
        ended = stopped if turns.stop_token >= 0 else ~done  # without a stop token an answer of full length is complete
        empty = jnp.zeros((rows, turns.observation_length))
        out = _lay_out(action, empty.astype(jnp.int32) + turns.pad_token, empty > 0, jnp.zeros(rows), ended)
        return Turns(*(x[:, None] for x in out), states=None)

    episodes = jax.vmap(environment.reset)(prompts.data)
    episodes = jax.tree.map(lambda x: _repeat(x, group_size), episodes)

    def turn(carry, index):
        state, episodes, done = carry
        start = prompt_length + index * stride
        state, action = _act(policy, params, state, ~done, keys, start, turns, sampling, feed_last=True)
        stepped, result = jax.vmap(environment.step)(episodes, action.tokens, action.mask)
        episodes = jax.tree.map(lambda old, new: jnp.where(_like(done, new), old, new), episodes, stepped)
        mask = result.mask & ~done[:, None]
        tokens = jnp.where(mask, result.tokens, turns.pad_token)
        if turns.observation_length:
            state = lax.cond(
                index + 1 < turns.max_turns,  # nobody reads the cache after the last answer
                lambda s: policy.extend(params, s, tokens, mask, start + turns.action_length),
                lambda s: s,
                state,
            )
        ended = result.terminated & ~done
        out = _lay_out(action, tokens, mask, jnp.where(done, 0.0, result.reward), ended)
        done |= ended
        if choose is None:
            return (state, episodes, done), (out, (), ())
        chosen = choose(index, episodes)
        follow = lambda x, axis=0: _follow(x, chosen, group_size, axis)  # noqa: E731
        cache = jax.tree.map(lambda x: follow(x, 1), state.cache)
        after = (state._replace(logits=follow(state.logits), mask=follow(state.mask), cache=cache), episodes, done)
        return (after[0], *jax.tree.map(follow, after[1:])), (out, episodes, chosen)

    (_, episodes, _), (out, visited, chosen) = lax.scan(turn, (state, episodes, done), jnp.arange(turns.max_turns))
    out = [jnp.moveaxis(x, 0, 1) for x in out]
    if choose is None:
        return Turns(*out, states=episodes)
    visited, chosen = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), (visited, chosen))
    return Turns(*out, states=visited, chosen=chosen)


def _act(
    policy: TextPolicy,
    params: Params,
    state: DecodeState,
    active: Array,
    keys: Array,
    start: int | Array,
    turns: TurnFormat,
    sampling: Sampling,
    feed_last: bool,
) -> tuple[DecodeState, _Action]:
    """Samples one action at the positions from `start` on; `feed_last` unless the cache is done with afterwards."""
    rows, length = active.shape[0], turns.action_length

    def draw(state: DecodeState, action: _Action, offset) -> _Action:
        logits = filter_logits(state.logits, sampling)
        if sampling.temperature == 0:
            token = jnp.argmax(logits, axis=-1)
        else:
            drawn = jax.vmap(jax.random.fold_in, (0, None))(keys, start + offset)
            token = jax.vmap(jax.random.categorical)(drawn, logits)
        token = token.astype(jnp.int32)
        logprob = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), token[:, None], axis=1)[:, 0]

        def put(buffer, column, empty):
            column = jnp.where(action.active, column, empty).astype(buffer.dtype)
            return lax.dynamic_update_slice_in_dim(buffer, column[:, None], offset, axis=1)

        return _Action(
            tokens=put(action.tokens, token, turns.pad_token),
            mask=put(action.mask, action.active, False),
            logprob=put(action.logprob, logprob, 0.0),
            active=action.active & (token != turns.stop_token),
        )

    def step(carry):
        offset, state, action = carry
        action = draw(state, action, offset)
        token, mask = (lax.dynamic_slice_in_dim(x, offset, 1, axis=1) for x in (action.tokens, action.mask))
        return offset + 1, policy.extend(params, state, token, mask, start + offset), action

    steps = length if feed_last else length - 1
    blank = jnp.broadcast_to((active & False)[:, None], (rows, length))
    action = _Action(jnp.where(blank, 0, turns.pad_token), blank, jnp.where(blank, 1.0, 0.0), active)
    _, state, action = lax.while_loop(
        lambda carry: (carry[0] < steps) & jnp.any(carry[2].active), step, (jnp.int32(0), state, action)
    )
    return state, action if feed_last else draw(state, action, steps)


def _lay_out(action: _Action, tokens: Array, mask: Array, reward: Array, ended: Array) -> tuple[Array, ...]:
    """One turn in the order of `Turns`: the action's buffers, then the observation's."""
    width = tokens.shape[1]
    return (
        jnp.concatenate([action.tokens, tokens], axis=1),
        jnp.concatenate([action.mask, mask], axis=1),
        jnp.pad(action.mask, ((0, 0), (0, width))),
        jnp.pad(action.logprob, ((0, 0), (0, width))),
        reward.astype(jnp.float32),
        ended,
    )


def _repeat(x: Array, times: int, axis: int = 0) -> Array:
    """Each entry along `axis` `times` over, as a broadcast that keeps a sharding of that axis."""
    shape = (*x.shape[: axis + 1], times, *x.shape[axis + 1 :])
    wide = jnp.broadcast_to(jnp.expand_dims(x, axis + 1), shape)
    return wide.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])


def _follow(x: Array, chosen: Array, group_size: int, axis: int) -> Array:
    """Every row of a group as the chosen one ``[P]`` of it, along an axis of ``P * G`` rows."""
    groups = x.reshape(*x.shape[:axis], -1, group_size, *x.shape[axis + 1 :])
    index = chosen.reshape(*(1,) * axis, -1, *(1,) * (groups.ndim - axis - 1))
    return _repeat(jnp.take_along_axis(groups, index, axis=axis + 1).squeeze(axis + 1), group_size, axis)


def _like(flag: Array, x: Array) -> Array:
    """`flag` ``[B]`` with trailing axes to broadcast against `x` ``[B, ...]``."""
    return flag.reshape(-1, *(1,) * (x.ndim - 1))
