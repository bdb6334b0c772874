"""What attention says about tokens, reduced to ``[T]`` inside the producer; no ``[T, T]`` array enters the batch.

Row t of an attention map is what the token at t reads from the tokens at ``s <= t``. Padding is no token: distances and
horizons count real tokens, so that it changes nothing. Heads are told apart by how far they look back,

    d_h = mean over acted t of  sum_s A_h[t, s] (t - s),

the nearest share of them being *local*, the farthest *global*. They are chosen for each rollout by itself, so that
credit does not depend on what else is in the batch. Cost: two forward passes and O(T^2) a rollout.

Sources: windowed distance and future influence (arXiv:2510.13554), absorbing flow (arXiv:2606.10646).
"""

from collections.abc import Sequence
import math
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.models.base import Params
from creditjax.numerics import masked_mean, safe_divide
from creditjax.trajectory import Trajectory, last_action

Array = jax.Array

ATTENDED = ("attention_distance", "future_influence", "attention_flow")
"""The signals of :func:`attention_signals`."""


def windowed_distance(attention: Array, mask: Array, window: int = 10) -> Array:
    """``WAAD_t = sum_{s <= t} A[t, s] min(t - s, W)``, distances counted in real tokens: f32 ``[T]`` in [0, W].

    Args:
      attention: f32 ``[T, T]``, rows sum to 1.
      mask: bool ``[T]``, real tokens.
      window: W.
    """
    rank = jnp.cumsum(mask)
    distance = jnp.clip(rank[:, None] - rank, 0, window).astype(jnp.float32)
    return jnp.where(mask, jnp.sum(jnp.where(mask, attention * distance, 0.0), axis=1), 0.0)


def future_influence(attention: Array, mask: Array, acted: Array, low: int = 10, high: int = 50) -> Array:
    """``FAI_s = mean of A[t, s] over t from s + low to min(last acted position, s + high)``, 0 where none: f32 ``[T]``.

    Args:
      attention: f32 ``[T, T]``.
      mask: bool ``[T]``, real tokens; distances count them.
      acted: bool ``[T]``.
      low: first distance.
      high: last distance.
    """
    rank, order = jnp.cumsum(mask), jnp.arange(len(mask))
    final = jnp.max(jnp.where(acted, order, -1))
    ahead = rank[:, None] - rank
    reader = (ahead >= low) & (ahead <= high) & mask[:, None] & (order <= final)[:, None]
    return jnp.where(mask, masked_mean(attention, reader, axis=0), 0.0)


def absorbing_flow(attention: Array, mask: Array, prompt: Array, answer: Array) -> Array:
    """Throughput f_t in [0, 1] of a unit of flow that attention leads from the prompt to the answer, f32 ``[T]``.

    With ``a[t, s]`` the attention without its diagonal, rows renormalised, and ``h_s`` the mass of s that reaches the
    answer (1 on it, else ``sum_{t > s} a[t, s] h_t``), flow moves with ``P(s -> t) = a[t, s] h_t / h_s``, starts from
    prompt tokens in proportion to h and ends at answer tokens: the walk conditioned on being absorbed (a Doob
    transform). 0 everywhere if no prompt token reaches the answer.

    Args:
      attention: f32 ``[T, T]``, query by key.
      mask: bool ``[T]``, real tokens.
      prompt: bool ``[T]``.
      answer: bool ``[T]``.
    """
    mask, prompt, answer = map(jnp.asarray, (mask, prompt, answer))
    length = len(mask)
    order = jnp.arange(length)
    edge = jnp.where((order[None, :] < order[:, None]) & mask[:, None] & mask, attention, 0.0)
    edge = safe_divide(edge, jnp.sum(edge, axis=1, keepdims=True))
    answer, prompt = answer & mask, prompt & mask

    def back(reach, s):
        value = jnp.where(answer[s], 1.0, jnp.sum(edge[:, s] * reach))
        return reach.at[s].set(value), None

    reach, _ = jax.lax.scan(back, jnp.zeros(length), order, reverse=True)
    source = jnp.where(prompt, reach, 0.0)
    source = safe_divide(source, jnp.sum(source))

    def forth(rate, t):
        # rate_s is the flow that a unit of s's mass sends on: f_s / h_s, 0 on the answer.
        flow = source[t] + reach[t] * jnp.sum(edge[t] * rate)
        return rate.at[t].set(jnp.where(answer[t], 0.0, safe_divide(flow, reach[t]))), flow

    return jax.lax.scan(forth, jnp.zeros(length), order)[1]


