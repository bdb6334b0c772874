"""Trains with process rewards and writes the tables and the picture of docs/process_curves.md.

    python -m docs.make_process_curves prime     PRIME's process reward against exact credit, over training
    python -m docs.make_process_curves train     five seeds of each recipe
    python -m docs.make_process_curves write     tables and picture from docs/process_curves.jsonl

`prime` and `train` add their rows to docs/process_curves.jsonl; a seed that is there already is not measured again.
`train` makes the runs of experiments/train.py, see `command`, all in one process. `write` needs matplotlib (the `docs`
extra).
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping
import functools
import json
import pathlib
import shlex
import tempfile
import time
from typing import Any

import jax
from ml_collections import ConfigDict
import numpy as np

from configs import quickstart, stepwise
from creditjax.benchmark.agreement import agreement, shuffled
from creditjax.kernels.segments import segment_sum
from creditjax.process.metrics import step_auroc
from creditjax.sweeps.statistics import interval
from creditjax.training import check_config, train
from creditjax.training import mesh as mesh_lib
from creditjax.training import step as step_lib
from creditjax.training.loop import Programs
from creditjax.training.state import Stream, TrainState, stream_key
from creditjax.trajectory import Trajectory
from docs.make_curves import COLOURS, read
from docs.markers import splice

PAGE = pathlib.Path(__file__).with_name("process_curves.md")
ROWS = PAGE.with_suffix(".jsonl")
PICTURE = PAGE.parent / "img" / "process_curves.svg"
SEEDS = range(5)

# configs/stepwise.py made smaller: a policy that adds well, from demonstrations of which half end wrong.
STEPWISE = {
    "task.gold_noise": 0.12,
    "policy.width": 32,
    "batch.prompts": 8,
    "warm_start.steps": 300,
    "warm_start.prompts": 64,
    "warm_start.learning_rate": 5e-3,
    "optimizer.learning_rate": 3e-4,
    "steps": 150,
}
# A reward model that can keep up with the policy: see the page.
REWARD_MODEL = {"reward_model.learning_rate": 1e-3, "reward_model.beta": 0.5}
# A slower policy and larger batches: outcomes stay mixed while the reward model learns.
PRIME_CHANGES = REWARD_MODEL | {"batch.prompts": 32, "optimizer.learning_rate": 1e-4}
BETAS = (0.5, 0.05)

# Shorter words and smaller batches than configs/quickstart.py has.
SPELLING = {
    "task.parameters": {"min_word_len": 3, "max_word_len": 4},
    "policy.width": 32,
    "batch.prompts": 32,
    "batch.group_size": 8,
    "warm_start.steps": 150,
    "optimizer.learning_rate": 3e-4,
    "steps": 150,
}
TASKS = {
    "stepwise": (stepwise, STEPWISE),
    "spelling": (quickstart, SPELLING),
}
RECIPES = {
    "stepwise": (
        "grpo",
        "pure",
        "prime",
        "sum_form_prm",
        "capo",
        "vppo_prefix",
        "tp_grpo_thought",
        "pav",
        "dash",
        "flowtracer",
        "gcpo_guidance",
        "delta",
    ),
    "spelling": ("grpo", "prime", "flowtracer", "delta"),
}
CHANGES = {"prime": REWARD_MODEL}

# What judges the steps of the held-out rollouts. The first is the credit that PRIME learns; the others are what it is
# to be compared with.
PRIME = "log π_prm / π_ref"
SCORES = ("within", "erring", "pooled", "auroc", "outcome")
CREDITS = (PRIME, "the same, shuffled", "log π / π_ref", "log π_ref")


def changes(task: str, recipe: str, seed: int) -> dict[str, Any]:
    """The fields in which a run differs from the task's config file."""
    return {**TASKS[task][1], "recipe.name": recipe, **CHANGES.get(recipe, {}), "seed": seed}


def configured(task: str, changed: Mapping[str, Any]) -> ConfigDict:
    """The config of a run."""
    config = TASKS[task][0].get_config()
    config.update_from_flattened_dict(dict(changed))
    return config


