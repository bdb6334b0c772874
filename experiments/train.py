"""Trains a policy with a credit estimator that is chosen by name.

    python -m experiments.train --config=configs/quickstart.py --workdir=runs/quickstart

--config takes a file with a `get_config(arg)`, and the argument after a colon. Any field is overridden by its path:

    --config=configs/quickstart.py:runlocal        a form of the config that finishes within a minute on two cores
    --config.recipe.name=rloo                      another method, see the table in README.md
    --config.recipe.eps=1e-4                       a hyperparameter of the recipe
    --config.optimizer.learning_rate=3e-4          anything else, see the comments in creditjax/training/config.py

--workdir receives config.json (resolved, with versions), metrics.jsonl, checkpoints/ and, at the end, report.html. The
same command again resumes after a kill, to the same numbers as a run that was never killed. Configs:

    configs/quickstart.py    words spelled backward from reasoning-gym, a tiny transformer, GRPO
    configs/lookup.py        a multi-turn agent that looks things up
    configs/chain.py         classical control with delayed reward, PPO
    configs/gsm8k.py         grade-school mathematics, the data path
    configs/forkme.py        made to be copied

What a run would need of a TPU slice, found out on this machine by the TPU's own compiler (pip install '.[plan]'):

    --plan=v5e:4x4                                 bytes, products, collectives of each program; nothing is run

A run over several processes gets the same command in each, with --coordinator, --num_processes and --process_id. If one
of them is lost the others end, within --patience seconds (exit status 75, or 134 from JAX itself); the same commands
again go on from the last checkpoint, on as many processes and devices as there are.
"""

import logging as python_logging
import os
import sys

from absl import app, flags, logging

from experiments import command_line

_CONFIG = command_line.define_config()
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's directory; made if absent, resumed from if not.")
_COORDINATOR = flags.DEFINE_string(
    "coordinator", "", "host:port of process 0 in a run over several processes; 'auto' asks the cluster."
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Number of processes.", lower_bound=1)
_PLAN = flags.DEFINE_string("plan", None, "A TPU slice, as v5e:4x4: compile for it, say what it needs, and stop.")
_PATIENCE = flags.DEFINE_integer(
    "patience", 60, "Seconds without a sign of life after which a process of the run counts as lost.", lower_bound=5
)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Index of this process.", lower_bound=0)


def main(argv: list[str]) -> None:
    """Flags to one library call."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    # Orbax tells every save at this level.
    logging.set_verbosity(logging.WARNING)
    python_logging.getLogger("jax").setLevel(python_logging.WARNING)
    from creditjax import training
    from creditjax.training import mesh

    try:
        if _PLAN.value:
            from creditjax.training import plan

            made = plan.make_plan(_CONFIG.value, plan.described_devices(_PLAN.value), _PLAN.value, logging.warning)
            print(plan.report(made))
            sys.exit(0 if made.fits else 1)
        if not _WORKDIR.value:
            sys.exit("--workdir: absent, wanted the run's directory")
        mesh.initialize_distributed(
            _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value, patience=_PATIENCE.value
        )
        result = training.train(_CONFIG.value, _WORKDIR.value)
    except (training.ConfigError, training.FaultyBatch) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except training.LostProcess as error:
        print(f"LostProcess: {error}", file=sys.stderr, flush=True)
        os._exit(75)  # an orderly end would wait for the process that is gone
    if not result.finished:
        sys.exit(128 + 15)  # what a shell says of a process that ended by SIGTERM


def run() -> None:
    """The console entry."""
    flags.mark_flags_as_required(["config"])
    command_line.run(main)


if __name__ == "__main__":
    run()