def middle_layers(depth: int, count: int = 5) -> np.ndarray:
    """At most `count` layers spaced over the middle third of `depth`, i32, increasing."""
    low, high = depth // 3, max(math.ceil(2 * depth / 3) - 1, depth // 3)
    return np.unique(np.round(np.linspace(low, high, count)).astype(np.int32))


def attention_signals(
    policy: Any,
    params: Params,
    batch: Trajectory,
    names: Sequence[str] = ATTENDED,
    *,
    window: int = 10,
    low: int = 10,
    high: int = 50,
    layers: int = 5,
    share: float = 0.3,
) -> dict[str, Array]:
    """Signals of `ATTENDED` by name, f32 ``[..., T]``, 0 outside `action_mask`.

    Args:
      policy: a model with `fold_attention`.
      params: its parameters.
      batch: any leading axes, with `token_mask`; the answer's tokens are in `answer_mask`, else the last acted one is.
      names: which signals.
      window: W of the windowed distance.
      low: first distance of the future influence.
      high: its last distance.
      layers: how many layers of the middle third are looked at.
      share: of their heads, that are local and that are global.
    """
    shape, length = batch.tokens.shape, batch.length
    tokens, mask, acted = (
        x.reshape(-1, length) for x in (batch.tokens, batch.signals["token_mask"], batch.action_mask)
    )
    heads, depth = policy.config.heads, policy.config.depth * policy.config.loops
    chosen = np.isin(np.arange(depth), middle_layers(depth, layers))
    count = max(1, round(share * heads * int(chosen.sum())))
    rank = jnp.cumsum(mask, axis=1)
    distance = jnp.maximum(rank[:, :, None] - rank[:, None, :], 0).astype(jnp.float32)

    def look_back(carry, layer, weight):
        by_query = jnp.sum(weight * distance[:, None], axis=-1)  # [B, heads, T]
        return carry.at[layer].set(masked_mean(by_query, acted[:, None], axis=-1))

    reach = jnp.zeros((depth, len(tokens), heads))
    reach = policy.fold_attention(params, tokens, mask, look_back, reach)
    reach = jnp.where(chosen[:, None, None], reach, jnp.inf)
    flat = jnp.moveaxis(reach, 1, 0).reshape(len(tokens), -1)
    place = jnp.argsort(jnp.argsort(flat, axis=1), axis=1)  # ties to the earlier head
    usable = heads * int(chosen.sum())
    kinds = jnp.stack([place < count, (place >= usable - count) & (place < usable)], axis=1) / count
    kinds = kinds.reshape(len(tokens), 2, depth, heads)

    def collect(carry, layer, weight):
        own = jax.lax.dynamic_index_in_dim(kinds, layer, axis=2, keepdims=False)
        return carry + jnp.einsum("bch,bhts->bcts", own, weight)

    maps = policy.fold_attention(params, tokens, mask, collect, jnp.zeros((len(tokens), 2, length, length)))
    local, far = maps[:, 0], maps[:, 1]
    made = {}
    if "attention_distance" in names:
        made["attention_distance"] = jax.vmap(lambda a, m: windowed_distance(a, m, window))(local, mask)
    if "future_influence" in names:
        made["future_influence"] = jax.vmap(lambda a, m, y: future_influence(a, m, y, low, high))(far, mask, acted)
    if "attention_flow" in names:
        final = last_action(batch)
        given = batch.signals.get("answer_mask", final) & batch.action_mask
        answer = jnp.where(jnp.any(given, axis=-1, keepdims=True), given, final).reshape(-1, length)
        prompt = mask & (jnp.cumsum(acted, axis=1) == 0)
        made["attention_flow"] = jax.vmap(absorbing_flow)(far, mask, prompt, answer)
    return {name: jnp.where(acted, x, 0.0).reshape(shape) for name, x in made.items()}
