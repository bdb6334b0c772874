"""A decoder-only transformer of the Llama shape, and the policy over it.

RMSNorm before each block, rotary positions (the rotate-half form), grouped-query attention, SwiGLU, tied or untied
output (Touvron et al. 2023, arXiv:2302.13971; Su et al. 2021, arXiv:2104.09864; Ainslie et al. 2023, arXiv:2305.13245;
Shazeer 2020, arXiv:2002.05202). Every projection has its own kernel ``[in, out]``, heads flattened into `out` with the
query heads of one key head next to each other, so a published checkpoint is loaded by transposing its matrices.

The layers are stacked along a leading axis and scanned: one is compiled, however many there are. `PARAMETER_AXES` names
the axes of every parameter, for sharding rules.

Where a token is real is said by one mask and nothing else: padding may lie at the left, at the right or in the middle,
rotary positions count real tokens, and the distribution at a position is computed from the last real token before it.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

from flax import linen as nn
import jax
from jax import lax
from jax import numpy as jnp

from creditjax.models.base import DecodeState, Params, PolicyOutput, Sampling
from creditjax.models.sampling import token_divergence, token_statistics
from creditjax.trajectory import SIGNALS, Trajectory

Array = jax.Array

PARAMETER_AXES: dict[str, tuple[str, ...]] = {
    "embed/embedding": ("vocab", "embed"),
    "layers/attention_norm/scale": ("layer", "norm"),
    "layers/attention/query/kernel": ("layer", "embed", "heads"),
    "layers/attention/key/kernel": ("layer", "embed", "kv_heads"),
    "layers/attention/value/kernel": ("layer", "embed", "kv_heads"),
    "layers/attention/output/kernel": ("layer", "heads", "embed"),
    "layers/mlp_norm/scale": ("layer", "norm"),
    "layers/mlp/gate/kernel": ("layer", "embed", "mlp"),
    "layers/mlp/up/kernel": ("layer", "embed", "mlp"),
    "layers/mlp/down/kernel": ("layer", "mlp", "embed"),
    "norm/scale": ("norm",),
    "unembed/kernel": ("embed", "vocab"),
    "value/kernel": ("embed", "one"),
    "value/bias": ("one",),
    "exit/kernel": ("embed", "one"),
    "exit/bias": ("one",),
}
"""Path of each parameter and the names of its axes. `heads` and `kv_heads` are heads times head size, flattened."""


LOOP_STATISTICS = ("loop_logprob", "exit_pdf")
"""Statistics of `evaluate` with an axis of loops: each token's log-probability read out after every loop, and the
probability of leaving there."""


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Shape of a transformer. Hashable, so it may be a static argument.

    Attributes:
      vocab_size: V.
      width: of the residual stream.
      depth: number of layers.
      loops: how often the stack of layers runs, with the same parameters; each loop can be read out. Above 1 there is
        an exit gate, a scalar head on each loop's hidden state, which starts at probability 1/2.
      heads: query heads.
      kv_heads: key and value heads, a divisor of `heads`; 0 for as many as `heads`.
      head_size: even; 0 for ``width / heads``.
      mlp_width: hidden units of the SwiGLU; 0 for 8/3 of the width, rounded up to a multiple of 32.
      rope_theta: base of the rotary frequencies.
      norm_epsilon: added to the mean square in RMSNorm.
      tied: the output kernel is the transposed embedding.
      value_head: adds a scalar head on the normalised last hidden state, which starts at 0.
      dtype: of activations and cache. Parameters, softmax, norms and outputs are float32.
      remat: recompute each layer in the backward pass instead of keeping its activations.
      logit_chunk: positions whose logits exist at one time in `evaluate`, 0 for all: memory ``B * chunk * V``.

    Raises:
      ValueError: sizes that do not fit each other.
    """

    vocab_size: int
    width: int = 64
    depth: int = 2
    heads: int = 4
    kv_heads: int = 0
    head_size: int = 0
    mlp_width: int = 0
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    tied: bool = False
    value_head: bool = False
    dtype: str = "float32"
    remat: bool = False
    logit_chunk: int = 0
    loops: int = 1

    def __post_init__(self):
        for name in ("vocab_size", "width", "depth", "heads", "loops"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}, wanted at least 1")
        if not self.head_size and self.width % self.heads:
            raise ValueError(
                f"width: {self.width}, wanted a multiple of heads={self.heads} when head_size is not given"
            )
        derived = {
            "kv_heads": self.heads,
            "head_size": self.width // self.heads,
            "mlp_width": 32 * math.ceil(self.width * 8 / 3 / 32),
        }
        for name, size in derived.items():
            object.__setattr__(self, name, getattr(self, name) or size)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads}, wanted a divisor of heads={self.heads}")
        if self.head_size % 2:
            raise ValueError(f"head_size: {self.head_size}, wanted an even number (rotary positions pair its halves)")


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * scale`` in float32 (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises the last axis; the dtype stays."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        y = x.astype(jnp.float32)
        y *= lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.config.norm_epsilon)
        return (y * scale).astype(x.dtype)


