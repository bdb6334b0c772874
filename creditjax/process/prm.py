"""Process-reward models: a head at the end of every step, on the library's transformer or on features of the text.

    model = StepRewardModel(TransformerConfig(vocab_size=tokenizer.vocab_size))
    batch = encode(records, tokenizer, length=768, steps=32)
    params = model.init(jax.random.key(0))
    params, losses = train(model, params, batches, (Stage(optax.adam(1e-3), 300),))
    scored = process_reward(model, params, rollouts)          # the signal that recipes read

The loss is the cross-entropy of the two classes over labelled steps, soft labels allowed (arXiv:2305.20050,
2312.08935). In two directions (BiPRM, arXiv:2508.01682) the same weights read the steps a second time in reverse order,
and the two scores of a step are mixed. :class:`TextRewardModel` is for the few hundred solutions from which no
transformer learns to compare what a step says with what was said before: it is given the comparisons
(`creditjax.process.features`), and learns from pairs of steps too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
from typing import Any, Literal, NamedTuple, TypeVar

from flax import linen as nn
import jax
from jax import numpy as jnp
import numpy as np
import optax

from creditjax import numerics
from creditjax.kernels.segments import last_position
from creditjax.models.base import Params
from creditjax.models.transformer import Transformer, TransformerConfig
from creditjax.objectives.terms import Term
from creditjax.process.features import RELATIONS, step_texts
from creditjax.process.labels import up_to_error
from creditjax.process.metrics import predict_first_error
from creditjax.process.records import Record
from creditjax.tasks.tokenizer import Tokenizer
from creditjax.trajectory import Trajectory, segment_mask

Array = jax.Array
Batch = TypeVar("Batch", bound="StepBatch | TextBatch")


class Stream(NamedTuple):
    """Solutions as the model reads them.

    Attributes:
      tokens: i32 ``[B, T]``.
      mask: bool ``[B, T]``, where a token is real.
      step_end: i32 ``[B, K]``, the last position of each step at its natural index; -1 where there is no such step.
    """

    tokens: Array
    mask: Array
    step_end: Array


class StepBatch(NamedTuple):
    """Solutions with labels.

    Attributes:
      forward: problem, then steps in order.
      backward: problem, then steps in reverse order; None for a model that reads in one direction.
      label: f32 ``[B, K]``, 1 right, 0 wrong, or between.
      valid: bool ``[B, K]``, where there is a label that the loss may read.
    """

    forward: Stream
    backward: Stream | None
    label: Array
    valid: Array

    @property
    def step_mask(self) -> Array:
        """Which steps the model scores, bool ``[B, K]``."""
        here = self.forward.step_end >= 0
        return here if self.backward is None else here & (self.backward.step_end >= 0)


@dataclasses.dataclass(frozen=True)
class StepRewardModel:
    """The model as pure functions of its parameters. Hashable, so it may be a static argument.

    Attributes:
      config: of the transformer.
      direction: "forward"; "both", mixed by `mix`; or "gated", mixed by a gate that reads both hidden states.
      mix: weight of the backward score under "both".

    Raises:
      ValueError: an unknown direction, or a `mix` outside [0, 1].
    """

    config: TransformerConfig
    direction: Literal["forward", "both", "gated"] = "forward"
    mix: float = 0.5

    def __post_init__(self):
        if self.direction not in ("forward", "both", "gated"):
            raise ValueError(f"direction: {self.direction!r}, wanted 'forward', 'both' or 'gated'")
        if not 0.0 <= self.mix <= 1.0:
            raise ValueError(f"mix: {self.mix}, wanted 0 to 1")

    @property
    def module(self) -> "StepHead":
        """The linen module."""
        return StepHead(self.config, self.direction == "gated")

    def init(self, key: Array) -> Params:
        """Fresh parameters; head and gate start at 0, so every step scores 1/2."""
        one = Stream(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool), jnp.zeros((1, 1), jnp.int32))
        return self.module.init(key, one, one)["params"]

    def logprob(self, params: Params, forward: Stream, backward: Stream | None = None) -> tuple[Array, Array]:
        """``log p`` and ``log(1 - p)`` of every step being right, f32 ``[B, K]``; arbitrary where `step_end` is -1.

        ``p = (1 - m) p_forward + m p_backward`` with m the mix, or ``1 - m = sigmoid(w . h + b)``, h both
        hidden states.

        Raises:
          ValueError: the backward stream is absent and the model reads in both directions.
        """
        if self.direction == "forward":
            backward = None
        elif backward is None:
            raise ValueError(f"backward: None, wanted a stream for direction={self.direction!r}")
        scored: Any = self.module.apply({"params": params}, forward, backward)
        (ahead, behind), gate = scored
        if behind is None:
            return ahead[..., 1], ahead[..., 0]
        log_mix = jax.nn.log_sigmoid(-gate) if self.direction == "gated" else jnp.log(self.mix)
        log_rest = jax.nn.log_sigmoid(gate) if self.direction == "gated" else jnp.log1p(-self.mix)
        if self.direction == "both" and self.mix in (0.0, 1.0):
            mixed = behind if self.mix else ahead
            return mixed[..., 1], mixed[..., 0]
        mixed = jnp.logaddexp(jnp.asarray(log_rest)[..., None] + ahead, jnp.asarray(log_mix)[..., None] + behind)
        return mixed[..., 1], mixed[..., 0]

    def score(self, params: Params, batch: StepBatch) -> Array:
        """Probability that each step is right, f32 ``[B, K]``, 0 where there is no such step."""
        return jnp.where(batch.step_mask, jnp.exp(self.logprob(params, batch.forward, batch.backward)[0]), 0.0)


class StepHead(nn.Module):
    """Backbone, head and gate; see :class:`StepRewardModel`."""

    config: TransformerConfig
    gated: bool

    @nn.compact
    def __call__(self, forward: Stream, backward: Stream | None):
        """Class log-probabilities ``[B, K, 2]`` (wrong, right) of each stream, and the gate's logit ``[B, K]``."""
        backbone = Transformer(dataclasses.replace(self.config, tied=True), name="backbone")
        head = nn.Dense(2, kernel_init=nn.initializers.zeros, name="head")
        gate = nn.Dense(1, kernel_init=nn.initializers.zeros, name="gate") if self.gated else None

        def read(stream: Stream):
            hidden, _ = backbone.hidden(stream.tokens, stream.mask)
            end = jnp.maximum(stream.step_end, 0)[..., None]
            hidden = jnp.take_along_axis(hidden, end, axis=1).astype(jnp.float32)
            return hidden, jax.nn.log_softmax(head(hidden))

        hidden, ahead = read(forward)
        if backward is None:
            return (ahead, None), None
        reverse, behind = read(backward)
        both = jnp.concatenate([hidden, reverse], axis=-1)
        return (ahead, behind), None if gate is None else gate(both)[..., 0]


