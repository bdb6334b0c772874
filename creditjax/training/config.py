"""The configuration of a run: its fields, the argument string of config files, and the check before anything compiles.

A config file returns :func:`default_config` with some fields changed. Three parts, `task`, `policy` and `recipe`, have
a `name` and beside it whatever arguments that name takes; they are checked against it.
"""

from collections.abc import Iterable, Mapping
import importlib
import inspect
import json
import math
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from creditjax.models.base import Policy, Sampling
from creditjax.naming import nearest
from creditjax.samplers import state_groups
from creditjax.signals import producers
from creditjax.training.step import Plan


class ConfigError(ValueError):
    """A config that cannot be run: the field, what was found, what was wanted."""


POLICIES = ("transformer", "mlp", "gru")

REWARD_MODELS = ("implicit", "steps")

# Signals that say of every segment whether it is right.
_LABELS = ("step_label", "correctness", "commitment_correct", "subproblem_reward")

# Fields that may change between two calls of one run: how it runs and how long, not what it computes.
MAY_CHANGE = ("steps", "mesh", "log", "checkpoint.every", "checkpoint.keep_last", "checkpoint.keep_best", "on_fault")

# Fields that hold whatever arguments their part takes.
_OPEN = ("task", "policy", "recipe", "optimizer.options")


def default_config() -> ConfigDict:
    """Every field with its default. The four open parts are unlocked, all else is locked."""
    config = ConfigDict()
    # Seed of parameters, rollouts and everything else that is random.
    config.seed = 0
    # Number of reinforcement-learning steps, after the warm start.
    config.steps = 100

    # What is trained on: a name of `creditjax.tasks.TASKS`, and the arguments of its class beside the name.
    config.task = ConfigDict({"name": "reasoning_gym"})
    # Who is trained: "transformer", "mlp" or "gru", and the fields of its configuration beside the name.
    config.policy = ConfigDict({"name": "transformer"})
    # How it is trained: a name of `creditjax.list_recipes()`, and its hyperparameters beside the name.
    config.recipe = ConfigDict({"name": "grpo"})
    # How tokens are drawn in training: temperature (0 is greedy), top_k (0 for all), top_p (1 for all).
    config.sampling = ConfigDict({"temperature": 1.0, "top_k": 0, "top_p": 1.0})

    config.batch = ConfigDict()
    # P, prompts of a step, over all devices.
    config.batch.prompts = 32
    # G, rollouts of each prompt.
    config.batch.group_size = 8
    # Passes over a batch of rollouts.
    config.batch.epochs = 1
    # Parameter updates a pass.
    config.batch.minibatches = 1
    # Pieces of a minibatch whose gradients are added up: saves memory, changes nothing.
    config.batch.micro_batches = 1
    # Decay a step of the moving average of outcomes, for recipes that read `running_baseline`.
    config.batch.baseline_decay = 0.9

    config.optimizer = ConfigDict()
    # One of `creditjax.training.optimizer.OPTIMIZERS`, and further keywords of that optax update.
    config.optimizer.name = "adamw"
    config.optimizer.options = ConfigDict()
    # Peak learning rate, updates of linear warm-up, and what comes after: "constant", "cosine" or "linear".
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup = 0
    config.optimizer.schedule = "constant"
    # Largest global norm of a gradient, 0 for no clipping.
    config.optimizer.clip = 1.0
    # Decoupled weight decay, matrices only.
    config.optimizer.weight_decay = 0.0

    # A process-reward model that learns on the run's own rollouts, if the recipe reads what it makes. "implicit", for
    # recipes that read `logprob_prm`: trained on outcomes, `beta` is the scale of its reward. "steps" scores the end
    # of every segment, and takes the task's place in `process_reward`, `step_score` and `prover_value`: trained on
    # `labels`, which are "outcome" or a signal of the task, such as "step_label".
    config.reward_model = ConfigDict({"kind": "implicit", "learning_rate": 1e-4, "beta": 0.05, "labels": "outcome"})

    # The replay buffer of recipes that ask for older rollouts: training prompts that are visited again and again,
    # rollouts that are kept, and latest outcomes of a prompt in its mean.
    config.replay = ConfigDict({"prompts": 512, "capacity": 10_000, "window": 20})

    config.warm_start = ConfigDict()
    # Supervised steps on gold answers before reinforcement learning, 0 for none.
    config.warm_start.steps = 0
    # Gold answers a step.
    config.warm_start.prompts = 64
    # Their peak learning rate.
    config.warm_start.learning_rate = 1e-3

    config.eval = ConfigDict()
    # Steps between evaluations on held-out prompts; there is one before the first and one after the last step, too.
    config.eval.every = 25
    # Held-out prompts, 0 for all.
    config.eval.size = 0
    # Temperature of the held-out rollouts, 0 for greedy.
    config.eval.temperature = 0.0
    # The outcome from which a rollout counts as a success.
    config.eval.success_at = 1.0

    config.checkpoint = ConfigDict()
    # Steps between checkpoints; there is one after the last step, too.
    config.checkpoint.every = 50
    # Newest states to keep, and best parameters to keep (0 for none) by this metric of an evaluation.
    config.checkpoint.keep_last = 2
    config.checkpoint.keep_best = 1
    config.checkpoint.best_metric = "eval/success"

    config.log = ConfigDict()
    # Steps between rows of metrics.jsonl.
    config.log.every = 1
    # Also write TensorBoard event files.
    config.log.tensorboard = False
    # Rollouts shown in the report.
    config.log.rollouts = 8

    # Devices along each axis; -1 for all that are left.
    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})
    # What to do about a group with a number that cannot be right: "stop" (with a checkpoint) or "drop" (and count it).
    config.on_fault = "stop"

    config.lock()
    for path in _OPEN:
        _get(config, path).unlock()
    return config


