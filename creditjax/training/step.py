"""The two sharded programs of a run: rollout and update, each one `jax.jit`.

An update goes from a batch ``[P, G, T]`` to new parameters in one program: signals, credit, loss, gradient, optimiser.
Credit is taken on the *whole* batch, before anything is split, so group and batch statistics cannot depend on
minibatches, micro-batches or devices. A minibatch's loss is a sum of terms ``weight * sum / count`` whose counts are
taken from the whole minibatch first; micro-batches then add up the gradient of ``sum / count``, so their number cannot
change it either.
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import optax

from creditjax import numerics
from creditjax.algebra.core import Transform
from creditjax.algebra.credit import Credit, Level
from creditjax.algebra.estimate import estimate
from creditjax.models.base import Params, Policy, PolicyOutput, Sampling
from creditjax.objectives import Objective, counts, phases, supervised, total
from creditjax.samplers import replay
from creditjax.signals.edits import with_edited_steps
from creditjax.signals.policy import token_kl
from creditjax.signals.producers import Models, produce
from creditjax.training import mesh as mesh_lib
from creditjax.training.reward import RewardLearner, StepRewardLearner
from creditjax.training.state import REWARD_MODEL, Stream, TrainState, state_shardings, stream_key
from creditjax.trajectory import Trajectory, lengths, vote_mask

Array = jax.Array
Metrics = dict[str, tuple[Array, Array]]  # (sum, count) until the last division, on the host


class Plan(NamedTuple):
    """How one batch becomes parameter updates. All static.

    Attributes:
      epochs: passes over the batch.
      minibatches: parameter updates a pass; each takes every `minibatches`-th prompt of a random order.
      micro_batches: pieces of a minibatch whose gradients are added up; saves memory, changes nothing.
      baseline_decay: decay a batch of the moving average of outcomes.
      steps: training steps of the whole run, for the signal `progress`.
    """

    epochs: int = 1
    minibatches: int = 1
    micro_batches: int = 1
    baseline_decay: float = 0.9
    steps: int = 1


def split(tree: Any, rows: int, parts: int, key: Array | None = None) -> Any:
    """Leaves ``[rows, ...]`` as ``[parts, rows / parts, ...]``; leaves without rows are repeated.

    Every block of `parts` consecutive rows gives one row to each part: in order, or in a random order of its own with
    `key`. So no row moves to another device, as it would in a permutation of the whole batch, and the split does not
    depend on the mesh.
    """
    order = None
    if key is not None and parts > 1:
        order = jnp.argsort(jax.random.uniform(key, (rows // parts, parts)), axis=1)

    def one(x):
        if x.ndim == 0 or x.shape[0] != rows:
            return jnp.broadcast_to(x, (parts, *x.shape))
        x = x.reshape(rows // parts, parts, *x.shape[1:])
        if order is not None:
            x = jnp.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), axis=1)
        return jnp.moveaxis(x, 1, 0)

    return jax.tree.map(one, tree)


def merge(tree: Any) -> Any:
    """The inverse of :func:`split` without a key, for leaves that all have rows."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:]), tree)


def faulty_groups(batch: Trajectory) -> Array:
    """Groups with a number that cannot be right, bool ``[P]``.

    A log-probability of an acted token that is not finite or above 0, a reward at a real token that is not finite, an
    infinite outcome. (A NaN outcome is no fault: it means unscored.)
    """
    acted = batch.action_mask
    real = batch.signals.get("token_mask", acted)
    fault = jnp.isinf(batch.outcome)
    if batch.logprob is not None:
        fault |= jnp.any(acted & ~(jnp.isfinite(batch.logprob) & (batch.logprob <= 1e-5)), axis=-1)
    if batch.reward is not None:
        fault |= jnp.any((real | acted) & ~jnp.isfinite(batch.reward), axis=-1)
    return jnp.any(fault, axis=-1)


def idle_groups(batch: Trajectory, kept: tuple[float, float] = (-math.inf, math.inf)) -> Array:
    """Groups that teach nothing, bool ``[P]``: accuracies, or else outcomes, are equal, or their mean is not `kept`.

    Args:
      batch: rollouts ``[P, G, T]``.
      kept: the lowest and the highest mean of a group that teaches.
    """
    score, votes = batch.signals.get("accuracy", batch.outcome), vote_mask(batch)
    mean = numerics.masked_mean(score, votes, axis=-1)
    low, high = kept
    # Four of five right is 0.8 and inside.
    return numerics.is_constant(score, votes, axis=-1) | (mean < low - 1e-6) | (mean > high + 1e-6)