def step_bce(log_right: Array, log_wrong: Array, label: Array, valid: Array) -> Term:
    """``-y log p - (1 - y) log(1 - p)`` summed over the valid steps, and their number.

    Args:
      log_right: ``[..., K]``.
      log_wrong: ``[..., K]``.
      label: ``[..., K]`` in [0, 1].
      valid: bool ``[..., K]``; what lies elsewhere reaches neither value nor gradient.
    """
    label, right, wrong = (numerics.select(x, valid) for x in (label, log_right, log_wrong))
    return Term(-jnp.sum(label * right + (1.0 - label) * wrong), numerics.masked_count(valid))


def loss(model: StepRewardModel, params: Params, batch: StepBatch) -> Term:
    """:func:`step_bce` of a batch, as a sum and a count: parts of a batch add up."""
    right, wrong = model.logprob(params, batch.forward, batch.backward)
    return step_bce(right, wrong, batch.label, batch.valid & batch.step_mask)


# --------------------------------------------------------------------------------------------------- from text features


class TextBatch(NamedTuple):
    """Solutions as the features of their steps, with labels and, for pairs, the steps that stand against wrong ones.

    Attributes:
      relations: f32 ``[B, K, R]``, see :data:`creditjax.process.features.RELATIONS`.
      words: i32 ``[B, K, N]``, hashes; -1 for none.
      label: f32 ``[B, K]``, 1 right, 0 wrong, or between.
      valid: bool ``[B, K]``, where there is a label that the loss may read.
      step_mask: bool ``[B, K]``, which steps there are.
      rival_relations: f32 ``[B, R]``, of a right step in the place of the row's first wrong one, behind the same steps.
      rival_words: i32 ``[B, N]``.
      rival_of: i32 ``[B]``, the index of that wrong step, -1 where the row has no rival.
    """

    relations: Array
    words: Array
    label: Array
    valid: Array
    step_mask: Array
    rival_relations: Array
    rival_words: Array
    rival_of: Array