def parse_arg(arg: str | None, **defaults: Any) -> ConfigDict:
    """Parses the argument string of a config file, ``FILE:arg``.

    ``"runlocal,steps=10"`` with ``parse_arg(arg, runlocal=False, steps=100)`` gives runlocal True and steps 10: a bare
    name is True, and a value gets the type of its default.

    Raises:
      ConfigError: an unknown name, with the nearest ones, or a value of another type.
    """
    parsed = dict(defaults)
    for item in filter(None, (arg or "").split(",")):
        name, given, text = item.partition("=")
        if name not in defaults:
            raise ConfigError(f"config argument {name!r} is unknown; {nearest(name, defaults)}")
        kind = type(defaults[name])
        if kind is bool:
            words = {"true": True, "1": True, "false": False, "0": False}
            value = words.get(text.lower()) if given else True
        else:
            try:
                value = kind(text) if given else None
            except ValueError:
                value = None
        if value is None:
            raise ConfigError(f"config argument {name}: {text!r}, wanted {kind.__name__}")
        parsed[name] = value
    return ConfigDict(parsed)


def mesh_shape(config: ConfigDict) -> dict[str, int]:
    """The mesh's shape, checked before anything else because it says how many devices there are.

    Raises:
      ConfigError: an unknown axis or a size that is no integer.
    """
    default = default_config().mesh
    shape = config.get("mesh", default)
    if not isinstance(shape, ConfigDict):
        raise ConfigError(f"config.mesh: {shape!r}, wanted the fields {', '.join(default)}")
    _check_fields(shape, default, "mesh.")
    return shape.to_dict()


class Parts(NamedTuple):
    """What a config names, built: no array has been made and nothing compiled."""

    task: Any
    policy: Policy
    recipe: Any
    sampling: Sampling
    plan: Plan