def replace_groups(batch: Trajectory, fresh: Trajectory, replaced: Array) -> Trajectory:
    """The batch with the groups `replaced` ``[P]`` from the same places of another: nothing changes its device."""
    choose = lambda old, new: jnp.where(replaced.reshape(-1, *[1] * (old.ndim - 1)), new, old)  # noqa: E731
    return jax.tree.map(choose, batch, fresh)


def drop_groups(batch: Trajectory, faulty: Array) -> Trajectory:
    """The same batch in which the groups ``[P]`` act nowhere and do not vote."""
    rows = faulty[:, None]
    keep = ~rows[..., None]
    select = lambda x: None if x is None else numerics.select(x, jnp.broadcast_to(keep, x.shape))  # noqa: E731
    return batch.replace(
        action_mask=batch.action_mask & keep,
        votes=vote_mask(batch) & ~rows,
        outcome=jnp.where(rows, jnp.nan, batch.outcome),
        logprob=select(batch.logprob),
        reward=select(batch.reward),
    )


class Replay(NamedTuple):
    """How older rollouts come back. All static.

    A prompt's older rollouts are of the same prompt, so a run with replay trains on the first `prompts` of the task
    alone: once in their order, and from then on hard, medium and easy ones in shares (`samplers.replay`). A rollout
    keeps the log-probabilities of the policy that drew it, so a ratio against it is right however old it is.

    The buffer is in the `TrainState` and in every checkpoint: `capacity` rows of 20 T bytes in a text task (16 T and
    the observations in control) and what the task's signals take, split over the devices that prompts are split over;
    up to twice as much again while an update runs. Drawing from it sorts P times `capacity` numbers.

    Attributes:
      rollouts: of each group, out of the buffer.
      prompts: Q.
      capacity: N, rollouts that are kept.
      window: W, latest outcomes of each prompt.
      first: the data cursor at which reinforcement learning begins.
    """

    rollouts: int
    prompts: int
    capacity: int
    window: int
    first: int = 0

    def numbers(self, state: TrainState, count: int) -> Array:
        """The prompts of the step after a state, i32 ``[count]``: a function of the state alone, and all different."""
        done = state.cursor - self.first
        in_order = (done + jnp.arange(count)) % self.prompts
        key = jax.random.fold_in(stream_key(state.key, Stream.REPLAY, state.step), 0)
        return jnp.where(done < self.prompts, in_order, replay.sample_prompts(state.replay, key, count))

    def recall(self, state: TrainState, batch: Trajectory) -> tuple[TrainState, Trajectory]:
        """The batch ``[P, G]`` of those prompts joined by older rollouts, and the state that remembers the new ones."""
        numbers = self.numbers(state, batch.batch_shape[0])
        key = jax.random.fold_in(stream_key(state.key, Stream.REPLAY, state.step), 1)
        older, found = replay.draw(state.replay, key, numbers, self.rollouts)
        joined = replay.join(batch, older, found, replay.prompt_mean(state.replay, numbers))
        return state.replace(replay=replay.add(state.replay, batch, numbers)), joined