def command(task: str, recipe: str, seed: int) -> str:
    """What makes the same run from a shell."""
    name = TASKS[task][0].__name__.split(".")[-1]
    flags = [f"--config.{path}={value}" for path, value in changes(task, recipe, seed).items()]
    where = f"--workdir=runs/{task}_{recipe}_{seed}"
    return shlex.join(["python", "-m", "experiments.train", f"--config=configs/{name}.py", *flags, where])


def looked_at(changed: Mapping[str, Any]) -> ConfigDict:
    """The config of a run whose rollouts also carry what :func:`judged` reads; PRIME reads none of it."""
    config = configured("stepwise", changed)
    config.task.signals = ("prover_value", "step_label", "accuracy")
    return config


def prime_looks(config: ConfigDict, seeds: Iterable[int], every: int, blocks: int = 2) -> Iterator[dict[str, Any]]:
    """Trains PRIME as `creditjax.training.train` does, seed after seed, and judges its process reward on the way.

    The judged rollouts are those of the same `blocks` batches of held-out prompts: once as the warm-started policy,
    which is the reference, sampled them ("start"), and afresh by the policy as it is ("now").

    Args:
      config: of the run; its seed is replaced.
      seeds: runs to make.
      every: updates between two looks.
      blocks: batches of held-out prompts.
    """
    mesh = mesh_lib.make_mesh({"data": 1}, jax.devices()[:1])
    programs = Programs(config, check_config(config), mesh)
    judge = jax.jit(lambda state, batch: judged(programs, state, batch))
    warm, total = config.warm_start.steps, config.warm_start.steps + config.steps
    for seed in seeds:
        programs.config.seed = seed
        state = programs.init()
        for _ in range(warm):
            state, _ = programs.warm_step(state, int(state.cursor))
        state = programs.begin(state)
        start = held_out(programs, state, blocks)
        for step in range(warm, total + 1):
            if (step - warm) % every == 0 or step == total:
                seen = {"seed": seed, "update": step - warm, "success": programs.evaluate(state, step)["eval/success"]}
                for of, batches in (("start", start), ("now", held_out(programs, state, blocks))):
                    yield seen | {"rollouts": of, "scores": scores([judge(state, batch) for batch in batches], seed)}
            if step < total:
                key = stream_key(state.key, Stream.ROLLOUT, step)
                batch, used = programs.collect(state, int(state.cursor), key)
                state, _ = programs.step(state, batch, used * config.batch.prompts)


def held_out(programs: Programs, state: TrainState, blocks: int) -> list[Trajectory]:
    """Rollouts of held-out prompts, always of the same prompts and with the same random numbers."""
    rows = programs.config.batch.prompts
    key = stream_key(state.key, Stream.REPORT, 0)
    return [programs.roll(state, b * rows, "eval", jax.random.fold_in(key, b)) for b in range(blocks)]


def judged(programs: Programs, state: TrainState, batch: Trajectory) -> Mapping[str, jax.Array]:
    """Credits of each step ``[P, G, K]``, with the exact one, which steps there are, which are right, and the outcome.

    The exact credit of a step is what it adds to the value of the task's prover, who goes on from any prefix and errs
    in one addition of ten: a value that is exact after an error too.
    """
    names = ("logprob_prm", "logprob_ref", "logprob_current")
    batch = step_lib.add_signals(programs.learner, state, batch, names)
    prm, reference, current = (batch.signals[name] for name in names)
    by_step = jax.vmap(jax.vmap(functools.partial(segment_sum, num_segments=batch.num_segments)))
    steps = lambda x: by_step(x, batch.segment, batch.action_mask)  # noqa: E731
    beta, value = programs.learner.reward.beta, batch.signals["prover_value"]
    return {
        PRIME: beta * steps(prm - reference),
        "log π / π_ref": steps(current - reference),
        "log π_ref": steps(reference),
        "true": value[..., 1:] - value[..., :-1],
        "right": batch.signals["step_label"] > 0.5,
        "valid": steps(batch.action_mask) > 0,
        "outcome": batch.outcome,
    }


