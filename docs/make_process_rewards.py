"""Trains on games whose process reward can be hacked and writes the tables of docs/process_rewards.md.

    python -m docs.make_process_rewards

Some minutes on two cores. The same seeds give the same numbers.
"""

import pathlib

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import recipe
from creditjax.algebra import at_segment_end, blend, chain, estimate, future_sum, min_return, outcome, signal, soft_min
from creditjax.benchmark import hacking
from creditjax.tasks.fillers import Fillers
from docs.markers import splice

PAGE = pathlib.Path(__file__).with_name("process_rewards.md")
SEEDS = 16
PURE = Fillers((1, 2), steps=8)
ANNEALED = Fillers((5, 6), steps=5, base=8)


def main() -> None:
    """Makes the tables and writes them between their markers."""
    for name, make in (("exact", exact_table), ("pure", pure_table), ("annealed", annealed_table)):
        table = make()
        print(f"\n{name}\n\n{table}", flush=True)
        splice(PAGE, name, table)


def made(game: Fillers, right: float, wrong: float, filler: float) -> hacking.Episodes:
    """The game's episodes on the device."""
    return jax.tree.map(jnp.asarray, hacking.episodes(game, hacking.Judge(right, wrong, filler)))


def exact_table() -> str:
    """Exact ascent on the expected gradient of each form of the return."""
    process = signal("process_reward")
    forms = {
        "sum": chain(process, at_segment_end(), future_sum()),
        "soft min": chain(process, soft_min(0.1), at_segment_end(), future_sum()),
        "strict min": chain(process, min_return()),
    }
    lines = ["| form | outcome's weight | filler scores | outcome | steps |", "|---|---|---|---|---|"]
    for filler in (0.4, 0.6):
        game = made(PURE, 1.0, -1.0, filler)
        batch = jax.tree.map(lambda x: x[None], game.batch)
        logits = jnp.zeros(game.choices.shape)
        for weight in (1.0, 0.0):
            for name, form in forms.items():
                credit = estimate(blend((outcome(), weight), (form, 1.0)), batch).value[0]
                seen = hacking.ascend(game, credit, logits, 1.0, 1000)
                at = " → ".join(f"{float(seen.outcome[i]):.3f}" for i in (0, 30, 1000))
                lines.append(f"| {name} | {weight:g} | {filler} | {at} | {float(seen.steps[-1]):.1f} |")
    return "\n".join(lines)


def pure_table() -> str:
    """The recipes as they are, with sampled groups."""
    rows = [("`rloo`", "rloo", {})]
    for mode in ("sum", "soft_min", "strict_min"):
        rows.append((f"`pure`, {mode}", "pure", {"mode": mode}))
        rows.append((f"`pure`, {mode}, no outcome", "pure", {"mode": mode, "outcome_weight": 0.0}))
    lines = [f"| method | filler scores {HEADER}", f"|---{RULE}"]
    for filler in (0.4, 0.6):
        game = made(PURE, 1.0, -1.0, filler)
        logits = jnp.zeros(game.choices.shape)
        for label, name, given in rows if filler == 0.4 else rows[1:]:
            seen = trained(game, recipe(name, **given).estimator, logits, 0.3, (2, 8))
            lines.append(f"| {label} | {filler} | {cells(seen)} |")
    return "\n".join(lines)


def annealed_table() -> str:
    """Fixed and falling weights of the process reward."""
    game = made(ANNEALED, 0.5, 0.0, 1.0)
    logits = jnp.zeros(game.choices.shape).at[:, -1].set(-1.0)
    rows = [("outcome only, `grpo`", recipe("grpo", ddof=0), "")]
    for label, given in (
        ("fixed", {"schedule": "constant"}),
        ("linear", {"decay_steps": 200.0}),
        ("linear", {"decay_steps": 60.0}),
        ("cosine", {"schedule": "cosine", "decay_steps": 60.0}),
        ("exp", {"schedule": "exp", "decay_steps": 60.0}),
    ):
        rows.append((label, recipe("decaying_process_reward", mode="turn", **given), f"{given.get('decay_steps', '')}"))
    lines = [f"| weight | decays in {HEADER}", f"|---{RULE}"]
    for label, method, steps in rows:
        seen = trained(game, method.estimator, logits, 1.0, (1, 8))
        lines.append(f"| {label} | {steps.removesuffix('.0') or '–'} | {cells(seen)} |")
    return "\n".join(lines)


HEADER = "| outcome after 20 updates | at its best | at the end | fillers at the end | hacked |"
RULE = "|---" * 6 + "|"


def trained(game: hacking.Episodes, estimator, logits, rate: float, shape: tuple[int, int]) -> hacking.Look:
    """All seeds of one method."""
    keys = jax.random.split(jax.random.key(0), SEEDS)
    return jax.device_get(hacking.train(game, estimator, logits, rate, keys, shape=shape, updates=400, every=10))


def cells(seen: hacking.Look) -> str:
    """Means with their intervals, and how many seeds are hacked at some time."""
    looks = seen.outcome.shape[1]
    windows = [jax.tree.map(lambda x, end=end: x[:, :end], seen) for end in range(10, looks + 1)]
    hacked = np.any([hacking.is_hacked(x, 10) for x in windows], axis=0).sum()
    said = hacking.summary(seen)
    return " | ".join(
        [*(f"{m:.3f} ({low:.3f} to {high:.3f})" for m, low, high in said.values()), f"{hacked} of {SEEDS}"]
    )


if __name__ == "__main__":
    main()