class Learner(NamedTuple):
    """What the steps of one run share. All static: pure functions and plain data."""

    policy: Policy
    optimizer: optax.GradientTransformation
    sampling: Sampling
    plan: Plan
    mesh: Mesh
    reward: RewardLearner | StepRewardLearner | None = None
    task: Any = None
    replay: Replay | None = None
    edited: bool = False

    def models(self, state: TrainState) -> Models:
        """Whom the producers of signals may ask."""
        reward_model = state.extra[REWARD_MODEL]["params"] if self.reward is not None else None
        steps = self.reward.model if isinstance(self.reward, StepRewardLearner) else None
        return Models(self.policy, state.params, state.reference, reward_model, self.sampling, self.task, steps)

    def learn(
        self, state: TrainState, batch: Trajectory, credit: Credit, loss: Objective, inspect: Callable | None = None
    ) -> tuple[TrainState, Metrics]:
        """Updates `params` and `opt_state` from a batch and its credit; a gradient that is not finite changes nothing.

        Args:
          state: the state before.
          batch: rollouts ``[P, G, T]`` with their signals.
          credit: their credit at token level.
          loss: the objective.
          inspect: called while compiling with (path, sharding) of every accumulated gradient.
        """
        plan, rows = self.plan, batch.batch_shape[0]
        key = stream_key(state.key, Stream.ORDER, state.step)

        def epoch(part: Objective, carry, index):
            pieces = self.pin(split((batch, credit), rows, plan.minibatches, jax.random.fold_in(key, index)))
            step = lambda carry, piece: self._minibatch(*carry, *piece, part, state.reference, inspect)  # noqa: E731
            return _scan(step, carry, pieces, plan.minibatches)

        carry, metrics = (state.params, state.opt_state), {}
        for part in phases(loss):
            carry, more = _scan(functools.partial(epoch, part), carry, jnp.arange(plan.epochs), plan.epochs)
            # What both phases measure is averaged over both.
            for name, measured in jax.tree.map(jnp.sum, more).items():
                metrics[name] = jax.tree.map(jnp.add, metrics.get(name, (0.0, 0.0)), measured)
        params, opt_state = carry
        return state.replace(params=params, opt_state=opt_state), metrics

    def _minibatch(self, params, opt_state, batch: Trajectory, credit: Credit, loss: Objective, reference, inspect):
        parts, rows = self.plan.micro_batches, batch.batch_shape[0]
        statistics = tuple(name for name in loss.statistics if name != "token_kl")

        def evaluate(params, piece: Trajectory) -> PolicyOutput:
            new = self.policy.evaluate(params, piece, self.sampling, statistics)
            if "token_kl" not in loss.statistics:
                return new
            divergence = token_kl(self.policy, jax.lax.stop_gradient(params), reference, piece, self.sampling)
            return new._replace(statistics={**new.statistics, "token_kl": divergence})

        if loss.preparation is not None:
            pieces = self.pin(split(batch, rows, parts))
            _, new = _scan(lambda carry, piece: (carry, evaluate(params, piece)), (), pieces, parts)
            credit = loss.prepare(jax.lax.stop_gradient(merge(new)), credit, batch)
        whole = counts(loss, credit, batch)

        def objective_of(params, piece: Trajectory, piece_credit: Credit):
            new = evaluate(params, piece)
            terms = loss(new, piece_credit, piece)
            sums = {name: jax.lax.stop_gradient(term.sum) for name, term in terms.items()}
            return total(terms, whole), (sums, _policy_metrics(new, piece))

        def accumulate(gradient, piece):
            (value, (sums, metrics)), more = jax.value_and_grad(objective_of, has_aux=True)(params, *piece)
            added = jax.tree.map(jnp.add, gradient, self._place(more))
            return self._place(added, inspect), (value, sums, metrics)

        zero = self._place(jax.tree.map(jnp.zeros_like, params))
        gradient, (value, sums, metrics) = _scan(accumulate, zero, self.pin(split((batch, credit), rows, parts)), parts)
        metrics = jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)

        norm = optax.global_norm(gradient)
        finite = jnp.isfinite(norm)
        updates, new_opt_state = self.optimizer.update(gradient, opt_state, params)
        # A gradient that is not finite must reach neither the parameters nor the optimiser's moments.
        keep = lambda new, old: jnp.where(finite, new, old)  # noqa: E731
        new_params = jax.tree.map(keep, optax.apply_updates(params, updates), params)
        new_opt_state = jax.tree.map(keep, new_opt_state, opt_state)
        one = jnp.float32(1)
        metrics |= {name: (jnp.sum(x), whole[name]) for name, x in sums.items()}
        metrics |= {
            "loss": (jnp.sum(value), one),
            "gradient_norm": (norm, one),
            "skipped_updates": (1 - finite.astype(jnp.float32), one),
        }
        return (new_params, new_opt_state), metrics

    def learn_reward(self, state: TrainState, batch: Trajectory) -> tuple[TrainState, Metrics]:
        """One update of the process-reward model on the batch.

        It comes after the credit: a batch is judged by the model that has not seen it.
        """
        model, parts, rows = (
            state.extra[REWARD_MODEL],
            self.plan.minibatches * self.plan.micro_batches,
            len(batch.tokens),
        )
        count = self.reward.count(batch)

        def loss(params, piece: Trajectory):
            return numerics.safe_divide(self.reward.loss(self.policy, params, piece), count)

        def accumulate(gradient, piece):
            value, more = jax.value_and_grad(loss)(model["params"], piece)
            return self._place(jax.tree.map(jnp.add, gradient, self._place(more))), value

        zero = self._place(jax.tree.map(jnp.zeros_like, model["params"]))
        gradient, values = _scan(accumulate, zero, self.pin(split(batch, rows, parts)), parts)
        updates, opt_state = self.reward.optimizer.update(gradient, model["opt_state"], model["params"])
        model = {"params": optax.apply_updates(model["params"], updates), "opt_state": opt_state}
        extra = {**state.extra, REWARD_MODEL: model}
        return state.replace(extra=extra), {"reward_model_loss": (jnp.sum(values), jnp.float32(1))}

    def pin(self, pieces: Any) -> Any:
        """Keeps the rows of split leaves ``[parts, rows, ...]`` on their devices."""
        return _constrain_rows(pieces, self.mesh, PartitionSpec(None, ("data", "fsdp")))

    def _place(self, gradient: Any, inspect: Callable | None = None) -> Any:
        placed = jax.lax.with_sharding_constraint(gradient, mesh_lib.shardings(self.mesh, gradient))
        if inspect is not None:
            for path, leaf in jax.tree_util.tree_leaves_with_path(placed):
                jax.debug.inspect_array_sharding(leaf, callback=lambda s, path=path, leaf=leaf: inspect(path, leaf, s))
        return placed