@dataclasses.dataclass(frozen=True)
class TextRewardModel:
    """A model of a step's features, as pure functions of its parameters. Hashable, so it may be a static argument.

    ``logit = w . gelu(A r + b + sum_n E[word_n] / sqrt(N))`` with r the relations of a step and N its number of words.

    Attributes:
      width: of the hidden layer.
      buckets: rows of E; a word's row is its hash modulo this number.
      pair_weight: of a pair against that of a step, see :func:`text_loss`.

    Raises:
      ValueError: a width or number of buckets below 1, or a negative weight.
    """

    width: int = 16
    buckets: int = 1 << 14
    pair_weight: float = 3.0

    def __post_init__(self):
        for name, low in (("width", 1), ("buckets", 1), ("pair_weight", 0)):
            if not getattr(self, name) >= low:
                raise ValueError(f"{name}: {getattr(self, name)}, wanted at least {low}")

    @property
    def module(self) -> "TextHead":
        """The linen module."""
        return TextHead(self.width, self.buckets)

    def init(self, key: Array) -> Params:
        """Fresh parameters; the head starts at 0, so every step scores 1/2."""
        return self.module.init(key, jnp.zeros((1, len(RELATIONS))), jnp.zeros((1, 1), jnp.int32))["params"]

    def logit(self, params: Params, relations: Array, words: Array) -> Array:
        """``log p / (1 - p)`` of a step being right, f32 ``[...]``, from ``[..., R]`` and ``[..., N]``."""
        logit: Any = self.module.apply({"params": params}, relations, words)
        return logit

    def score(self, params: Params, batch: TextBatch) -> Array:
        """Probability that each step is right, f32 ``[B, K]``, 0 where there is no such step."""
        p = jax.nn.sigmoid(self.logit(params, batch.relations, batch.words))
        return jnp.where(batch.step_mask, p, 0.0)


class TextHead(nn.Module):
    """The layers of :class:`TextRewardModel`."""

    width: int
    buckets: int

    @nn.compact
    def __call__(self, relations: Array, words: Array) -> Array:
        """Logits ``[...]``."""
        table = self.param("words", nn.initializers.normal(0.1), (self.buckets, self.width))
        there = words >= 0
        rows = jnp.where(there[..., None], table[words % self.buckets], 0.0)
        count = jnp.maximum(jnp.sum(there, axis=-1, keepdims=True), 1).astype(jnp.float32)
        hidden = nn.Dense(self.width, name="relations")(relations) + jnp.sum(rows, axis=-2) / jnp.sqrt(count)
        return nn.Dense(1, kernel_init=nn.initializers.zeros, name="head")(nn.gelu(hidden))[..., 0]


def text_loss(model: TextRewardModel, params: Params, batch: TextBatch) -> Term:
    """:func:`step_bce` and ``-w log sigmoid(z_right - z_wrong)`` of every pair, over the number of valid steps.

    A pair is a wrong step and a right one in its place, behind the same steps: neither its index nor what came before
    can tell them apart (Bradley and Terry 1952). w is the model's `pair_weight`.
    """
    z = model.logit(params, batch.relations, batch.words)
    steps = step_bce(jax.nn.log_sigmoid(z), jax.nn.log_sigmoid(-z), batch.label, batch.valid & batch.step_mask)
    wrong = jnp.take_along_axis(z, jnp.maximum(batch.rival_of, 0)[..., None], axis=-1)[..., 0]
    right = model.logit(params, batch.rival_relations, batch.rival_words)
    pairs = numerics.masked_sum(-jax.nn.log_sigmoid(right - wrong), batch.rival_of >= 0)
    return Term(steps.sum + model.pair_weight * pairs, steps.count)