def scores(batches: list[Mapping[str, jax.Array]], seed: int) -> dict[str, dict[str, float]]:
    """The agreement of each credit with the exact one, and how well its sum tells right rollouts from wrong ones."""
    flat = lambda parts: np.concatenate([np.asarray(x).reshape(-1, *x.shape[2:]) for x in parts])  # noqa: E731
    found = {name: flat([batch[name] for batch in batches]) for name in batches[0]}
    valid = found["valid"]
    found["the same, shuffled"] = shuffled(found[PRIME], valid, seed)
    made = {}
    for name in CREDITS:
        credit = np.where(valid, found[name], 0.0)
        seen = agreement(credit, found["true"], found["right"], valid)._asdict()
        total, answered = credit.sum(-1), np.ones(len(credit), bool)
        made[name] = seen | {"outcome": float(step_auroc(total, found["outcome"], answered))}
    made["rollouts"] = {"right": float(found["outcome"].mean()), "right steps": float(found["right"][valid].mean())}
    return made


def known() -> list[dict[str, Any]]:
    """What was measured before."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def add(rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends rows to the file of results."""
    rounded = json.loads(json.dumps(list(rows)), parse_float=lambda x: round(float(x), 4))
    with ROWS.open("a") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rounded)


def run_prime() -> None:
    """All seeds of both scales of the reward, a seed at a time."""
    for beta in BETAS:
        done = {row["seed"] for row in known() if row.get("beta") == beta}
        changed = changes("stepwise", "prime", 0) | PRIME_CHANGES | {"reward_model.beta": beta}
        config, rows = looked_at(changed), []
        for row in prime_looks(config, [seed for seed in SEEDS if seed not in done], every=50):
            rows.append({"part": "prime", "beta": beta, **row})
            if row["update"] == config.steps and row["rollouts"] == "now":
                add(rows)
                print(f"prime, beta {beta:g}, seed {row['seed']}", flush=True)
                rows = []


def run_train() -> None:
    """All seeds of every recipe, a run at a time."""
    done = {(row["task"], row["recipe"], row["seed"]) for row in known() if row["part"] == "train"}
    for task, recipes in RECIPES.items():
        for recipe in recipes:
            for seed in SEEDS:
                if (task, recipe, seed) not in done:
                    add([curve(task, recipe, seed)])
            jax.clear_caches()


def curve(task: str, recipe: str, seed: int) -> dict[str, Any]:
    """One run, and its held-out success from the end of the warm start on."""
    config = configured(task, changes(task, recipe, seed))
    with tempfile.TemporaryDirectory() as workdir:
        began = time.perf_counter()
        if not train(config, workdir).finished:
            raise SystemExit("stopped")  # by SIGTERM: half a curve is none
        seconds = time.perf_counter() - began
        steps, success = read(pathlib.Path(workdir), "eval/success")
    after = steps >= config.warm_start.steps
    updates = (steps[after] - config.warm_start.steps).tolist()
    run = {"part": "train", "task": task, "recipe": recipe, "seed": seed}
    return run | {"update": updates, "success": success[after].tolist(), "seconds": seconds}


def write() -> None:
    """Tables between their markers, and the picture."""
    rows = known()
    for name, table in (("prime", prime_table(rows)), ("train", train_table(rows))):
        splice(PAGE, name, table)
    draw(rows)