def _rotation(positions: Array, config: TransformerConfig) -> tuple[Array, Array]:
    """Cosine and sine ``[B, n, 1, head_size / 2]`` of the rotary angles at integer `positions` ``[B, n]``."""
    exponent = jnp.arange(0, config.head_size, 2, dtype=jnp.float32) / config.head_size
    angle = positions[..., None, None].astype(jnp.float32) * config.rope_theta**-exponent
    return jnp.cos(angle), jnp.sin(angle)


def _rotate(x: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotates the pairs (i, i + head_size / 2) of ``[B, n, heads, head_size]``."""
    cos, sin = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


class Linear(nn.Module):
    """``x @ kernel``, without bias, over the last axis."""

    features: int
    dtype: str
    init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps ``[..., in]`` to ``[..., features]``."""
        kernel = self.param("kernel", self.init, (x.shape[-1], self.features), jnp.float32).astype(self.dtype)
        return x.astype(self.dtype) @ kernel


def _linear(features: int, name: str, config: TransformerConfig, scale: float = 1.0) -> Linear:
    return Linear(
        features, config.dtype, nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal"), name=name
    )


class Attention(nn.Module):
    """Grouped-query attention over earlier keys and the chunk's own."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Array, rotation, visible: Array, past) -> tuple[Array, tuple[Array, Array]]:
        """Attends from a chunk of n positions of B rows.

        Args:
          x: the chunk's normalised residual stream ``[B * n, width]``.
          rotation: cosine and sine of its rotary angles.
          visible: bool ``[B, n, m + n]``, which keys each query may read: m earlier ones, then the chunk's.
          past: keys and values ``[B, m, kv_heads, head_size]``, rotated already.

        Returns:
          The output ``[B * n, width]``, and the chunk's keys and values.
        """
        c = self.config
        rows, n = visible.shape[:2]
        query = _linear(c.heads * c.head_size, "query", c)(x).reshape(rows, n, c.heads, c.head_size)
        key = _linear(c.kv_heads * c.head_size, "key", c)(x).reshape(rows, n, c.kv_heads, c.head_size)
        value = _linear(c.kv_heads * c.head_size, "value", c)(x).reshape(rows, n, c.kv_heads, c.head_size)
        query = _rotate(query, rotation).reshape(rows, n, c.kv_heads, c.heads // c.kv_heads, c.head_size)
        key = _rotate(key, rotation)
        # Scores, not keys, are concatenated: the cache is read where it lies and never copied.
        m = past[0].shape[1]
        scores = jnp.concatenate([jnp.einsum("bnkgh,bmkh->bkgnm", query, k) for k in (past[0], key)], axis=-1)
        scores = scores.astype(jnp.float32) / math.sqrt(c.head_size)
        scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
        weight = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        self.sow("intermediates", "weight", weight)  # kept only where somebody asks, see `fold_attention`
        mixed = jnp.einsum("bkgnm,bmkh->bnkgh", weight[..., :m], past[1])
        mixed += jnp.einsum("bkgnm,bmkh->bnkgh", weight[..., m:], value)
        mixed = mixed.reshape(rows * n, c.heads * c.head_size)
        return _linear(c.width, "output", c, scale=0.5 / c.depth)(mixed), (key, value)


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps ``[..., width]`` to itself."""
        c = self.config
        hidden = nn.silu(_linear(c.mlp_width, "gate", c)(x)) * _linear(c.mlp_width, "up", c)(x)
        return _linear(c.width, "down", c, scale=0.5 / c.depth)(hidden)


class Block(nn.Module):
    """One layer, in the form that `nn.scan` takes: carry and per-layer output."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Array, rotation, visible: Array, past):
        """Returns the residual stream and the chunk's keys and values."""
        mixed, cache = Attention(self.config, name="attention")(
            RMSNorm(self.config, name="attention_norm")(x), rotation, visible, past
        )
        x += mixed
        return x + SwiGLU(self.config, name="mlp")(RMSNorm(self.config, name="mlp_norm")(x)), cache


class Transformer(nn.Module):
    """The network: `hidden` states of a chunk of tokens, and the heads that read them."""

    config: TransformerConfig

    def setup(self):
        """Names the parts; the names are those of `PARAMETER_AXES`."""
        c = self.config
        init = nn.initializers.normal(stddev=0.02)
        block = nn.remat(Block, prevent_cse=False) if c.remat else Block
        self.embed = nn.Embed(c.vocab_size, c.width, dtype=c.dtype, param_dtype=jnp.float32, embedding_init=init)
        self.layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(nn.broadcast, nn.broadcast, 0),
            length=c.depth,
        )(c)
        self.norm = RMSNorm(c)
        if not c.tied:
            self.unembed = Linear(c.vocab_size, c.dtype, init)
        if c.value_head:
            self.value = nn.Dense(1, param_dtype=jnp.float32, kernel_init=nn.initializers.zeros)
        if c.loops > 1:
            self.exit = nn.Dense(1, param_dtype=jnp.float32, kernel_init=nn.initializers.zeros)

    def __call__(self, tokens: Array, mask: Array):
        """Logits and value at every position; what `init` traces."""
        hidden, _ = self.hidden(tokens, mask)
        if self.config.loops > 1:
            self.exits(hidden[None])
        return self.logits(hidden), self.values(hidden) if self.config.value_head else None

    def hidden(self, tokens: Array, mask: Array, past=None, past_mask: Array | None = None):
        """Normalised last hidden states of a chunk.

        Args:
          tokens: i32 ``[B, n]``.
          mask: bool ``[B, n]``, where they are real.
          past: keys and values ``[loops * layers, B, m, kv_heads, head_size]`` of the positions before the chunk.
          past_mask: bool ``[B, m]``, which of those are real.

        Returns:
          Hidden states ``[B, n, width]``, and the chunk's keys and values ``[loops * layers, B, n, kv_heads,
          head_size]``.
        """
        states, cache = self._loops(self.embeddings(tokens, mask), mask, past, past_mask)
        return states[-1], cache

    def loop_states(self, tokens: Array, mask: Array) -> Array:
        """Normalised hidden states after each loop, ``[loops, B, n, width]``."""
        return jnp.stack(self._loops(self.embeddings(tokens, mask), mask, None, None)[0])

    def embedded_hidden(self, embeddings: Array, mask: Array) -> Array:
        """Normalised last hidden states ``[B, n, width]`` of input embeddings, differentiable in them."""
        return self._loops(embeddings, mask, None, None)[0][-1]

    def embeddings(self, tokens: Array, mask: Array) -> Array:
        """Input embeddings ``[B, n, width]``."""
        return self.embed(jnp.where(mask, tokens, 0).reshape(-1)).reshape(*tokens.shape, self.config.width)

    def _loops(self, x: Array, mask: Array, past, past_mask: Array | None):
        c = self.config
        rows, n = mask.shape
        if past is None or past_mask is None:
            past, past_mask = empty_cache(c, rows), jnp.zeros((rows, 0), bool)
        rotation, visible = view(c, mask, past_mask)
        # The residual stream is flat: with three axes XLA transposes the operands of every kernel's gradient, and the
        # backward pass takes some four times as long on CPU.
        x = x.reshape(rows * n, c.width)
        states, caches = [], []
        for loop in range(c.loops):
            own = jax.tree.map(lambda y, loop=loop: y[loop * c.depth : (loop + 1) * c.depth], past)
            x, cache = self.layers(x, rotation, visible, own)
            states.append(self.norm(x).reshape(rows, n, c.width))
            caches.append(cache)
        return states, jax.tree.map(lambda *xs: jnp.concatenate(xs) if len(xs) > 1 else xs[0], *caches)

    def logits(self, hidden: Array) -> Array:
        """Raw logits f32 ``[..., V]``."""
        flat = hidden.reshape(-1, self.config.width)
        out = self.embed.attend(flat) if self.config.tied else self.unembed(flat)
        return out.astype(jnp.float32).reshape(*hidden.shape[:-1], self.config.vocab_size)

    def values(self, hidden: Array) -> Array:
        """Scalar value f32 ``[...]``."""
        return self.value(hidden.astype(jnp.float32))[..., 0]

    def exits(self, states: Array) -> Array:
        """Probability of leaving after each loop, given the states ``[loops, ...]`` after them: f32 ``[loops, ...]``.

        With gates g_l it is ``g_l * prod_{j<l} (1 - g_j)``; who has not left before leaves after the last loop.
        """
        stay = jax.nn.sigmoid(-self.exit(states.astype(jnp.float32))[..., 0])
        before = jnp.concatenate([jnp.ones_like(stay[:1]), jnp.cumprod(stay[:-1], axis=0)])
        return before - jnp.concatenate([before[1:], jnp.zeros_like(stay[:1])])