def encode_text(
    records: Iterable[Record],
    steps: int,
    *,
    rivals: Sequence[int] | None = None,
    words: int = 64,
    mask_after_error: bool = True,
) -> TextBatch:
    """Records as the features of their steps.

    Args:
      records: B of them.
      steps: K; later steps are left out.
      rivals: for each record the index of the one that has a right step in the place of its first wrong one, -1 for
        none, as :func:`creditjax.process.records.rivals` finds them; no pairs if None.
      words: N; of a step with more the rest is left out.
      mask_after_error: as in :func:`encode`.
    """
    records = list(records)
    label, valid = _labels(records, steps, mask_after_error)
    relations = np.zeros((*label.shape, len(RELATIONS)), np.float32)
    hashes = np.full((*label.shape, words), -1, np.int32)
    mask = np.zeros(label.shape, bool)
    for row, record in enumerate(records):
        for k, text in enumerate(step_texts(record.problem, record.steps[:steps])):
            relations[row, k], mask[row, k] = text.relations, True
            kept = np.array(text.words[:words], np.int64) & np.iinfo(np.int32).max
            hashes[row, k, : len(kept)] = kept
    of = np.full(len(records), -1, np.int32)
    by = np.zeros(len(records), np.int32)
    for row, (record, rival) in enumerate(zip(records, rivals or (), strict=rivals is not None)):
        if rival >= 0 and record.label is not None and 0 <= record.label < steps:
            of[row], by[row] = record.label, rival
    at = np.maximum(of, 0)
    arrays = (relations, hashes, label, valid, mask, relations[by, at], hashes[by, at], of)
    return TextBatch(*map(jnp.asarray, arrays))


# --------------------------------------------------------------------------------------------------------- training


class Stage(NamedTuple):
    """A part of training.

    Attributes:
      optimizer: an optax transformation, started afresh.
      steps: number of updates.
      freeze: names of parameters at the top (such as "backbone") that stay as they are.
    """

    optimizer: optax.GradientTransformation
    steps: int
    freeze: tuple[str, ...] = ()


def two_stages(head_steps: int, full_steps: int, head_rate: float = 1e-4, full_rate: float = 1e-6) -> tuple[Stage, ...]:
    """First the head alone, then everything: the published constants of a pretrained backbone (PURE's code)."""
    return Stage(optax.adamw(head_rate), head_steps, ("backbone",)), Stage(optax.adamw(full_rate), full_steps)


def train(
    model: Any,
    params: Params,
    batches: Iterator[Batch],
    stages: Sequence[Stage],
    *,
    objective: Callable[[Any, Params, Any], Term] = loss,
    watch: Callable[[int, Params], None] = lambda updates, params: None,
) -> tuple[Params, list[float]]:
    """Minimises an objective stage by stage; one compilation a stage if the batches have one shape.

    Args:
      model: a :class:`StepRewardModel`, or what the objective takes.
      params: to start from.
      batches: as many as there are updates.
      stages: one after the other.
      objective: :func:`loss`, or :func:`text_loss` for a :class:`TextRewardModel`; its mean is minimised.
      watch: called after every update with the number of updates so far and the parameters.

    Returns:
      The parameters, and the mean loss of every update's batch before it.

    Raises:
      ValueError: a stage freezes a parameter that there is not, or the batches run out.
    """
    history: list[Array] = []
    for number, stage in enumerate(stages):
        if unknown := [name for name in stage.freeze if name not in params]:
            raise ValueError(f"stages[{number}].freeze: {unknown[0]!r}, wanted some of {sorted(params)}")
        kinds = {name: jax.tree.map(lambda _, n=name: n in stage.freeze, params[name]) for name in params}  # noqa: B023
        optimizer = optax.multi_transform({False: stage.optimizer, True: optax.set_to_zero()}, kinds)
        state = jax.jit(optimizer.init)(params)

        @jax.jit
        def update(params, state, batch, optimizer=optimizer):
            def mean(params):
                term = objective(model, params, batch)
                return numerics.safe_divide(term.sum, term.count)

            value, gradient = jax.value_and_grad(mean)(params)
            change, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, change), state, value

        for step in range(stage.steps):
            batch = next(batches, None)
            if batch is None:
                raise ValueError(f"batches: ended after {step} of {stage.steps} in stage {number}")
            params, state, value = update(params, state, batch)
            history.append(value)
            watch(len(history), params)
    return params, [float(value) for value in history]