def _constrain_rows(tree: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    shards, dim = mesh_lib.batch_shards(mesh), len(spec) - 1
    where = NamedSharding(mesh, spec)
    fits = lambda x: x.ndim > dim and x.shape[dim] % shards == 0  # noqa: E731
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, where) if fits(x) else x, tree)


def _scan(body: Callable, carry: Any, xs: Any, length: int) -> tuple[Any, Any]:
    """`lax.scan`, but straight-line code for a single step, which XLA fuses better."""
    if length > 1:
        return jax.lax.scan(body, carry, xs)
    carry, ys = body(carry, jax.tree.map(lambda x: x[0], xs))
    return carry, jax.tree.map(lambda y: y[None], ys)


def _policy_metrics(new: PolicyOutput, batch: Trajectory) -> Metrics:
    mask = batch.action_mask
    count = numerics.masked_count(mask)
    metrics = {"entropy": (numerics.masked_sum(new.entropy, mask), count)}
    if batch.logprob is not None:
        gap = numerics.select(new.logprob - batch.logprob, mask)
        metrics["kl_behaviour"] = (numerics.masked_sum(jnp.expm1(jnp.clip(gap, -20, 20)) - gap, mask), count)
    if (ref := batch.signals.get("logprob_ref")) is not None:
        gap = numerics.select(ref - new.logprob, mask)
        metrics["kl_reference"] = (numerics.masked_sum(jnp.expm1(jnp.clip(gap, -20, 20)) - gap, mask), count)
    return jax.lax.stop_gradient(metrics)


def batch_metrics(batch: Trajectory, credit: Credit) -> Metrics:
    """What a batch and its credit say before any update, as (sum, count)."""
    scored = jnp.isfinite(batch.outcome) & _fresh(batch)
    votes = vote_mask(batch)
    valid = credit.valid & batch.action_mask
    one = jnp.float32(1)
    acted = lengths(batch)
    rows = acted > 0
    groups = jnp.any(votes, axis=-1)
    constant = groups & numerics.is_constant(batch.outcome, votes, axis=-1)
    metrics = {
        "reward": (numerics.masked_sum(batch.outcome, scored), numerics.masked_count(scored)),
        "credit_mean": (numerics.masked_sum(credit.value, valid), numerics.masked_count(valid)),
        "credit_std": (numerics.masked_std(credit.value, valid), one),
        "credit_zero_fraction": (numerics.masked_count(valid & (credit.value == 0)), numerics.masked_count(valid)),
        "zero_variance_groups": (numerics.masked_count(constant), numerics.masked_count(groups)),
        "response_length": (jnp.sum(acted, dtype=jnp.float32), numerics.masked_count(rows)),
        "tokens": (jnp.sum(acted, dtype=jnp.float32), one),
    }
    if (accuracy := batch.signals.get("accuracy")) is not None:
        metrics["accuracy"] = (numerics.masked_sum(accuracy, scored), numerics.masked_count(scored))
    if (off := batch.signals.get("is_offpolicy")) is not None:
        metrics["replayed_fraction"] = (numerics.masked_count(off & votes), numerics.masked_count(votes))
    if batch.truncated is not None:
        cut = jnp.any(batch.truncated, axis=-1)
        metrics["truncated_fraction"] = (numerics.masked_count(cut & rows), numerics.masked_count(rows))
    return metrics