def prime_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Agreement of each credit with the exact one at each look, means over seeds with their intervals."""
    rows = [row for row in rows if row["part"] == "prime"]
    lines = [
        "| β | rollouts | update | success | credit | within | erring | pooled | AUROC, steps | outcomes |",
        "|---" * 10 + "|",
    ]
    last = max((row["update"] for row in rows), default=0)
    keys = {(row["beta"], row["rollouts"], row["update"]) for row in rows}
    for key in sorted(keys, key=lambda k: (-k[0], k[1] != "start", k[2])):
        found = [row for row in rows if (row["beta"], row["rollouts"], row["update"]) == key]
        success = said([row["success"] for row in found])
        # The others at the end, where there is something to compare.
        for name in CREDITS if key[2] == last else CREDITS[:1]:
            cells = [said([row["scores"][name][score] for row in found]) for score in SCORES]
            lines.append(f"| {key[0]:g} | {key[1]} | {key[2]} | {success} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def train_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Held-out success of each recipe, best first, and against GRPO's from the same warm start."""
    head = ("task", "recipe", "seeds", "start", "mean of all looks", "end", "least", "most", "end less `grpo`'s")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for task, recipes in RECIPES.items():
        of: dict[str, dict[int, list[float]]] = {recipe: {} for recipe in recipes}
        for row in rows:
            if row["part"] == "train" and row["task"] == task:
                of[row["recipe"]][row["seed"]] = row["success"]
        made = {recipe: np.array(list(curves.values())) for recipe, curves in of.items() if curves}
        for recipe, curves in sorted(made.items(), key=lambda item: -item[1][:, -1].mean()):
            last = curves[:, -1]
            cells = [said(curves[:, 0]), said(curves[:, 1:].mean(axis=1)), said(last)]
            cells += [f"{last.min():.2f}", f"{last.max():.2f}"]
            # A seed's warm start decides most of its end, and is the same for all recipes.
            pairs = [of[recipe][seed][-1] - of["grpo"][seed][-1] for seed in of[recipe].keys() & of["grpo"].keys()]
            cells.append(said(pairs) if recipe != "grpo" and pairs else "")
            lines.append(f"| {task} | `{recipe}` | {len(curves)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def said(values: Iterable[float]) -> str:
    """Mean over seeds with its 95% bootstrap interval."""
    values = np.array(list(values))
    if np.isnan(values).any():  # no rollout to score
        return "–"
    low, high = (float(x) for x in interval(values))
    return f"{values.mean():.2f} ({low:.2f} to {high:.2f})"


def draw(rows: Iterable[Mapping[str, Any]]) -> None:
    """Correlations over training, and the curves of the recipes next to GRPO's."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "creditjax"  # the same rows give the same file
    from matplotlib import pyplot

    rows = list(rows)
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for colour, name in zip(COLOURS, CREDITS[:3], strict=False):
        found = [r for r in rows if r["part"] == "prime" and r["beta"] == BETAS[0] and r["rollouts"] == "start"]
        at = sorted({row["update"] for row in found})
        seeds = [[r["scores"][name]["within"] for r in found if r["update"] == update] for update in at]
        band(axes[0], at, np.array(seeds).T, colour, name)
    axes[0].set(xlabel="update", ylabel="rank correlation with exact credit", title="PRIME's process reward")
    # Seeds lie far apart, and a seed's warm start is the same for all recipes: each is held against GRPO's.
    of = {(r["recipe"], r["seed"]): r for r in rows if r["part"] == "train" and r["task"] == "stepwise"}
    for colour, recipe in zip(COLOURS, ("pure", "pav", "vppo_prefix", "prime", "tp_grpo_thought"), strict=True):
        pairs = [
            (of[recipe, seed], of["grpo", seed]) for seed in SEEDS if (recipe, seed) in of and ("grpo", seed) in of
        ]
        if pairs:
            gains = np.array([np.subtract(own["success"], grpo["success"]) for own, grpo in pairs])
            band(axes[1], pairs[0][0]["update"], gains, colour, recipe)
    axes[1].set(xlabel="update", ylabel="success less GRPO's, seed by seed", title="running totals, five seeds")
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, metadata={"Date": None})


def band(panel: Any, at: list[int], values: np.ndarray, colour: str, label: str) -> None:
    """The mean over seeds ``[seeds, looks]`` and its interval."""
    low, high = interval(values)
    panel.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.plot(at, values.mean(axis=0), color=colour, linewidth=2, label=label)


def main() -> None:
    """Flags to one call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("prime", "train", "write"))
    {"prime": run_prime, "train": run_train, "write": write}[parser.parse_args().part]()


if __name__ == "__main__":
    main()
