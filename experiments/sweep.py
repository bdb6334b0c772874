"""Trains every trial of a sweep, each in its own process and directory.

    python -m experiments.sweep --config=configs/chain.py:runlocal --sweep_dir=runs/chain_sweep

The config's `get_hyper()` says which trials there are; `creditjax.sweeps` has what describes them: product, zipped,
chain, sample. Fields are overridden for all trials as in experiments.train, `--config.steps=50`.

    --dry_run            print the resolved trials, with the command of each, and run nothing
    --only=3,7           some of them, by number or id
    --parallel=4         so many at a time
    --retries=2          start a trial that failed again, twice at most in the life of the sweep
    --backend=local      processes of this machine, on equal shares of its cores and accelerators
    --backend=vmap       lanes of one program, on all accelerators of this machine: trials that differ in their seed,
                         learning rate and numbers of the recipe run together; for tasks that are JAX programs
    --backend=ray --options=CPU=8,GPU=1             actors of a Ray cluster, each with these resources
    --backend=slurm --options=partition=a,time=600  jobs of a Slurm cluster, with these options of sbatch
    --backend=gke --options=slice=v5e:4x4,image=gcr.io/p/i,claim=sweeps
                         writes jobsets.yaml into the sweep's directory, for kubectl apply; launches nothing

--sweep_dir receives trials/<id>/, the run of each (see experiments.train) with its log.txt, and results.jsonl, one
object a finished trial. An id is a hash of the trial's config. The same command again goes on: a finished trial is not
run twice, one that was interrupted resumes from its checkpoint, one that failed is tried as long as --retries allows.
Ctrl-C lets running trials save and end, a second one ends them at once. The exit status is 0 if all trials finished.
"""

from collections.abc import Callable, Mapping, Sequence
import importlib.util
import logging as python_logging
import pathlib
import shlex
import sys
from typing import Any

from absl import app, flags, logging

from experiments import command_line

