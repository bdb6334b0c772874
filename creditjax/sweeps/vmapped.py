"""Trials as lanes of one program: whole training runs mapped over seeds and numbers, on the devices of this process.

Trials whose configs differ in nothing but the seed, the learning rate and numbers of the recipe are one cohort. Their
states are stacked, one loop over steps trains all of them, and every device has its share of the lanes. Each lane is
the run that `creditjax.training.train` makes of the same config: the same prompts, the same keys, the same order of
operations; sums inside of it may be taken in another order, so numbers agree to rounding.

    vmapped/<key>/checkpoints/   states of a cohort, from which it resumes
    trials/<id>/                 as of any other trial, with the state after the last step alone under checkpoints/
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import hashlib
import time
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict
import numpy as np

from creditjax.sweeps import runner
from creditjax.sweeps.store import Store
from creditjax.sweeps.trials import Trial, flatten
from creditjax.training import checkpoint, evaluate, loop
from creditjax.training import config as config_lib
from creditjax.training import mesh as mesh_lib
from creditjax.training import metrics as metrics_lib
from creditjax.training import optimizer as optimizer_lib
from creditjax.training import state as state_lib
from creditjax.training import step as step_lib

_LANES = "lanes"
# Steps of one call of the program: how long Ctrl-C may take, and how many prompts lie on the devices.
_CHUNK = 64


class Cohort(NamedTuple):
    """Trials of one program.

    Attributes:
      trials: its lanes, in order.
      configs: theirs.
    """

    trials: tuple[Trial, ...]
    configs: tuple[ConfigDict, ...]

    @property
    def key(self) -> str:
        """A name that is the same for the same trials."""
        return hashlib.sha256("\n".join(trial.id for trial in self.trials).encode()).hexdigest()[:10]


def cohorts(trials: Sequence[Trial], parse: Callable[[Sequence[str]], ConfigDict]) -> list[Cohort]:
    """The trials, sorted into those that share a program, in the order of their first ones.

    Args:
      trials: those to run.
      parse: from the flags of a trial to its config.

    Raises:
      ConfigError: a recipe that draws as many rollouts as it happens to need; one of several processes.
    """
    if jax.process_count() > 1:
        raise config_lib.ConfigError(f"lanes run in one process, this is one of {jax.process_count()}")
    kinds: list[tuple[Any, list[tuple[Trial, ConfigDict]]]] = []
    for trial in trials:
        config = parse(trial.flags)
        kind = _kind(config, trial)
        members = next((members for known, members in kinds if known == kind), None)
        if members is None:
            kinds.append((kind, members := []))
        members.append((trial, config))
    return [Cohort(*zip(*members, strict=True)) for _, members in kinds]


def _kind(config: ConfigDict, trial: Trial) -> Any:
    """What trials of one program have in common; comparable."""
    parts = config_lib.check_config(config)
    if parts.recipe.sampler.dynamic:
        raise config_lib.ConfigError(
            f"trial {trial.number} ({trial.shown}): recipe {parts.recipe.name!r} draws prompts until all groups teach, "
            "another number in each trial; wanted another recipe or backend"
        )
    fields = {name: x for name, x in flatten(config_lib.to_json(config)).items() if not name.startswith("mesh.")}
    for name in ("seed", "optimizer.learning_rate"):
        del fields[name]
    # Numbers of the recipe that are leaves of its estimator or objective are data; whatever else they change shows.
    numbers = [name for name, x in fields.items() if name.startswith("recipe.") and isinstance(x, float)]
    fields = {name: x for name, x in fields.items() if name not in numbers}
    leaves, structure = jax.tree.flatten((parts.recipe.estimator, parts.recipe.objective))
    return fields, structure, [np.shape(leaf) for leaf in leaves], parts.recipe.sampler


class Lanes(NamedTuple):
    """What differs between the runs, stacked: leading axis ``[N]``.

    Attributes:
      estimator, objective: the recipes', as pytrees.
      learning_rate: f32.
    """

    estimator: Any
    objective: Any
    learning_rate: Any


class Programs:
    """The compiled programs of a cohort: those of a single run, mapped.

    Attributes:
      single: what a single run would compile; of it only the functions are used.
      mesh: an axis of lanes over all devices, and the axes of a run with one device each.
      count: number of lanes, a multiple of the number of devices; the last ones may be copies that nobody looks at.
      abstract: shapes and shardings of the stacked states.
    """

    def __init__(self, cohort: Cohort, devices: Sequence[jax.Device]):
        config = cohort.configs[0]
        shape, axes = (len(devices), *[1] * len(mesh_lib.AXES)), (_LANES, *mesh_lib.AXES)
        self.mesh = Mesh(np.asarray(devices).reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))
        self.single = loop.Programs(config, config_lib.check_config(config), self.mesh)
        self.single.check_signals()
        if self.single.scored_on_host:
            raise config_lib.ConfigError(
                f"task {config.task.name!r} is scored on the host, wanted one that is scored in JAX, or another backend"
            )
        self.config, self.count = config, -(-len(cohort.trials) // len(devices)) * len(devices)
        configs = [*cohort.configs, *[cohort.configs[-1]] * (self.count - len(cohort.trials))]
        self._split = NamedSharding(self.mesh, PartitionSpec(_LANES))
        self._everywhere = mesh_lib.replicated(self.mesh)
        recipes = [config_lib.check_config(config).recipe for config in configs]
        data = [
            Lanes(recipe.estimator, recipe.objective, np.float32(config.optimizer.learning_rate))
            for recipe, config in zip(recipes, configs, strict=True)
        ]
        stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *data)
        self.lanes = jax.device_put(stacked, self._split)
        self._keys = np.stack([np.asarray(state_lib.run_key(config.seed)) for config in configs])
        shapes = jax.eval_shape(jax.vmap(self._create), self._keys)
        self.abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._split), shapes)
        if self.single.replay is not None:
            self._pool = jax.device_put(self.single.pool, self._everywhere)
        self.begin = jax.jit(self._map(self.single.begin), donate_argnums=0)
        self.train = jax.jit(self._loop(self._step), donate_argnums=0)
        self.warm = jax.jit(self._loop(self._warm_step), donate_argnums=0)
        self.evaluate = jax.jit(self._map(self._evaluate, 1))
        self.report = jax.jit(self._map(self._report, 1, lanes=True))

    def init(self) -> state_lib.TrainState:
        """The states before the first step."""
        return jax.jit(jax.vmap(self._create), out_shardings=self._split)(self._keys)

    def prompts(self, step: int, count: int, length: int) -> Any:
        """What `count` steps after `step` finished ones begin from, padded to `length`: prompts or gold answers."""
        warm, config, task = self.config.warm_start, self.config, self.single.task
        if step < warm.steps:
            make, rows, first = functools.partial(task.gold, "train"), warm.prompts, step * warm.prompts
        else:
            make, rows = functools.partial(task.prompts, "train"), config.batch.prompts
            first = warm.steps * warm.prompts + (step - warm.steps) * rows
        made = [make(first + i * rows, rows) for i in range(count)]
        made += made[-1:] * (length - count)
        return jax.device_put(jax.tree.map(lambda *x: np.stack([np.asarray(a) for a in x]), *made), self._everywhere)

    def held_out(self) -> list[tuple[Any, int]]:
        """Batches of held-out prompts, and how many of each are real."""
        rows, task, size = self.config.batch.prompts, self.single.task, self.config.eval.size
        return [
            (evaluate.local_prompts(self.mesh, task, "eval", start, rows, count), count)
            for start, count in evaluate.parts(task, rows, size)
        ]

    def _create(self, key: jax.Array) -> state_lib.TrainState:
        return state_lib.create(self.single.policy, self.single.learner.optimizer, key, *self.single._kept)

    def _step(self, state: state_lib.TrainState, lane: Lanes, prompts: Any):
        single, rows = self.single, self.config.batch.prompts
        key = state_lib.stream_key(state.key, state_lib.Stream.ROLLOUT, state.step)
        if single.replay is not None:
            numbers = single.replay.numbers(state, rows)
            prompts = jax.tree.map(lambda x: x[numbers], self._pool)
        batch = single.draw(state.params, prompts, jax.random.fold_in(key, 0))
        config = {**self.config.optimizer, "learning_rate": lane.learning_rate}
        optimizer = optimizer_lib.make_optimizer(config, single.updates)
        update = step_lib.make_update(single.learner._replace(optimizer=optimizer), single.abstract, single.names)
        return update(state, batch, lane.estimator, lane.objective, jnp.int32(rows))

    def _warm_step(self, state: state_lib.TrainState, lane: Lanes, gold: Any):
        return self.single.imitate(state, gold, np.int32(self.config.warm_start.prompts))

    def _evaluate(self, state: state_lib.TrainState, prompts: Sequence[Any]):
        key = state_lib.stream_key(state.key, state_lib.Stream.EVALUATION, state.step)
        rollout = self.single.eval_rollout
        return [
            evaluate.judged(rollout(state.params, batch, jax.random.fold_in(key, index)))
            for index, batch in enumerate(prompts)
        ]

    def _report(self, state: state_lib.TrainState, lane: Lanes, prompts: Any):
        key = state_lib.stream_key(state.key, state_lib.Stream.REPORT, state.step)
        batch = self.single.draw(state.params, prompts, key)
        return batch, self.single.credit(state, batch, lane.estimator), self.single.idle(batch)

    def _map(self, function: Callable, shared: int = 0, lanes: bool = False) -> Callable:
        """Over states and, if asked, lanes; `shared` last arguments are the same for all."""
        axes = (0, *[0] * lanes, *[None] * shared)
        return jax.vmap(function, in_axes=axes, spmd_axis_name=_LANES)

    def _loop(self, step: Callable) -> Callable:
        """`count` steps of all lanes, with the metrics of each: leaves ``[length, N]``, of which `count` are told."""
        mapped = self._map(step, 1, lanes=True)

        def run(states: state_lib.TrainState, lanes: Lanes, prompts: Any, count: jax.Array):
            length = jax.tree.leaves(prompts)[0].shape[0]
            at = lambda i: jax.tree.map(lambda x: x[i], prompts)  # noqa: E731
            _, shapes = jax.eval_shape(lambda states, lanes: mapped(states, lanes, at(0)), states, lanes)
            told = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes)

            def body(i, carry):
                states, told = carry
                states, metrics = mapped(states, lanes, at(i))
                return states, jax.tree.map(lambda all, one: all.at[i].set(one), told, metrics)

            # The number of steps is data, so that the last ones before an evaluation are no other program.
            return jax.lax.fori_loop(0, count, body, (states, told))

        return run


class _Run:
    """One call of :func:`run` for one cohort."""

    def __init__(
        self,
        cohort: Cohort,
        programs: Programs,
        store: Store,
        view: runner.View,
        states: dict[str, str],
        stop: runner.Stop,
    ):
        self.programs = programs
        self.cohort, self.store, self.view, self.states, self.stop = cohort, store, view, states, stop
        self.config = cohort.configs[0]
        self.warm_steps = self.config.warm_start.steps
        self.total = self.warm_steps + self.config.steps
        self.alive = dict(enumerate(cohort.trials))
        self.rows: dict[int, list[tuple[int, dict[str, float]]]] = {}

    def run(self) -> None:
        """From its last checkpoint to the end, or until it is told to stop."""
        self.held_out = self.programs.held_out()
        directory = self.store.root / "vmapped" / self.cohort.key / "checkpoints"
        self.checkpoints = checkpoint.Checkpointer(directory, self.config.checkpoint.keep_last, 0)
        try:
            states = self.checkpoints.restore(self.programs.abstract)
            self.step = 0 if states is None else int(np.asarray(states.step)[0])
            for i, trial in self.alive.items():
                self._open(trial, self.cohort.configs[i], -1 if states is None else self.step)
            if states is None:
                states = self._evaluated(self.programs.init(), {i: {} for i in self.alive})
                self._write()
            self._train(states)
        finally:
            self.checkpoints.close()

    def _train(self, states: state_lib.TrainState) -> None:
        programs, config = self.programs, self.config
        length = min(_CHUNK, config.eval.every, config.checkpoint.every, max(self.total, 1))
        while self.step < self.total and self.alive:
            warm = self.step < self.warm_steps
            count = self._until() - self.step
            count, before = min(count, length), time.perf_counter()
            prompts = programs.prompts(self.step, count, length)
            call = programs.warm if warm else programs.train
            states, told = call(states, programs.lanes, prompts, np.int32(count))
            told = jax.tree.map(np.asarray, told)
            # Of the time that all lanes take together, each has its share.
            seconds = (time.perf_counter() - before) / count / len(self.cohort.trials)
            if self.step + count == self.warm_steps:
                states = programs.begin(states)
            states = self._tell(states, told, count, seconds, warm)
            self._write()
            self.view.show(self.states)
            stopped = bool(self.stop.times)
            if self.step == self.total or stopped or self.step % config.checkpoint.every == 0:
                self.checkpoints.save(self.step, states)
            if stopped and self.step < self.total:
                break
        self.checkpoints.wait()
        if self.step >= self.total:
            self._finish(states)
        for trial in self.alive.values():
            self._ended(trial, runner.WAITING, "stopped", None)

    def _until(self) -> int:
        """The next step at which something is looked at or kept."""
        ends = [self.total, *([self.warm_steps] if self.step < self.warm_steps else [])]
        for every in (self.config.eval.every, self.config.checkpoint.every):
            ends.append((self.step // every + 1) * every)
        return min(ends)

    def _tell(self, states: state_lib.TrainState, told: Any, count: int, seconds: float, warm: bool):
        """Rows of the steps that were done; those of an evaluated step get its numbers."""
        last: dict[int, dict[str, float]] = {}
        for offset in range(count):
            self.step += 1
            evaluated = offset == count - 1 and self._is_evaluated()
            for i, trial in list(self.alive.items()):
                own = metrics_lib.means(jax.tree.map(lambda x, i=i, offset=offset: x[offset, i], told))
                if self._stops(own):
                    self._fail(i, trial, own)
                    continue
                row = {f"warm_start/{name}": x for name, x in own.items()} if warm else own
                row["seconds_per_step"] = seconds
                if "tokens" in row:
                    row["tokens_per_second"] = row["tokens"] / seconds
                if evaluated:
                    last[i] = row
                elif self.step % self.config.log.every == 0:
                    self.rows.setdefault(i, []).append((self.step, row))
        return self._evaluated(states, last) if last else states

    def _is_evaluated(self) -> bool:
        return self.step in (self.warm_steps, self.total) or self.step % self.config.eval.every == 0

    def _evaluated(self, states: state_lib.TrainState, rows: Mapping[int, dict[str, float]]) -> state_lib.TrainState:
        """Adds the held-out numbers to the rows, and the best of them to the states."""
        judged = jax.tree.map(np.asarray, self.programs.evaluate(states, [batch for batch, _ in self.held_out]))
        best, metric = np.array(states.best), self.config.checkpoint.best_metric
        for i, row in rows.items():
            totals = np.zeros(4)
            for (_, count), looked_at in zip(self.held_out, judged, strict=True):
                outcome, accuracy, acted = (x[i] for x in looked_at)
                totals += evaluate.count_up(outcome, accuracy, acted, count, self.config.eval.success_at)
            row |= evaluate.means(totals)
            best[i] = max(best[i], np.float32(row[metric]))
            self.rows.setdefault(i, []).append((self.step, row))
        return states.replace(best=jax.device_put(best, states.best.sharding))

    def _stops(self, row: Mapping[str, float]) -> bool:
        faults = row.get("dropped_groups", 0) + row.get("skipped_updates", 0)
        return self.config.on_fault == "stop" and faults > 0

    def _fail(self, i: int, trial: Trial, row: Mapping[str, float]) -> None:
        why = "the gradient is not finite" if row.get("skipped_updates", 0) > 0 else "rollouts with faults"
        with (self.store.directory(trial) / "log.txt").open("a") as file:
            print(f"step {self.step}: {why}", file=file)
        del self.alive[i]
        self._ended(trial, runner.FAILED, runner.FAILED, 1)

    def _open(self, trial: Trial, config: ConfigDict, step: int) -> None:
        directory = self.store.directory(trial)
        loop.write_config(config, directory, self.programs.mesh)
        (directory / "result.json").unlink(missing_ok=True)
        metrics_lib.truncate(directory / "metrics.jsonl", step)
        self.store.started(trial, ("lane", str(self.cohort.trials.index(trial)), self.cohort.key))
        self.states[trial.id] = runner.RUNNING
        with (directory / "log.txt").open("a") as file:
            print(f"lane of {len(self.cohort.trials)}, from step {max(step, 0)}", file=file)

    def _write(self) -> None:
        for i, rows in self.rows.items():
            directory = self.store.directory(self.cohort.trials[i])
            writers: list[metrics_lib.MetricWriter] = [metrics_lib.JsonlWriter(directory / "metrics.jsonl")]
            if self.config.log.tensorboard:
                writers.append(metrics_lib.TensorBoardWriter(directory / "tensorboard", rows[0][0]))
            writer = metrics_lib.Writers(writers)
            for step, row in rows:
                writer.write_scalars(step, row)
            writer.close()
        self.rows.clear()

    def _finish(self, states: state_lib.TrainState) -> None:
        single, rows = self.programs.single, self.config.batch.prompts
        count = min(rows, single.task.eval_size)
        prompts = evaluate.local_prompts(self.programs.mesh, single.task, "eval", 0, rows, count)
        shown = jax.tree.map(np.asarray, self.programs.report(states, self.programs.lanes, prompts))
        host = jax.tree.map(np.asarray, states)
        for i, trial in list(self.alive.items()):
            lane = functools.partial(jax.tree.map, lambda x, i=i: x[i])
            directory = self.store.directory(trial)
            kept = checkpoint.Checkpointer(directory / "checkpoints", self.config.checkpoint.keep_last, 0)
            kept.save(self.step, jax.device_put(lane(host), jax.tree.map(lambda x: x.sharding, single.abstract)))
            kept.close()
            loop.close(directory, self.step, single.shown(*lane(shown)))
            del self.alive[i]
            self._ended(trial, runner.FINISHED, runner.FINISHED, 0)

    def _ended(self, trial: Trial, state: str, outcome: str, code: int | None) -> None:
        self.states[trial.id] = state
        self.store.ended(trial, outcome, code)
        self.view.say(f"{outcome:14} {trial.number} {trial.id}  {trial.shown}")


def run(
    trials: Sequence[Trial],
    store: Store,
    parse: Callable[[Sequence[str]], ConfigDict],
    view: runner.View,
    retries: int = 1,
    stop: runner.Stop | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, str]:
    """Runs whatever is not finished, one cohort after the other; see `creditjax.sweeps.runner.run`.

    Args:
      trials: those to run.
      store: the sweep's directory, which nobody else may use meanwhile.
      parse: from the flags of a trial to its config.
      view: who is told.
      retries: attempts after the first failed one.
      stop: whom to ask whether to stop.
      devices: where lanes are, all of this process by default.

    Returns:
      The state of every trial, by id.

    Raises:
      ConfigError: before anything runs, a trial that cannot be a lane: see :func:`cohorts`; a task that is scored on
        the host.
    """
    stop, states = stop or runner.Stop(), {trial.id: runner.state(store, trial, retries) for trial in trials}
    waiting = [trial for trial in trials if states[trial.id] == runner.WAITING]
    devices = devices or jax.local_devices()
    for cohort, programs in [(cohort, Programs(cohort, devices)) for cohort in cohorts(waiting, parse)]:
        if stop.times:
            break
        view.say(f"together       {len(cohort.trials)} trials in one program")
        _Run(cohort, programs, store, view, states, stop).run()
    view.show(states, force=True)
    return states