def _fresh(batch: Trajectory) -> Array | bool:
    """Rows of the current policy: what is replayed says nothing of how good it is."""
    off = batch.signals.get("is_offpolicy")
    return True if off is None else ~off


def _moving_average(baseline: Array, batch: Trajectory, decay: float) -> Array:
    scored = jnp.isfinite(batch.outcome) & _fresh(batch)
    fresh = jnp.stack([numerics.masked_mean(batch.outcome, scored), jnp.any(scored).astype(jnp.float32)])
    return decay * baseline + (1 - decay) * fresh


def make_rollout(mesh: Mesh, rollout: Callable, params: Any) -> Callable[[Params, Any, Array], Trajectory]:
    """The sampler's `rollout` as one sharded program: parameters as they lie, prompts and trajectories split by rows.

    Args:
      mesh: the run's mesh.
      rollout: `creditjax.samplers.build(...)`, a pure ``(params, prompts, key) -> Trajectory``.
      params: parameters, or their shapes, for their shardings.
    """
    rows, everywhere = mesh_lib.batch_sharding(mesh), mesh_lib.replicated(mesh)
    places = mesh_lib.shardings(mesh, params)
    return jax.jit(rollout, in_shardings=(places, rows, everywhere), out_shardings=rows)


def make_update(
    learner: Learner, state: TrainState, names: Sequence[str], inspect: Callable | None = None
) -> Callable[[TrainState, Trajectory, Transform, Objective, Array], tuple[TrainState, Metrics]]:
    """One sharded program ``update(state, batch, estimator, objective, prompts) -> state, metrics``.

    The state is donated. Estimator and objective are arguments, and pytrees: another float in them is the same program.
    `prompts` is how far the data cursor moves. The metrics are (sum, count) pairs, replicated.

    Args:
      learner: policy, optimiser and plan.
      state: a state, or the shapes of one, for its shardings.
      names: signals to add before the estimator runs.
      inspect: see :meth:`Learner.learn`.
    """
    mesh, plan = learner.mesh, learner.plan

    def update(state: TrainState, batch: Trajectory, estimator: Transform, loss: Objective, prompts: Array):
        faulty = faulty_groups(batch)
        batch = drop_groups(batch, faulty)
        if learner.replay is not None:
            state, batch = learner.replay.recall(state, batch)
            batch = _constrain_rows(batch, mesh, mesh_lib.BATCH)
        rollouts = batch
        batch, credit = assign(learner, state, batch, names, estimator)
        # Of what is no rollout, nothing is measured.
        metrics = batch_metrics(*((rollouts, of_rollouts(credit)) if learner.edited else (batch, credit)))
        metrics["dropped_groups"] = (jnp.sum(faulty, dtype=jnp.float32), jnp.float32(1))
        if learner.reward is not None:
            state, rewarded = learner.learn_reward(state, batch)
            metrics |= rewarded
        state, learned = learner.learn(state, batch, credit, loss, inspect)
        baseline = _moving_average(state.baseline, batch, plan.baseline_decay)
        state = state.replace(step=state.step + 1, cursor=state.cursor + prompts, baseline=baseline)
        return state, metrics | learned

    return _jit_step(mesh, state, update, 3)


def make_imitate(learner: Learner, state: TrainState) -> Callable:
    """The supervised step ``imitate(state, gold, prompts) -> state, metrics``, of the same parts as an update."""

    def imitate(state: TrainState, batch: Trajectory, prompts: Array):
        mask = batch.action_mask
        credit = Credit(mask.astype(jnp.float32), mask, {}, Level.TOKEN)
        state, metrics = learner.learn(state, batch, credit, supervised())
        metrics = {name: metrics[name] for name in ("loss", "entropy", "gradient_norm", "skipped_updates")}
        return state.replace(step=state.step + 1, cursor=state.cursor + prompts), metrics

    return _jit_step(learner.mesh, state, imitate, 1)