def check_config(config: ConfigDict, shards: int = 1) -> Parts:
    """Builds what a config names, or says what is wrong with it.

    Args:
      config: as from :func:`default_config`.
      shards: number of devices that prompts are split over.

    Raises:
      ConfigError: an unknown or missing field, a value of another type, an unknown recipe, policy, task, optimiser or
        argument of one, with the nearest right names; sizes that do not divide.
    """
    from creditjax import tasks
    from creditjax.training import optimizer

    _check_fields(config, default_config())
    batch = config.batch
    for path in ("steps", "warm_start.steps", "eval.size", "checkpoint.keep_best", "log.rollouts"):
        _check_least(config, path, 0)
    for path in ("prompts", "group_size", "epochs", "minibatches", "micro_batches"):
        _check_least(config, f"batch.{path}", 1)
    for path in ("warm_start.prompts", "eval.every", "checkpoint.every", "checkpoint.keep_last", "log.every"):
        _check_least(config, path, 1)
    for path in ("prompts", "capacity", "window"):
        _check_least(config, f"replay.{path}", 1)
    for path in ("optimizer.learning_rate", "warm_start.learning_rate", "sampling.temperature", "eval.temperature"):
        _check_least(config, path, 0)
    _check_choice("reward_model.kind", config.reward_model.kind, REWARD_MODELS)
    _check_choice("reward_model.labels", config.reward_model.labels, ("outcome", *_LABELS))
    _check_choice("on_fault", config.on_fault, ("stop", "drop"))
    _check_choice("policy.name", config.policy.get("name"), POLICIES)
    _check_choice("task.name", config.task.get("name"), tasks.TASKS)

    pieces = shards * batch.minibatches * batch.micro_batches
    if batch.prompts % pieces:
        raise ConfigError(
            f"batch.prompts: {batch.prompts}, wanted a multiple of {pieces} ({shards} devices x {batch.minibatches} "
            f"minibatches x {batch.micro_batches} micro-batches)"
        )
    if config.warm_start.prompts % (shards * batch.micro_batches):
        raise ConfigError(
            f"warm_start.prompts: {config.warm_start.prompts}, wanted a multiple of {shards * batch.micro_batches} "
            f"({shards} devices x {batch.micro_batches} micro-batches)"
        )
    try:
        optimizer.make_optimizer(config.optimizer, max(config.steps, 1))
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error

    recipe = _build_recipe(config.recipe)
    if recipe.sampler.replayed:
        _check_replay(config, recipe)
    try:
        # State groups are scored step by step.
        scored = ("process_reward",) if recipe.sampler.commit else ()
        learned = producers.SCORED if reward_kind(config, recipe) == "steps" else ()
        asked = (name for name in signals_read(config, recipe) if name not in learned)
        task = _build_task(config.task, (*asked, *scored))
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"task: {error}") from error
    if config.warm_start.steps and not hasattr(task, "gold"):
        raise ConfigError(
            f"warm_start.steps: {config.warm_start.steps}, but task {config.task.name!r} has no gold answers"
        )
    if recipe.sampler.edited:
        if len(getattr(task, "digits", ())) < 2:
            raise ConfigError(
                f"recipe {recipe.name!r}: task {config.task.name!r} names no tokens in which an error can be written "
                "(digits), wanted two at least; edits=False trains on whole solutions alone"
            )
        _check_least(config, "batch.group_size", 2)
    if recipe.sampler.commit:
        try:
            state_groups.check(task, recipe.sampler.commit, recipe.sampler.greedy_baseline)
        except ValueError as error:
            raise ConfigError(f"recipe {recipe.name!r} with task {config.task.name!r}: {error}") from error
    if reward_kind(config, recipe) == "steps" and config.policy.name != "transformer":
        raise ConfigError(f"reward_model.kind: 'steps' with policy.name {config.policy.name!r}, wanted 'transformer'")
    sampling = Sampling(config.sampling.temperature, config.sampling.top_k, config.sampling.top_p)
    plan = Plan(batch.epochs, batch.minibatches, batch.micro_batches, batch.baseline_decay, config.steps)
    return Parts(task, _build_policy(config.policy, task, recipe), recipe, sampling, plan)


def to_json(config: ConfigDict) -> dict[str, Any]:
    """The resolved config as plain JSON data."""
    return json.loads(json.dumps(_plain(config), default=str))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The fields in which two configs of :func:`to_json` differ, as ``path: old -> new``."""
    found = []
    for name in sorted({*old, *new}):
        a, b, path = old.get(name), new.get(name), prefix + name
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{path}.")
        elif a != b:
            found.append(f"{path}: {a!r} -> {b!r}")
    return found


def may_change(path: str) -> bool:
    """Whether two calls of one run may differ in a field.

    >>> may_change("mesh.data"), may_change("warm_start.steps")
    (True, False)
    """
    return any(path == free or path.startswith(f"{free}.") for free in MAY_CHANGE)


def needed_signals(recipe: Any) -> tuple[str, ...]:
    """Names of the signals that have to be in the batch for a recipe, its own list and its estimator's."""
    from creditjax.trajectory import SIGNALS

    names = {name for name in (*recipe.signals, *recipe.needs) if name in SIGNALS}
    # An implicit process-reward model is trained against the reference.
    return tuple(sorted(names | ({"logprob_ref"} if "logprob_prm" in names else set())))


def reward_kind(config: ConfigDict, recipe: Any) -> str | None:
    """What process-reward model a run trains: one of `REWARD_MODELS`, None if the recipe reads none."""
    needed = needed_signals(recipe)
    if "logprob_prm" in needed:
        return "implicit"
    steps = config.reward_model.kind == "steps" and any(name in producers.SCORED for name in needed)
    return "steps" if steps else None


def signals_read(config: ConfigDict, recipe: Any) -> tuple[str, ...]:
    """Names of the signals that have to be in a batch: what the recipe needs, and the labels of a model of steps."""
    labels = config.reward_model.labels
    labelled = reward_kind(config, recipe) == "steps" and labels != "outcome"
    return tuple(sorted({*needed_signals(recipe), *((labels,) if labelled else ())}))


