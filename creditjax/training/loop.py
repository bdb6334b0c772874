"""A run from its first to its last step.

    check the config          nothing is compiled before all of it is known to make sense
    resume or start           from the newest checkpoint that can be read, else from the seed
    warm start                supervised steps on gold answers, if any
    reinforcement learning    prompts, rollout, verifier, update
    close                     checkpoint, sample rollouts with their credit, report

Whatever a step draws, it draws from the seed and its own number, and whatever it remembers is in the `TrainState`. So a
run that was killed at any moment goes on to the same numbers as one that never was.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import json
import os
import pathlib
import platform
import signal
import threading
import time
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict
import numpy as np

import creditjax
from creditjax import samplers
from creditjax.models.base import Params, Sampling
from creditjax.process.prm import StepRewardModel
from creditjax.samplers import replay
from creditjax.signals import producers
from creditjax.tasks.base import Prompts
from creditjax.training import checkpoint
from creditjax.training import config as config_lib
from creditjax.training import evaluate as evaluate_lib
from creditjax.training import mesh as mesh_lib
from creditjax.training import metrics as metrics_lib
from creditjax.training import optimizer as optimizer_lib
from creditjax.training import state as state_lib
from creditjax.training import step as step_lib
from creditjax.training.reward import RewardLearner, StepRewardLearner
from creditjax.trajectory import Trajectory, signal_spec

Array = jax.Array

# Errors of the runtime that are not about other processes.
_OWN_FAULTS = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")

# Numbers of a row that tell the time, and so differ between any two runs.
WALL_CLOCK = ("seconds_per_step", "tokens_per_second")

# Signals that a verifier on the host may add, so that a traced rollout does not show them.
_VERIFIED = ("accuracy", "answer_score", "reward_components")

_SHOWN = (
    "reward",
    "eval/success",
    "eval/reward",
    "loss",
    "entropy",
    "credit_std",
    "response_length",
    "tokens_per_second",
)


class Result(NamedTuple):
    """How a call of :func:`train` ended.

    Attributes:
      step: finished steps of the run.
      finished: whether that is all of them.
      metrics: the last row of `metrics.jsonl`.
    """

    step: int
    finished: bool
    metrics: Mapping[str, float]


class FaultyBatch(RuntimeError):
    """A batch holds numbers that cannot be right, and the config says to stop."""


class LostProcess(RuntimeError):
    """Another process of the run is gone; what was saved last is what there is. This process should end at once."""


def train(config: ConfigDict, workdir: str | os.PathLike, stream=None) -> Result:
    """Trains, or goes on training, in a directory.

    Writes `config.json` (resolved, with versions), `metrics.jsonl` (one object a logged step), `checkpoints/`, and at
    the end `rollouts.json`, `report.html` and `result.json` (the last row, without what tells the time). The same call
    again resumes; after the last step it only says so. SIGTERM makes it save and return.

    Args:
      config: see `creditjax.training.config.default_config`.
      workdir: the run's directory; made if absent.
      stream: where progress is printed, stderr by default.

    Raises:
      ConfigError: before anything is compiled; also when the directory holds a run of another config.
      FaultyBatch: with `on_fault="stop"`, after a checkpoint, listing the faults.
      LostProcess: in a run over several processes, when one of the others does not answer.
    """
    mesh = mesh_lib.make_mesh(config_lib.mesh_shape(config))
    parts = config_lib.check_config(config, mesh_lib.batch_shards(mesh))
    if not os.fspath(workdir):
        raise config_lib.ConfigError("workdir: empty, wanted a directory")
    workdir = pathlib.Path(workdir)
    try:
        write_config(config, workdir, mesh)
    except OSError as error:
        raise config_lib.ConfigError(f"workdir: {workdir} cannot be written: {error.strerror or error}") from error
    run = _Run(config, parts, mesh, workdir, stream)
    run.programs.check_signals()
    return run.run()


def write_config(config: ConfigDict, workdir: pathlib.Path, mesh: jax.sharding.Mesh) -> None:
    """Writes `config.json`, after making sure that the directory does not hold a run of another config.

    Raises:
      ConfigError: it does, naming the fields that differ.
    """
    path, resolved = workdir / "config.json", config_lib.to_json(config)
    # A run that wrote no row has nothing to lose, so its config may be mended.
    if path.exists() and (workdir / "metrics.jsonl").exists():
        old = json.loads(path.read_text())["config"]
        changed = [d for d in config_lib.differences(old, resolved) if not config_lib.may_change(d.split(":")[0])]
        if changed:
            raise config_lib.ConfigError(f"{workdir} holds a run of another config; {'; '.join(changed)}")
    if jax.process_index() == 0:
        workdir.mkdir(parents=True, exist_ok=True)
        found = {"config": resolved, "versions": versions(), "devices": _devices(mesh)}
        metrics_lib.replace_text(path, json.dumps(found, indent=2) + "\n")
    _barrier("config")


def versions() -> dict[str, str]:
    """Versions of whatever can change a run's numbers."""
    import importlib.metadata

    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "gymnax", "reasoning-gym")
    found = {"python": platform.python_version(), "creditjax": creditjax.__version__}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Programs:
    """The compiled programs of a run and what they share. Each compiles when it is first called.

    Attributes:
      rollout, eval_rollout, greedy_rollout: sharded rollouts ``(params, prompts, key) -> Trajectory``.
      update, imitate, begin: the sharded steps, see `creditjax.training.step`.
      estimator, objective: the recipe's, on the mesh.
      abstract: shapes and shardings of the state.
      names: signals that have to be in a batch.
      updates: parameter updates of the whole run.
    """

    def __init__(self, config: ConfigDict, parts: config_lib.Parts, mesh: jax.sharding.Mesh):
        self.config, self.mesh, self.sampling = config, mesh, parts.sampling
        self.task, self.policy, self.recipe = parts.task, parts.policy, parts.recipe
        self.names = config_lib.signals_read(config, parts.recipe)
        # Both phases have the same kind of optimiser, so that one state fits both.
        self.updates = updates = config.steps * config.batch.epochs * config.batch.minibatches
        warm = {**config.optimizer, "learning_rate": config.warm_start.learning_rate, "warmup": 0, "schedule": "cosine"}
        optimizer = optimizer_lib.make_optimizer(config.optimizer, updates)
        warm_optimizer = optimizer_lib.make_optimizer(warm, config.warm_start.steps)
        reward = None
        if kind := config_lib.reward_kind(config, parts.recipe):
            constant = {**config.optimizer, "learning_rate": config.reward_model.learning_rate, "schedule": "constant"}
            rewarded = optimizer_lib.make_optimizer(constant, updates)
            if kind == "implicit":
                reward = RewardLearner(rewarded, config.reward_model.beta)
            else:
                model = StepRewardModel(parts.policy.config)
                reward = StepRewardLearner(rewarded, model, config.reward_model.labels)
        self.replay = None
        if self.recipe.sampler.replayed:
            first = config.warm_start.steps * config.warm_start.prompts
            self.replay = step_lib.Replay(self.recipe.sampler.replayed, **config.replay, first=first)
        edited = self.recipe.sampler.edited
        self.learner = step_lib.Learner(
            parts.policy, optimizer, parts.sampling, parts.plan, mesh, reward, parts.task, self.replay, edited
        )
        warm_plan = step_lib.Plan(micro_batches=config.batch.micro_batches)
        warm_learner = step_lib.Learner(parts.policy, warm_optimizer, Sampling(), warm_plan, mesh)
        self._kept: tuple = (producers.reads_reference(self.names), reward.fresh if reward else None)
        self.abstract = state_lib.abstract_state(mesh, parts.policy, optimizer, *self._kept)
        grouped = {"commit": self.recipe.sampler.commit} if self.recipe.sampler.commit else {}
        self.rollout = self._rollout(parts.sampling, config.batch.group_size, **grouped)
        self.eval_rollout = self._rollout(Sampling(config.eval.temperature), 1)
        self.greedy_rollout = self._rollout(Sampling(0.0), 1) if self.recipe.sampler.greedy_baseline else None
        if self.replay is not None:
            example = self.example()
            if example.trajectory is not None:
                raise config_lib.ConfigError(
                    f"recipe {self.recipe.name!r}: task {config.task.name!r} cuts rows from rollouts: no replay"
                )
            self._kept += (functools.partial(self._empty_buffer, example),)
            self.abstract = state_lib.abstract_state(mesh, parts.policy, optimizer, *self._kept)
            numbers = functools.partial(self.replay.numbers, count=config.batch.prompts)
            self.numbers = jax.jit(numbers, out_shardings=mesh_lib.replicated(mesh))
        self.update = step_lib.make_update(self.learner, self.abstract, self.names)
        self.imitate = step_lib.make_imitate(warm_learner, self.abstract)
        self.begin = step_lib.make_begin(self.learner, self.abstract)
        everywhere, rows = mesh_lib.replicated(mesh), mesh_lib.batch_sharding(mesh)
        self.faulty = jax.jit(step_lib.faulty_groups, out_shardings=everywhere)
        sampler = self.recipe.sampler
        kept = (sampler.accuracy,) if sampler.dynamic else ()
        self.idle = jax.jit(lambda batch: step_lib.idle_groups(batch, *kept), out_shardings=everywhere)
        self.replace = jax.jit(step_lib.replace_groups, out_shardings=rows)

    @functools.cached_property
    def estimator(self) -> Any:
        """The recipe's estimator, on the mesh."""
        return mesh_lib.replicate(self.mesh, self.recipe.estimator)

    @functools.cached_property
    def objective(self) -> Any:
        """The recipe's objective, on the mesh."""
        return mesh_lib.replicate(self.mesh, self.recipe.objective)

    def _rollout(self, sampling: Sampling, group_size: int, **options):
        rollout = samplers.build(self.task, self.policy, sampling, group_size, **options)
        return step_lib.make_rollout(self.mesh, rollout, self.abstract.params)

    def init(self) -> state_lib.TrainState:
        """The state before the first step."""
        return state_lib.init_state(self.mesh, self.policy, self.learner.optimizer, self.config.seed, *self._kept)

    @functools.cached_property
    def pool(self) -> Prompts:
        """The training prompts that a run with replay visits, on the host."""
        return jax.tree.map(np.asarray, self.task.prompts("train", 0, self.config.replay.prompts))

    def _traced(self) -> Trajectory:
        """The shapes of a rollout."""
        rows = self.config.batch.prompts
        prompts = evaluate_lib.local_prompts(self.mesh, self.task, "train", 0, rows)
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), prompts)
        return jax.eval_shape(self.rollout, self.abstract.params, placed, jax.random.key(0))

    @functools.cached_property
    def _verified(self) -> tuple[Trajectory, Trajectory]:
        """A rollout of nothing, and what the task's verifier makes of it."""
        blank = jax.tree.map(lambda x: np.zeros((1, *x.shape[1:]), x.dtype), self._traced())
        return blank, self.task.verify(blank, self.task.prompts("train", 0, 1))

    @property
    def scored_on_host(self) -> bool:
        """Whether the task has a verifier that does something."""
        return hasattr(self.task, "verify") and self._verified[0] is not self._verified[1]

    def example(self) -> Trajectory:
        """A batch as it enters the update, shapes alone: a rollout, and what a verifier on the host makes of it."""
        example = self._traced()
        if self.scored_on_host:
            rows = self.config.batch.prompts
            example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), self._verified[1])
        if self.greedy_rollout is None:
            return example
        return example.with_signals(greedy_outcome=jax.ShapeDtypeStruct(example.outcome.shape[:1], np.float32))

    def _empty_buffer(self, example: Trajectory) -> replay.ReplayBuffer:
        plan = self.replay
        return replay.empty(example, plan.prompts, capacity=plan.capacity, window=plan.window)

    def check_signals(self) -> None:
        """Makes sure that somebody makes every signal that the recipe reads, by tracing a rollout; nothing is compiled.

        Raises:
          ConfigError: nobody does, naming the signal and what would.
        """
        batch = self._traced()
        made = {*batch.signals, "running_baseline", "progress", "is_offpolicy", "prompt_mean"}
        made |= {"greedy_outcome"} if self.greedy_rollout else set()
        made |= set(_VERIFIED) if hasattr(self.task, "verify") else set()
        if self.recipe.sampler.edited:
            made |= {"edit_mask", "step_mask"}
            if batch.segment is None:
                raise config_lib.ConfigError(
                    f"recipe {self.recipe.name!r}: rollouts of task {self.config.task.name!r} have no segments, wanted "
                    "steps to edit"
                )
        models = self.learner.models(self.abstract)
        for name in self.names:
            if name in made:
                continue
            if models.make(name):
                if fault := producers.fault(name, batch.signals, self.task, self.policy):
                    raise config_lib.ConfigError(f"recipe {self.recipe.name!r}: {fault}")
            else:
                spec, task = signal_spec(name), self.config.task.name
                learned = "; config.reward_model.kind='steps' learns it" if name in producers.SCORED else ""
                raise config_lib.ConfigError(
                    f"recipe {self.recipe.name!r} needs the signal {name!r} [{', '.join(spec.axes)}], made by "
                    f"{spec.producer}, which task {task!r} does not offer{learned}"
                )

    def warm_step(self, state: state_lib.TrainState, cursor: int):
        """One supervised step on the gold answers from `cursor` on."""
        rows = self.config.warm_start.prompts
        low, high = mesh_lib.local_rows(self.mesh, rows)
        gold = self.task.gold("train", cursor + low, high - low)
        gold = mesh_lib.from_local(self.mesh, rows, gold)
        return self.imitate(state, gold, np.int32(rows))

    def step(self, state: state_lib.TrainState, batch: Trajectory, used: int):
        """One update from a batch for which `used` prompts were drawn."""
        return self.update(state, batch, self.estimator, self.objective, np.int32(used))

    def roll(self, state: state_lib.TrainState, start: int, split: str, key: Array) -> Trajectory:
        """Rollouts of the prompts from `start` on, scored by the task's verifier."""
        rows = self.config.batch.prompts
        count = rows if split == "train" else min(rows, self.task.eval_size)
        prompts = evaluate_lib.local_prompts(self.mesh, self.task, split, start, rows, count)
        return self._roll(state, prompts, key)

    def _roll(self, state: state_lib.TrainState, prompts: Prompts, key: Array) -> Trajectory:
        rows = self.config.batch.prompts
        placed = mesh_lib.from_local(self.mesh, rows, prompts)
        check = functools.partial(evaluate_lib.verify, self.mesh, self.task, prompts=prompts)
        return self.draw(state.params, placed, key, check)

    def draw(
        self, params: Params, prompts: Prompts, key: Array, check: Callable[[Trajectory], Trajectory] = lambda x: x
    ) -> Trajectory:
        """Rollouts of prompts that lie on the mesh, with the greedy one's outcome if the recipe reads it.

        Args:
          params: the policy's parameters.
          prompts: rows ``[P, ...]``.
          key: PRNG key.
          check: the task's verifier, if it has one.
        """
        batch = check(self.rollout(params, prompts, key))
        if self.greedy_rollout is None:
            return batch
        return batch.with_signals(greedy_outcome=check(self.greedy_rollout(params, prompts, key)).outcome[:, 0])

    def collect(self, state: state_lib.TrainState, start: int, key: Array) -> tuple[Trajectory, int]:
        """A batch to learn from, and the number of batches of prompts that it took.

        A recipe with dynamic sampling has groups that teach nothing replaced by those of later prompts, in their
        places, until none is left or its `max_batches` are used up. With a replay buffer the state says which prompts
        it is time for, and the update adds their older rollouts.
        """
        rows, sampler = self.config.batch.prompts, self.recipe.sampler
        if self.replay is not None:
            low, high = mesh_lib.local_rows(self.mesh, rows)
            numbers = np.asarray(self.numbers(state))[low:high]
            prompts = jax.tree.map(lambda x: x[numbers], self.pool)
            return self._roll(state, prompts, jax.random.fold_in(key, 0)), 1
        batch = self.roll(state, start, "train", jax.random.fold_in(key, 0))
        used = 1
        while sampler.dynamic and used < sampler.max_batches and np.asarray(idle := self.idle(batch)).any():
            fresh = self.roll(state, start + used * rows, "train", jax.random.fold_in(key, used))
            batch, used = self.replace(batch, fresh, idle), used + 1
        return batch, used

    def evaluate(self, state: state_lib.TrainState, step: int) -> dict[str, float]:
        """Success on held-out prompts."""
        config = self.config
        key = state_lib.stream_key(state.key, state_lib.Stream.EVALUATION, step)
        rows, size, success_at = config.batch.prompts, config.eval.size, config.eval.success_at
        return evaluate_lib.evaluate(self.mesh, self.task, self.eval_rollout, state.params, key, rows, size, success_at)

    def sample_rollouts(self, state: state_lib.TrainState, step: int) -> list[dict[str, Any]]:
        """Rollouts of held-out prompts with their credit, for the report; see :meth:`shown`."""
        batch = self.roll(state, 0, "eval", state_lib.stream_key(state.key, state_lib.Stream.REPORT, step))
        credit = jax.jit(self.credit)(state, batch, self.estimator)
        return self.shown(*mesh_lib.to_host((batch, credit, self.idle(batch))))

    def credit(self, state: state_lib.TrainState, batch: Trajectory, estimator: Any) -> Array:
        """Credit ``[P, G, T]`` of rollouts, as an update would assign it."""
        _, credit = step_lib.assign(self.learner, state, batch, self.names, estimator)
        return step_lib.of_rollouts(credit).value if self.learner.edited else credit.value

    def shown(self, batch: Trajectory, credit: np.ndarray, idle: np.ndarray) -> list[dict[str, Any]]:
        """Of each group the best and the worst rollout, mixed groups first, as plain data.

        Args:
          batch: rollouts ``[P, G, T]`` of held-out prompts, on the host.
          credit: theirs.
          idle: groups that teach nothing, ``[P]``.
        """
        token_mask = batch.signals.get("token_mask", batch.action_mask)
        count = min(batch.batch_shape[0], self.task.eval_size)
        limit, prompt_length = self.config.log.rollouts, getattr(self.task, "prompt_length", 0)
        shown = []
        for p in sorted(range(count), key=lambda p: (idle[p], p))[: (limit + 1) // 2]:
            order = np.argsort(np.nan_to_num(batch.outcome[p], nan=-np.inf), kind="stable")
            for g in dict.fromkeys((int(order[-1]), int(order[0]))):
                real = np.flatnonzero(token_mask[p, g])
                before, after = real[real < prompt_length], real[real >= prompt_length]
                outcome = float(batch.outcome[p, g])
                shown.append(
                    {
                        "prompt": "".join(self.task.decode(batch.tokens[p, g, before])),
                        "tokens": list(self.task.decode(batch.tokens[p, g, after])),
                        "action": batch.action_mask[p, g, after].tolist(),
                        "credit": [float(c) for c in credit[p, g, after]],
                        "outcome": outcome if np.isfinite(outcome) else None,
                        "group": p,
                    }
                )
        return shown[:limit]


class _Run:
    """One call of :func:`train`: where it stands, and its open files."""

    def __init__(self, config: ConfigDict, parts: config_lib.Parts, mesh, workdir: pathlib.Path, stream):
        self.config, self.workdir, self.stream = config, workdir, stream
        self.programs = Programs(config, parts, mesh)
        self.warm_steps = config.warm_start.steps
        self.total = self.warm_steps + config.steps
        self.checkpoints: Any = checkpoint.Checkpointer(
            workdir / "checkpoints", config.checkpoint.keep_last, config.checkpoint.keep_best
        )
        self.stop = _StopFlag()

    def run(self) -> Result:
        """From where it stands to the end, or to SIGTERM."""
        state = self.checkpoints.restore(self.programs.abstract)
        self.step = 0 if state is None else int(state.step)
        main, path = jax.process_index() == 0, self.workdir / "metrics.jsonl"
        if main:
            metrics_lib.truncate(path, self.step if state is not None else -1)
        self.console = metrics_lib.Console(self.total, self.step, _SHOWN, self.stream, quiet=not main)
        writers: list[metrics_lib.MetricWriter] = [self.console]
        if main:
            writers.append(metrics_lib.JsonlWriter(path))
            if self.config.log.tensorboard:
                writers.append(metrics_lib.TensorBoardWriter(self.workdir / "tensorboard", self.step + 1))
        self.writer = metrics_lib.Writers(writers)
        try:
            if state is not None and self.step >= self.total:
                return self._finished_before(state)
            with self.stop:
                return self._train(state)
        except jax.errors.JaxRuntimeError as error:
            # What this process did wrong itself is no sign that another one is gone.
            if jax.process_count() == 1 or str(error).startswith(_OWN_FAULTS):
                raise
            lost = LostProcess(
                f"step {self.step + 1}: process {jax.process_index()} of {jax.process_count()} cannot reach another "
                f"one ({str(error).splitlines()[0]}); start all of them again, and the run goes on"
            )
            self.checkpoints = None  # would wait for the one that is gone
            raise lost from error
        finally:
            self.writer.close()
            if self.checkpoints is not None:
                self.checkpoints.close()

    def _train(self, state: state_lib.TrainState | None) -> Result:
        config, programs = self.config, self.programs
        if jax.process_index() == 0:
            # That of a shorter run, which this one goes on with.
            (self.workdir / "result.json").unlink(missing_ok=True)
        if state is None:
            state = self._evaluate(programs.init(), {})
        else:
            self.console.say(f"{self.workdir}: resuming after step {self.step}")
        self.cursor, self.logged = int(state.cursor), (time.perf_counter(), self.step)
        while self.step < self.total:
            state, metrics = self._next(state)
            self.step += 1
            if self.step == self.warm_steps:
                state = programs.begin(state)
            self.console.advance(self.step)
            last = self.step == self.total
            evaluated = last or self.step in (self.warm_steps, self.total) or self.step % config.eval.every == 0
            if evaluated or self.step % config.log.every == 0:
                row = self._row(metrics)
                if evaluated:
                    state = self._evaluate(state, row)
                else:
                    self.writer.write_scalars(self.step, row)
                if config.on_fault == "stop" and row.get("skipped_updates", 0) > 0:
                    self._save(state)
                    self.checkpoints.wait()
                    raise FaultyBatch(f"step {self.step}: the gradient is not finite; the state before it is saved")
            stopped = self.stop.agreed()
            if last or stopped or self.step % config.checkpoint.every == 0:
                self._save(state)
            if stopped and not last:
                self.checkpoints.wait()
                self.console.say(f"{self.workdir}: told to stop, saved after step {self.step}")
                return Result(self.step, False, self._last_row())
        self.checkpoints.wait()
        self._close(state)
        return Result(self.step, True, self._last_row())

    def _next(self, state: state_lib.TrainState):
        """One step of whichever phase it is."""
        programs = self.programs
        if self.step < self.warm_steps:
            state, metrics = programs.warm_step(state, self.cursor)
            self.cursor += self.config.warm_start.prompts
            return state, {f"warm_start/{name}": value for name, value in metrics.items()}
        key = state_lib.stream_key(state.key, state_lib.Stream.ROLLOUT, self.step)
        batch, batches = programs.collect(state, self.cursor, key)
        if self.config.on_fault == "stop" and (faulty := np.flatnonzero(programs.faulty(batch))).size:
            self._save(state)
            self.checkpoints.wait()
            raise FaultyBatch(f"step {self.step + 1}: faults in the groups {faulty.tolist()}: {_faults(batch)}")
        used = batches * self.config.batch.prompts
        state, metrics = programs.step(state, batch, used)
        self.cursor += used
        if programs.recipe.sampler.dynamic:
            metrics["rollout_batches"] = (np.float32(batches), np.float32(1))
        return state, metrics

    def _row(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        row = metrics_lib.means(metrics)
        now, (then, before) = time.perf_counter(), self.logged
        self.logged = (now, self.step)
        row["seconds_per_step"] = (now - then) / (self.step - before)
        if "tokens" in row:
            row["tokens_per_second"] = row["tokens"] / row["seconds_per_step"]
        return row

    def _evaluate(self, state: state_lib.TrainState, row: dict[str, float]) -> state_lib.TrainState:
        """Adds the held-out numbers to a row, writes it, and keeps the parameters if they are the best so far."""
        row = row | self.programs.evaluate(state, self.step)
        self.writer.write_scalars(self.step, row)
        self.logged = (time.perf_counter(), self.step)
        score = row[self.config.checkpoint.best_metric]
        if score > float(state.best):
            state = state.replace(best=mesh_lib.replicate(self.programs.mesh, np.float32(score)))
            self.checkpoints.save_best(self.step, state.params, score)
        return state

    def _save(self, state: state_lib.TrainState) -> None:
        self.writer.flush()
        self.checkpoints.save(self.step, state)

    def _last_row(self) -> dict[str, float]:
        rows = metrics_lib.read_rows(self.workdir / "metrics.jsonl")
        return rows[-1] if rows else {}

    def _finished_before(self, state: state_lib.TrainState) -> Result:
        report = self.workdir / "report.html"
        if not (self.workdir / "result.json").exists():
            self._close(state)
        asked = f" ({self.total} were asked for)" if self.total < self.step else ""
        self.console.say(f"{self.workdir}: this run is finished, {self.step} steps{asked}; report: {report}")
        return Result(self.step, True, self._last_row())

    def _close(self, state: state_lib.TrainState) -> None:
        shown = self.programs.sample_rollouts(state, self.step)
        if jax.process_index() == 0:
            report = close(self.workdir, self.step, shown)
            self.console.say(f"{self.workdir}: finished after {self.step} steps; report: {report}")
        _barrier("report")


def close(workdir: pathlib.Path, step: int, shown: Sequence[Mapping[str, Any]]) -> pathlib.Path:
    """Writes `rollouts.json`, `report.html` and, when all else is there, `result.json`; returns the report's path.

    Args:
      workdir: of a run that has all its rows.
      step: of the last one.
      shown: rollouts for the report, see :meth:`Programs.shown`.
    """
    (workdir / "rollouts.json").write_text(json.dumps(shown, ensure_ascii=False, indent=1))
    from creditjax.report import write_report

    report = write_report(workdir)
    rows = metrics_lib.read_rows(workdir / "metrics.jsonl")
    last = {name: x for name, x in (rows[-1] if rows else {}).items() if name not in ("step", *WALL_CLOCK)}
    metrics_lib.replace_text(workdir / "result.json", json.dumps({"step": step, "metrics": last}, indent=2) + "\n")
    return report


class _StopFlag:
    """Raised by SIGTERM while it is entered; all processes of a run agree on it."""

    def __init__(self):
        self._told = False
        self._before: Any = None

    def __enter__(self) -> "_StopFlag":
        # Handlers can be set in the main thread only; a run in another one is stopped by whoever started it.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._tell)
        return self

    def __exit__(self, *unused) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _tell(self, *unused) -> None:
        self._told = True

    def agreed(self) -> bool:
        """Whether any process was told to stop."""
        if jax.process_count() == 1:
            return self._told
        from jax.experimental import multihost_utils

        return bool(multihost_utils.process_allgather(np.array(self._told)).any())


def _faults(batch: Trajectory) -> str:
    from creditjax import validate

    return "; ".join(str(fault) for fault in validate(mesh_lib.to_local(batch))[:10])


def _devices(mesh: jax.sharding.Mesh) -> dict[str, Any]:
    device = mesh.devices.flat[0]
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "count": mesh.devices.size,
        "mesh": dict(mesh.shape),
        "processes": jax.process_count(),
    }


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