def empty_cache(config: TransformerConfig, rows: int, length: int = 0) -> tuple[Array, Array]:
    """Keys and values of no position yet, with room for `length`."""
    shape = (config.loops * config.depth, rows, length, config.kv_heads, config.head_size)
    cache = jnp.zeros(shape, config.dtype)
    return cache, cache


def view(config: TransformerConfig, mask: Array, past_mask: Array) -> tuple[tuple[Array, Array], Array]:
    """Rotary angles of a chunk, and which keys its queries may read, bool ``[B, n, m + n]``."""
    rows, n = mask.shape
    seen = jnp.sum(past_mask, axis=-1, dtype=jnp.int32, keepdims=True)
    positions = jnp.maximum(seen + jnp.cumsum(mask, axis=-1, dtype=jnp.int32) - 1, 0)
    order = jnp.arange(n)
    own = (mask[:, None, :] & (order[None, :] < order[:, None])) | (order[None, :] == order[:, None])
    # A query always sees itself: at padding this keeps the softmax defined, and nobody reads the result.
    earlier = jnp.broadcast_to(past_mask[:, None], (rows, n, past_mask.shape[1]))
    return _rotation(positions, config), jnp.concatenate([earlier, own], axis=-1)


@dataclasses.dataclass(frozen=True)
class TransformerPolicy:
    """A transformer as a `creditjax.models.base.TextPolicy`: teacher-forced evaluation, and decoding with a KV cache.

    The state before any real token has the hidden state 0, so a row with an empty prompt starts from uniform logits.
    """

    config: TransformerConfig

    @property
    def module(self) -> Transformer:
        """The linen module."""
        return Transformer(self.config)

    def init(self, key: Array) -> Params:
        """Fresh float32 parameters; the paths are those of `PARAMETER_AXES`."""
        return self.module.init(key, jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))["params"]

    def evaluate(
        self, params: Params, batch: Trajectory, sampling: Sampling = Sampling(), statistics: Sequence[str] = ()
    ) -> PolicyOutput:
        """Teacher-forced pass, see `creditjax.models.base.Policy`.

        `value` at t is read from the last real token before t. `next_value` at t is the value of the state in which the
        next position was acted, whatever the environment said in between; at the last acted position it is the value
        after the last real token of the row; it is 0 where the batch says `terminated`.

        Args:
          params: from `init`.
          batch: any leading axes; needs the signal `token_mask`.
          sampling: static.
          statistics: any of `creditjax.models.sampling.STATISTICS`, or of `LOOP_STATISTICS`, which are ``[..., T, L]``.

        Raises:
          ValueError: the batch has no `token_mask`, or a statistic is unknown.
        """
        if "token_mask" not in batch.signals:
            spec = SIGNALS["token_mask"]
            raise ValueError(f"signal token_mask {list(spec.axes)} is absent: {spec.meaning}; made by {spec.producer}")
        shape, length = batch.tokens.shape, batch.length
        fields = (batch.tokens, batch.signals["token_mask"], batch.action_mask)
        tokens, mask, acted = (x.reshape(-1, length) for x in fields)
        hidden, latest, context = self._contexts(params, tokens, mask)
        order = jnp.arange(length)

        by_loop = self._loop_statistics(params, tokens, mask, sampling, statistics)
        own = tuple(name for name in statistics if name not in LOOP_STATISTICS)
        found = self._statistics(params, context, tokens, sampling, own)
        value = next_value = None
        if self.config.value_head:
            state_value = self._apply(params, "values", context)
            final_value = self._apply(params, "values", _gather(hidden, latest[:, -1:]))
            following = lax.cummin(jnp.where(acted, order, length), axis=1, reverse=True)  # next acted position from t
            following = jnp.pad(following[:, 1:], ((0, 0), (0, 1)), constant_values=length)
            ahead = jnp.take_along_axis(state_value, jnp.minimum(following, length - 1), axis=1)
            next_value = jnp.where(following < length, ahead, final_value)
            if batch.terminated is not None:
                next_value = jnp.where(batch.terminated.reshape(-1, length), 0.0, next_value)
            value = jnp.where(acted, state_value, 0.0).reshape(shape)
            next_value = jnp.where(acted, next_value, 0.0).reshape(shape)
        found = {name: jnp.where(acted, x, 0.0).reshape(shape) for name, x in found.items()}
        found |= {name: jnp.where(acted[..., None], x, 0.0).reshape(*shape, -1) for name, x in by_loop.items()}
        return PolicyOutput(found.pop("logprob"), found.pop("entropy"), value, next_value, found)

    def contexts(self, params: Params, batch: Trajectory) -> Array:
        """Hidden state ``[..., T, width]`` from which each position is predicted, the input of the output layer."""
        tokens, mask = (x.reshape(-1, batch.length) for x in (batch.tokens, batch.signals["token_mask"]))
        return self._contexts(params, tokens, mask)[-1].reshape(*batch.tokens.shape, -1)

    def prefix_values(self, params: Params, batch: Trajectory) -> Array:
        """The value head's score of every prefix, f32 ``[..., T + 1]``: entry t has read the positions before t.

        Raises:
          ValueError: there is no value head.
        """
        if not self.config.value_head:
            raise ValueError(f"prefix values: {type(self).__name__} has no value head")
        tokens, mask = (x.reshape(-1, batch.length) for x in (batch.tokens, batch.signals["token_mask"]))
        hidden, latest, context = self._contexts(params, tokens, mask)
        whole = jnp.concatenate([context, _gather(hidden, latest[:, -1:])], axis=1)
        return self._apply(params, "values", whole).reshape(*batch.batch_shape, -1)

    def embeddings(self, params: Params, tokens: Array, mask: Array) -> Array:
        """Input embeddings ``[B, n, width]`` of tokens ``[B, n]``."""
        return self._apply(params, "embeddings", tokens, mask)

    def score_embedded(self, params: Params, embeddings: Array, tokens: Array, mask: Array, scored: Array) -> Array:
        """Summed log-probability f32 ``[B]`` of the tokens where `scored`, read from given input embeddings.

        Differentiable in the embeddings; temperature 1.
        """
        context = self._before(self._apply(params, "embedded_hidden", embeddings, mask), mask)
        logprob = self._statistics(params, context, tokens, Sampling(), ())["logprob"]
        return jnp.sum(jnp.where(scored, logprob, 0.0), axis=-1)

    def value_embedded(self, params: Params, embeddings: Array, mask: Array) -> Array:
        """The value head's score f32 ``[B]`` of whole rows, differentiable in their input embeddings.

        Raises:
          ValueError: there is no value head.
        """
        if not self.config.value_head:
            raise ValueError(f"value of embeddings: {type(self).__name__} has no value head")
        hidden = self._apply(params, "embedded_hidden", embeddings, mask)
        latest = jnp.max(jnp.where(mask, jnp.arange(mask.shape[1]), -1), axis=1)
        return self._apply(params, "values", _gather(hidden, latest[:, None]))[:, 0]

    def fold_attention(
        self, params: Params, tokens: Array, mask: Array, observe: Callable[[Any, Array, Array], Any], carry: Any
    ) -> Any:
        """Runs the layers and folds what their attention shows; only one layer's weights exist at a time.

        Args:
          params: from `init`.
          tokens: i32 ``[B, T]``.
          mask: bool ``[B, T]``, where they are real. Rows of padding attend to themselves.
          observe: ``observe(carry, layer, weight) -> carry`` with the layer's number (loops counted on) and f32
            ``[B, heads, T, T]``, query by key.
          carry: what it starts from.
        """
        c = self.config
        rows, length = mask.shape
        rotation, visible = view(c, mask, jnp.zeros((rows, 0), bool))
        past = jax.tree.map(lambda x: x[0], empty_cache(c, rows))

        def layer(state, inputs):
            x, carry = state
            index, weights = inputs
            (x, _), aside = Block(c).apply({"params": weights}, x, rotation, visible, past, mutable=["intermediates"])
            attention = aside["intermediates"]["attention"]["weight"][0].astype(jnp.float32)
            return (x, observe(carry, index, attention.reshape(rows, c.heads, length, length))), None

        state = (self.embeddings(params, tokens, mask).reshape(rows * length, c.width), carry)
        for loop in range(c.loops):
            state, _ = lax.scan(layer, state, (loop * c.depth + jnp.arange(c.depth), params["layers"]))
        return state[1]

    def divergence(self, params: Params, other: Params, batch: Trajectory, sampling: Sampling = Sampling()) -> Array:
        """``KL(pi || pi_other)`` at every acted position, f32 ``[..., T]``, 0 elsewhere.

        Both distributions are those of the whole vocabulary at the sampling temperature: on truncated supports, which
        differ, it would be infinite.

        Args:
          params: of the one policy, from `init`.
          other: of the other.
          batch: any leading axes; needs the signal `token_mask`.
          sampling: static.
        """
        shape, length = batch.tokens.shape, batch.length
        tokens, mask = (x.reshape(-1, length) for x in (batch.tokens, batch.signals["token_mask"]))
        own, others = (self._contexts(p, tokens, mask)[-1] for p in (params, other))

        def head(own, others):
            logits = self._apply(params, "logits", own), self._apply(other, "logits", others)
            return {"token_kl": token_divergence(*logits, sampling)}

        found = self._by_chunks(head, own, others)["token_kl"]
        return jnp.where(batch.action_mask, found.reshape(shape), 0.0)

    def start(self, params: Params, rows: int, length: int) -> DecodeState:
        """An empty decode state, see `creditjax.models.base.TextPolicy`."""
        logits = jnp.zeros((rows, self.config.vocab_size), jnp.float32)
        return DecodeState(logits, jnp.zeros((rows, length), bool), empty_cache(self.config, rows, length))

    def extend(
        self, params: Params, state: DecodeState, tokens: Array, mask: Array, position: int | Array
    ) -> DecodeState:
        """Feeds a chunk through the cache, see `creditjax.models.base.TextPolicy`.

        A static `position` reads only the part of the cache before it: a prefill at 0 costs one plain forward pass.
        """
        if tokens.shape[1] == 0:
            return state
        used = position if isinstance(position, int) else state.mask.shape[1]
        past = jax.tree.map(lambda x: x[:, :, :used], state.cache)
        hidden, new = self._apply(params, "hidden", tokens, mask, past, state.mask[:, :used])
        latest = jnp.max(jnp.where(mask, jnp.arange(tokens.shape[1]), -1), axis=1)
        logits = self._apply(params, "logits", _gather(hidden, latest[:, None])[:, 0])
        return DecodeState(
            logits=jnp.where(latest[:, None] >= 0, logits, state.logits),
            mask=lax.dynamic_update_slice_in_dim(state.mask, mask, position, axis=1),
            cache=jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, position, axis=2), state.cache, new),
        )

    def _apply(self, params: Params, method: str, *args):
        return self.module.apply({"params": params}, *args, method=method)

    def _contexts(self, params: Params, tokens: Array, mask: Array) -> tuple[Array, Array, Array]:
        """Hidden states ``[B, T, width]``, the last real token up to each position, and the states to predict from."""
        hidden, _ = self._apply(params, "hidden", tokens, mask)
        latest = lax.cummax(jnp.where(mask, jnp.arange(tokens.shape[1]), -1), axis=1)
        return hidden, latest, self._before(hidden, mask)

    def _before(self, hidden: Array, mask: Array) -> Array:
        """The state ``[B, T, width]`` that each position is predicted from: after the last real token before it."""
        latest = lax.cummax(jnp.where(mask, jnp.arange(mask.shape[1]), -1), axis=1)
        return _gather(hidden, jnp.pad(latest[:, :-1], ((0, 0), (1, 0)), constant_values=-1))

    def _loop_statistics(self, params, tokens: Array, mask: Array, sampling: Sampling, names: Sequence[str]):
        """The statistics among `names` that have a loop axis, f32 ``[B, T, L]``."""
        wanted = [name for name in LOOP_STATISTICS if name in names]
        if not wanted:
            return {}
        states = self._apply(params, "loop_states", tokens, mask)
        contexts = jax.vmap(lambda state: self._before(state, mask))(states)
        found = {}
        if "loop_logprob" in wanted:
            found["loop_logprob"] = jnp.stack(
                [self._statistics(params, context, tokens, sampling, ())["logprob"] for context in contexts], axis=-1
            )
        if "exit_pdf" in wanted:
            one = jnp.ones(contexts.shape[:-1], jnp.float32)
            pdf = self._apply(params, "exits", contexts) if self.config.loops > 1 else one
            found["exit_pdf"] = jnp.moveaxis(pdf, 0, -1)
        return found

    def _statistics(self, params, context: Array, tokens: Array, sampling: Sampling, names: tuple[str, ...]):
        # Rematerialised: the backward pass keeps [B, T, width] and makes the [B, T, V] arrays again.
        @jax.checkpoint
        def head(params, hidden, tokens):
            return token_statistics(self._apply(params, "logits", hidden), tokens, sampling, names)

        return self._by_chunks(lambda context, tokens: head(params, context, tokens), context, tokens)

    def _by_chunks(self, head, *xs: Array) -> dict[str, Array]:
        """``head(*xs)`` of arrays ``[B, T, ...]``, `logit_chunk` positions at a time."""
        rows, length = xs[0].shape[:2]
        chunk = self.config.logit_chunk
        if not 0 < chunk < length:
            return head(*xs)

        def split(x):
            x = jnp.pad(x, ((0, 0), (0, -length % chunk)) + ((0, 0),) * (x.ndim - 2))
            return jnp.moveaxis(x.reshape(rows, -1, chunk, *x.shape[2:]), 1, 0)

        found = lax.map(lambda parts: head(*parts), tuple(map(split, xs)))
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, -1)[:, :length], found)


def _gather(hidden: Array, index: Array) -> Array:
    """Rows of ``[B, T, width]`` at `index` ``[B, n]``, 0 where it is negative."""
    picked = jnp.take_along_axis(hidden, jnp.maximum(index, 0)[..., None], axis=1)
    return jnp.where(index[..., None] >= 0, picked, 0)