_OWN = flags.FlagValues()
_CONFIG = command_line.define_config()
_SWEEP_DIR = flags.DEFINE_string(
    "sweep_dir", None, "The sweep's directory; made if absent, resumed from if not.", flag_values=_OWN
)
_BACKEND = flags.DEFINE_enum(
    "backend", "local", ["local", "vmap", "ray", "slurm", "gke"], "Where trials run.", flag_values=_OWN
)
_OPTIONS = flags.DEFINE_list("options", [], "NAME=VALUE, what the backend is told; docs/sweeps.md.", flag_values=_OWN)
_PARALLEL = flags.DEFINE_integer("parallel", 1, "Trials at a time.", lower_bound=1, flag_values=_OWN)
_RETRIES = flags.DEFINE_integer(
    "retries", 1, "Attempts at a trial after the first failed one.", lower_bound=0, flag_values=_OWN
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the resolved trials and run nothing.", flag_values=_OWN)
_ONLY = flags.DEFINE_list("only", [], "Numbers or ids of trials; all if empty.", flag_values=_OWN)


def main(argv: list[str]) -> None:
    """Flags to one library call."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    if not (_SWEEP_DIR.value or _DRY_RUN.value):
        sys.exit("--sweep_dir: absent, wanted a directory")
    logging.set_verbosity(logging.WARNING)
    python_logging.getLogger("jax").setLevel(python_logging.WARNING)
    import jax

    if _BACKEND.value != "vmap":
        # Accelerators are for the trials.
        jax.config.update("jax_platforms", "cpu")
    from creditjax.sweeps import places
    from creditjax.sweeps import trials as trials_lib
    from creditjax.sweeps.store import Store

    store = Store(_SWEEP_DIR.value or "SWEEP_DIR")
    try:
        shared = shared_flags(sys.argv[1:])
        given = flags.FLAGS["config"].override_values
        hypers = describe(flags.FLAGS["config"].config_filename)
        parse = lambda own: command_line.parse_config([*shared, *own])  # noqa: E731
        trials = trials_lib.resolve(hypers, parse, given)
        chosen = choose(trials, _ONLY.value)
        options = places.parse_options(_OPTIONS.value)
        if _DRY_RUN.value:
            print("\n".join(listing(trials, chosen, store, shared, _RETRIES.value)))
            return
        if _BACKEND.value == "gke":
            with store.alone():
                print(render(trials, chosen, store, shared, options))
            return
        go = lanes(chosen, store, parse, options) if _BACKEND.value == "vmap" else jobs(chosen, store, shared, options)
        with store.alone():
            states = sweep(trials, chosen, store, shared, go)
    except (ValueError, RuntimeError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.exit(0 if all(state == "finished" for state in states.values()) else 1)


# What runs the chosen trials: told whom to tell and whom to ask whether to stop, it returns their states by id.
Go = Callable[[Any, Any], dict[str, str]]


def jobs(chosen: Sequence[Any], store: Any, shared: Sequence[str], options: Mapping[str, Any]) -> Go:
    """Each trial in processes of its own, where --backend says."""
    from creditjax.sweeps import places, runner

    place = places.BACKENDS[_BACKEND.value](_PARALLEL.value, options)
    started = lambda trial: command(trial, store, shared, place.processes)  # noqa: E731
    return lambda view, stop: runner.run(chosen, store, place.backend, started, view, _RETRIES.value, stop)


def lanes(chosen: Sequence[Any], store: Any, parse: Callable[..., Any], options: Mapping[str, Any]) -> Go:
    """All trials together in this process."""
    from creditjax.sweeps import places, vmapped

    places.check_names(options, ())
    return lambda view, stop: vmapped.run(chosen, store, parse, view, _RETRIES.value, stop)


def sweep(trials: Sequence[Any], chosen: Sequence[Any], store: Any, shared: Sequence[str], go: Go) -> dict[str, str]:
    """Runs the chosen trials of a sweep; returns their states by id."""
    from creditjax.sweeps import runner, table

    begin(trials, store, shared)
    view = table.Table(chosen, store, sys.stderr)
    stop = runner.Stop()

    class Told:
        """The table, and the results whenever there are more."""

        def say(self, text: str) -> None:
            view.say(text)
            store.write_results(trials)

        show = view.show

    with stop.on_signals():
        states = go(Told(), stop)
    view.close()
    store.write_results(trials)
    print("\n".join([*table.results(chosen, states, store), table.counts(states)]))
    print(f"results: {store.root / 'results.jsonl'}")
    if any(state == runner.WAITING for state in states.values()):
        print("The same command again goes on.")
    if any(state == runner.FAILED for state in states.values()):
        print(f"The same command with --retries={_RETRIES.value + 1} tries failed trials once more.")
    return states


def render(
    trials: Sequence[Any], chosen: Sequence[Any], store: Any, shared: Sequence[str], options: Mapping[str, Any]
) -> str:
    """Writes the manifests of the chosen trials that are not finished; returns what to do with them.

    Raises:
      ValueError: options that are absent, that there are not, or that make up no slice.
    """
    from creditjax.sweeps import gke, places
    from creditjax.sweeps.backend import Job
    from creditjax.training import metrics

    needed = ("slice", "image", "claim")
    places.check_names(options, (*needed, "chips_per_host", "mount", "namespace"), needed)
    tpu = gke.parse_slice(options["slice"], options.get("chips_per_host"))
    mount = pathlib.PurePosixPath(options.get("mount", "/sweep"))
    begin(trials, store, shared)
    made = []
    for trial in chosen:
        if store.result(trial) is None:
            store.directory(trial).mkdir(parents=True, exist_ok=True)
            words = command(trial, store, shared, tpu.hosts, mount / "trials" / trial.id)
            job = Job(trial.id, ("python", *words[1:]), store.directory(trial))
            space = options.get("namespace", "default")
            made.append(gke.job_set(job, tpu, options["image"], options["claim"], str(mount), _RETRIES.value, space))
    path = store.root / "jobsets.yaml"
    metrics.replace_text(path, gke.render(made))
    return (
        f"{len(made)} of {len(chosen)} trials are not finished: {path}\n"
        f"{mount} of their containers has to be this directory: {store.root.resolve()}\n"
        f"kubectl apply -f {path}"
    )


def begin(trials: Sequence[Any], store: Any, shared: Sequence[str]) -> None:
    """Writes down what the sweep is, and says what changed since it was last run."""
    from creditjax.training import loop

    for changed in store.begin(shared, trials, loop.versions()):
        print(f"since this sweep was last run, {changed}", file=sys.stderr)


def shared_flags(arguments: Sequence[str]) -> list[str]:
    """The flags of --config among the arguments of this command: what all trials are given.

    Raises:
      ValueError: one whose value is an argument of its own, since it could not be told from a switch.
    """
    found = []
    for argument in arguments:
        name, equals, _ = argument.lstrip("-").partition("=")
        if name.split(".")[0] in ("config", "noconfig") and argument.startswith("-"):
            if not equals:
                raise ValueError(f"{argument}: no value, wanted {argument}=VALUE")
            found.append(argument)
    return found


def describe(file: str) -> list[dict[str, Any]]:
    """The overrides that a config file's `get_hyper` describes.

    Raises:
      ValueError: it has none, or describes something else.
    """
    from creditjax import sweeps

    path = pathlib.Path(file.partition(":")[0])
    spec = importlib.util.spec_from_file_location("swept", path)
    assert spec is not None and spec.loader is not None  # it was opened as a config before
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_hyper"):
        raise ValueError(f"{path}: no get_hyper, wanted one that returns a list of overrides")
    return sweeps.chain(module.get_hyper())


def choose(trials: Sequence[Any], only: Sequence[str]) -> list[Any]:
    """The trials with these numbers or ids, all without any.

    Raises:
      ValueError: there is none with a number or id.
    """
    from creditjax.naming import nearest

    names = {name: trial for trial in trials for name in (str(trial.number), trial.id)}
    for name in only:
        if name not in names:
            hint = f"they are 1 to {len(trials)}" if name.isdecimal() else nearest(name, [t.id for t in trials])
            raise ValueError(f"--only: no trial {name!r}; {hint}")
    wanted = {names[name].id for name in only}
    return [trial for trial in trials if not only or trial.id in wanted]


def command(trial: Any, store: Any, shared: Sequence[str], processes: int = 1, directory: Any = None) -> list[str]:
    """What runs a trial, in each of its processes, in a directory that is the store's unless said otherwise."""
    found = ["--coordinator=auto"] if processes > 1 else []
    workdir = f"--workdir={directory or store.directory(trial)}"
    return [sys.executable, "-m", "experiments.train", *shared, *trial.flags, *found, workdir]


def listing(trials: Sequence[Any], chosen: Sequence[Any], store: Any, shared: Sequence[str], retries: int) -> list[str]:
    """The resolved configs: the fields that all trials have in common, then of each trial the others."""
    from creditjax.sweeps import runner
    from creditjax.sweeps import trials as trials_lib

    fields = {trial.id: trials_lib.flatten(trial.config) for trial in trials}
    first = fields[trials[0].id]
    common = {path for path, value in first.items() if all(path in f and f[path] == value for f in fields.values())}
    lines = ["In all trials:"]
    lines += [f"    {path} = {first[path]!r}" for path in sorted(common)]
    for trial in chosen:
        lines += ["", f"{trial.number}/{len(trials)}  {trial.id}  {runner.state(store, trial, retries)}"]
        lines += [f"    {path} = {x!r}" for path, x in sorted(fields[trial.id].items()) if path not in common]
        lines.append(f"    {shlex.join(['python', *command(trial, store, shared)[1:]])}")
    return lines


def run() -> None:
    """The console entry."""
    flags.mark_flags_as_required(["config"])
    command_line.run(main, _OWN)


if __name__ == "__main__":
    run()