# ------------------------------------------------------------------------------------------------------------- data


def encode(
    records: Iterable[Record],
    tokenizer: Tokenizer,
    length: int,
    steps: int,
    *,
    both: bool = False,
    mask_after_error: bool = True,
) -> StepBatch:
    """Records as arrays: the problem and every step end with a newline, and the step is scored there.

    What does not fit is not scored: a step counts if its end lies within `length` tokens, whichever the direction.

    Args:
      records: B of them.
      tokenizer: of the model.
      length: T.
      steps: K; later steps are left out.
      both: also make the stream in reverse order.
      mask_after_error: labels after the first 0 are not valid (what follows an error is neither right nor wrong).
    """
    records = list(records)
    label, valid = _labels(records, steps, mask_after_error)
    streams = [_stream(records, tokenizer, length, steps, reverse) for reverse in (False, True)[: 1 + both]]
    return StepBatch(streams[0], streams[1] if both else None, jnp.asarray(label), jnp.asarray(valid))


def _labels(records: Sequence[Record], steps: int, mask_after_error: bool) -> tuple[np.ndarray, np.ndarray]:
    label = np.full((len(records), steps), np.nan, np.float32)
    for row, record in enumerate(records):
        known = [np.nan if y is None else y for y in record.step_labels[:steps]]
        label[row, : len(known)] = known
    valid = ~np.isnan(label)
    if mask_after_error:
        # The label of a step that is not there is no error: thresholds below the smallest soft label find exact zeros.
        first = predict_first_error(jnp.asarray(label), jnp.asarray(valid), float(np.finfo(np.float32).tiny))
        valid = np.asarray(up_to_error(first, jnp.asarray(valid)))
    return np.where(valid, label, 0.0).astype(np.float32), valid


def _stream(records: Sequence[Record], tokenizer: Tokenizer, length: int, steps: int, reverse: bool) -> Stream:
    tokens = np.full((len(records), length), tokenizer.pad, np.int32)
    mask = np.zeros((len(records), length), bool)
    end = np.full((len(records), steps), -1, np.int32)
    for row, record in enumerate(records):
        ids = list(tokenizer.encode(record.problem + "\n"))
        shown = list(enumerate(record.steps[:steps]))
        for k, step in reversed(shown) if reverse else shown:
            ids += tokenizer.encode(step.replace("\n", " ") + "\n")
            if len(ids) <= length:
                end[row, k] = len(ids) - 1
        ids = ids[:length]
        tokens[row, : len(ids)] = ids
        mask[row, : len(ids)] = True
    return Stream(*map(jnp.asarray, (tokens, mask, end)))


def minibatches(data: Batch, size: int, seed: int) -> Iterator[Batch]:
    """Endless random minibatches, epoch after epoch without replacement.

    Raises:
      ValueError: `size` is not from 1 to the number of rows.
    """
    rows = data.label.shape[0]
    if not 1 <= size <= rows:
        raise ValueError(f"size: {size}, wanted 1 to {rows} rows")
    return _minibatches(data, size, np.random.default_rng(seed))


def _minibatches(data: Batch, size: int, rng: np.random.Generator) -> Iterator[Batch]:
    rows = data.label.shape[0]
    while True:
        order = rng.permutation(rows)
        for start in range(0, rows - size + 1, size):
            yield rows_of(data, order[start : start + size])


def rows_of(data: Batch, rows: Any) -> Batch:
    """Some rows of a batch."""
    return jax.tree.map(lambda x: x[rows], data)


# ---------------------------------------------------------------------------------------------------------- signals