def make_begin(learner: Learner, state: TrainState) -> Callable[[TrainState], TrainState]:
    """Between warm start and reinforcement learning: a fresh optimiser, and the policy becomes the reference."""

    def begin(state: TrainState) -> TrainState:
        reference = None if state.reference is None else jax.tree.map(jnp.copy, state.params)
        extra = state.extra
        if learner.reward is not None:
            extra = {**extra, REWARD_MODEL: learner.reward.fresh(state.params)}
        return state.replace(opt_state=learner.optimizer.init(state.params), reference=reference, extra=extra)

    places = state_shardings(learner.mesh, state)
    return jax.jit(begin, in_shardings=(places,), out_shardings=places, donate_argnums=0)


def assign(
    learner: Learner, state: TrainState, batch: Trajectory, names: Sequence[str], estimator: Transform
) -> tuple[Trajectory, Credit]:
    """The batch ``[P, G, T]`` as it is learned from, with its signals, and its credit.

    With edited steps there are 2 P groups: those of the rollouts, each with one of its edited steps behind it.
    """
    if learner.edited:
        batch = _add_edits(learner, state, batch)
    batch = add_signals(learner, state, batch, names)
    return batch, estimate(estimator, batch, step=state.step, mesh=learner.mesh, mesh_axes=mesh_lib.BATCH[0])


def of_rollouts(credit: Credit) -> Credit:
    """Credit ``[2 P, G, T]`` without that of edited steps: ``[P, G, T]``."""
    return Credit(credit.value[::2], credit.valid[::2], {}, credit.level)


def _add_edits(learner: Learner, state: TrainState, batch: Trajectory) -> Trajectory:
    """The batch with a group of edited steps behind each of its own, told by the current policy how likely they are."""
    key = stream_key(state.key, Stream.EDITS, state.step)
    both = with_edited_steps(batch, key, learner.task.digits)
    parts = learner.plan.minibatches * learner.plan.micro_batches
    pieces = learner.pin(split(jax.tree.map(lambda x: x[1::2], both), batch.batch_shape[0], parts))

    def evaluate(carry, piece: Trajectory):
        return carry, learner.policy.evaluate(state.params, piece, learner.sampling).logprob

    edited = merge(_scan(evaluate, (), pieces, parts)[1])
    logprob = jnp.stack([batch.logprob, edited], axis=1).reshape(both.tokens.shape)
    return _constrain_rows(both.replace(logprob=logprob), learner.mesh, mesh_lib.BATCH)


def add_signals(learner: Learner, state: TrainState, batch: Trajectory, names: Sequence[str]) -> Trajectory:
    """The batch with those of the signals `names` that a model (`PRODUCERS`) or the state of the run can tell.

    The passes run over one micro-batch at a time, which bounds the memory for logits as in the update itself.
    """
    names = [name for name in names if name not in batch.signals]
    if "running_baseline" in names:
        batch = batch.with_signals(running_baseline=numerics.safe_divide(state.baseline[0], state.baseline[1]))
    # Unless a replay buffer has said otherwise, every rollout is the current policy's.
    if "is_offpolicy" in names:
        batch = batch.with_signals(is_offpolicy=jnp.zeros(batch.batch_shape, bool))
    if "prompt_mean" in names:
        batch = batch.with_signals(prompt_mean=jnp.zeros(batch.batch_shape[:1]))
    if "progress" in names:
        batch = batch.with_signals(progress=jnp.minimum(state.step / jnp.float32(max(learner.plan.steps, 1)), 1.0))
    models = learner.models(state)
    probed = [name for name in names if models.make(name)]
    if not probed:
        return batch
    parts = learner.plan.minibatches * learner.plan.micro_batches
    pieces = learner.pin(split(batch, batch.batch_shape[0], parts))

    def probe(carry, piece: Trajectory):
        piece = produce(models, piece, probed)
        return carry, {name: piece.signals[name] for name in probed}

    return batch.with_signals(**merge(_scan(probe, (), pieces, parts)[1]))


def _jit_step(mesh: Mesh, state: TrainState, step: Callable, others: int) -> Callable:
    places, everywhere = state_shardings(mesh, state), mesh_lib.replicated(mesh)
    return jax.jit(
        step,
        in_shardings=(places, mesh_lib.batch_sharding(mesh), *[everywhere] * others),
        out_shardings=(places, everywhere),
        donate_argnums=0,
    )