def _check_replay(config: ConfigDict, recipe: Any) -> None:
    batch, sampler = config.batch, recipe.sampler
    if sampler.dynamic or sampler.commit:
        what = "dynamic sampling" if sampler.dynamic else "state groups"
        raise ConfigError(f"recipe {recipe.name!r}: replayed={sampler.replayed} with {what}, wanted one of them")
    _check_least(config, "replay.prompts", batch.prompts)
    _check_least(config, "replay.window", batch.group_size)
    _check_least(config, "replay.capacity", max(batch.prompts * batch.group_size, sampler.replayed))


def _build_recipe(config: ConfigDict) -> Any:
    import creditjax

    options = _plain(config)
    name = options.pop("name", None)
    _check_choice("recipe.name", name, creditjax.list_recipes())
    try:
        return creditjax.recipe(name, **options)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"recipe: {error}") from error


def _build_task(config: ConfigDict, needed: tuple[str, ...]) -> Any:
    from creditjax import tasks

    options = _plain(config)
    # Oracles cost time in every rollout: a task that can leave some out makes those that the recipe reads.
    module, name = tasks.TASKS[options["name"]]
    offered = getattr(getattr(importlib.import_module(module), name), "offered_signals", None)
    if offered is not None:
        asked = [name for name in needed if name in offered()]
        read = producers.inputs(name for name in needed if name not in asked)
        options.setdefault("signals", (*asked, *(name for name in read if name in offered() and name not in asked)))
    return tasks.make(**options)


def _build_policy(config: ConfigDict, task: Any, recipe: Any) -> Policy:
    options = _plain(config)
    name = options.pop("name")
    text = hasattr(task, "vocab_size")
    if text != (name == "transformer"):
        raise ConfigError(f"policy.name: {name!r}, wanted {'transformer' if text else 'mlp or gru'} for this task")
    if text:
        from creditjax.models.transformer import TransformerConfig, TransformerPolicy

        if producers.reads_value(needed_signals(recipe)):
            options.setdefault("value_head", True)
        return TransformerPolicy(_call("policy", TransformerConfig, options, vocab_size=task.vocab_size))
    from creditjax.models.control import GRUPolicy, MLPPolicy

    made = {"mlp": MLPPolicy, "gru": GRUPolicy}[name]
    return _call("policy", made, options, num_actions=task.num_actions, observation_size=task.observation_size)


def _call(label: str, factory: Any, options: Mapping[str, Any], **fixed: Any) -> Any:
    parameters = inspect.signature(factory).parameters
    free = [name for name in parameters if name not in fixed]
    for name, value in options.items():
        if name not in free:
            raise ConfigError(f"{label}.{name} is unknown; {nearest(name, free)}")
        default = parameters[name].default
        if default is not inspect.Parameter.empty and not _same_type(value, default):
            raise ConfigError(f"{label}.{name}: {value!r}, wanted {type(default).__name__}")
    try:
        return factory(**options, **fixed)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{label}: {error}") from error


def _check_fields(config: Any, default: ConfigDict, prefix: str = "") -> None:
    for name in config:
        path = prefix + name
        if name not in default:
            raise ConfigError(f"config.{path} is unknown; {nearest(name, default)}")
        value, wanted = config[name], default[name]
        if path in _OPEN:
            if not isinstance(value, ConfigDict):
                raise ConfigError(f"config.{path}: {value!r}, wanted a dictionary")
        elif isinstance(wanted, ConfigDict):
            if not isinstance(value, ConfigDict):
                raise ConfigError(f"config.{path}: {value!r}, wanted the fields {', '.join(wanted)}")
            _check_fields(value, wanted, f"{path}.")
        elif not _same_type(value, wanted):
            raise ConfigError(f"config.{path}: {value!r}, wanted {type(wanted).__name__}")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"config.{path}: {value!r}, wanted a finite number")
    for name in default:
        if name not in config:
            raise ConfigError(f"config.{prefix}{name} is missing")


def _same_type(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return type(value) is type(default)
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, tuple | list):
        return isinstance(value, tuple | list)
    return default is None or isinstance(value, type(default))


def _check_choice(path: str, value: Any, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise ConfigError(f"config.{path}: {value!r} is unknown; {nearest(value, known)}")


def _check_least(config: ConfigDict, path: str, least: int) -> None:
    if _get(config, path) < least:
        raise ConfigError(f"config.{path}: {_get(config, path)}, wanted at least {least}")


def _get(config: ConfigDict, path: str) -> Any:
    for name in path.split("."):
        config = config[name]
    return config


def _plain(value: Any) -> Any:
    if isinstance(value, ConfigDict):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {name: _plain(x) for name, x in value.items()}
    return tuple(_plain(x) for x in value) if isinstance(value, list | tuple) else value