def segment_stream(batch: Trajectory) -> Stream:
    """Rollouts ``[P, G, T]`` as a stream of ``P * G`` rows, in which every segment is a step.

    Raises:
      ValueError: the batch has no segments or no `token_mask`.
    """
    if batch.segment is None:
        raise ValueError("segment: absent, wanted i32 [P, G, T]: a process-reward model scores segments")
    if "token_mask" not in batch.signals:
        raise ValueError("signal token_mask: absent, wanted bool [P, G, T]; made by the samplers")
    flat = [x.reshape(-1, batch.length) for x in (batch.tokens, batch.signals["token_mask"], batch.segment)]
    tokens, mask, segment = flat
    acted = batch.action_mask.reshape(-1, batch.length)
    ends = jax.vmap(lambda ids, m: last_position(ids, m, batch.num_segments))(segment, acted & mask)
    return Stream(tokens, mask, ends)


def boundary_score(model: StepRewardModel, params: Params, batch: Trajectory) -> Array:
    """What the model says at the end of the prompt and of every segment, f32 ``[P, G, K + 1]``, in one pass.

    Behind a segment without an acted token it is what it was before. NaN before a rollout without a prompt.

    Raises:
      ValueError: segments or `token_mask` are absent, or the model is not of direction "forward" (the reversed text
        of a rollout is not in the batch; score records instead).
    """
    stream = segment_stream(batch)
    acted = batch.action_mask.reshape(-1, batch.length)
    begun = jnp.cumsum(acted, axis=-1) > 0
    prompt = jnp.max(jnp.where(stream.mask & ~begun, jnp.arange(batch.length), -1), axis=-1)
    ends = jnp.concatenate([prompt[:, None], stream.step_end], axis=-1)
    ends = jnp.where(ends >= 0, ends, jax.lax.cummax(ends, axis=1))
    p = jnp.exp(model.logprob(params, stream._replace(step_end=ends))[0])
    return jnp.where(ends >= 0, p, jnp.nan).reshape(*batch.batch_shape, batch.num_segments + 1)


def step_signals(model: StepRewardModel, params: Params, batch: Trajectory) -> dict[str, Array]:
    """What the model says under the names of the signal table, in one pass.

    `step_score` ``[P, G, K]`` is p, the probability that the model gives each segment; `process_reward` ``2 p - 1``;
    `prover_value` ``[P, G, K + 1]`` the same p at every boundary, for a model that was trained on the share of
    completions that are right. A segment without an acted token has no score: NaN. Errors are those of
    :func:`boundary_score`.
    """
    p = boundary_score(model, params, batch)
    score = jnp.where(segment_mask(batch), p[..., 1:], jnp.nan)
    return {"step_score": score, "process_reward": 2.0 * score - 1.0, "prover_value": p}


def process_reward(model: StepRewardModel, params: Params, batch: Trajectory, *, signed: bool = True) -> Trajectory:
    """Adds the signal `process_reward` ``[P, G, K]``: ``2 p - 1`` of every segment, or p itself; gradients stopped.

    Raises:
      ValueError: as :func:`boundary_score`.
    """
    made = step_signals(model, params, batch)["process_reward" if signed else "step_score"]
    return batch.with_signals(process_reward=jax.lax.stop_gradient(made))


def prover_value(model: StepRewardModel, params: Params, batch: Trajectory) -> Trajectory:
    """Adds the signal `prover_value` ``[P, G, K + 1]``: the model's probability of success from every boundary.

    Raises:
      ValueError: as :func:`boundary_score`.
    """
    return batch.with_signals(prover_value=jax.lax.stop_gradient(boundary_score(model, params, batch)))


def masked_reverse(x: Array, mask: Array) -> Array:
    """Reverses the first n entries of the last axis, n being their number under `mask`; an involution.

    >>> masked_reverse(jnp.array([1, 2, 3, 9]), jnp.array([True, True, True, False])).tolist()
    [3, 2, 1, 9]

    Args:
      x: ``[..., K]``.
      mask: bool ``[..., K]``, a prefix.
    """
    count = jnp.sum(mask, axis=-1, keepdims=True)
    order = jnp.arange(mask.shape[-1])
    return jnp.take_along_axis(x, jnp.where(order < count, count - 1 - order, order), axis=-1)
