"""Trains a process-reward model on step-label files and says how it does on problems that it has not seen.

    python -m experiments.train_prm --data=FILE[,FILE...] [--format=auto] [--seeds=3] [--direction=both]

Files are those of `creditjax.process.readers`. Held out are whole problems, so that no solution of a held-out problem
is trained on. Prints one JSON object a seed and one of means, each beside chance: the most frequent label for accuracy,
1/2 for AUROC, and for F1 the same scores handed to other steps. Thresholds of F1 are tuned on the training problems.
"""

import hashlib
import json
import sys

from absl import app, flags
import jax
from jax import numpy as jnp
import numpy as np
import optax

from creditjax.models.transformer import TransformerConfig
from creditjax.process import metrics, prm
from creditjax.process.readers import read_records
from creditjax.process.records import Record
from creditjax.tasks.tokenizer import CharTokenizer

_DATA = flags.DEFINE_list("data", None, "Step-label files.", required=True)
_FORMAT = flags.DEFINE_string("format", "auto", "A format of creditjax.process.readers.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 200, "Updates of a run.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 16, "Solutions an update.", lower_bound=1)
_LENGTH = flags.DEFINE_integer("length", 512, "Characters of a solution, the problem included.", lower_bound=8)
_MAX_STEPS = flags.DEFINE_integer("max_steps", 16, "Steps of a solution.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 64, "Of the transformer.", lower_bound=4)
_DEPTH = flags.DEFINE_integer("depth", 2, "Of the transformer.", lower_bound=1)
_RATE = flags.DEFINE_float("learning_rate", 2e-3, "Of Adam, with a cosine decay.", lower_bound=0.0)
_DIRECTION = flags.DEFINE_enum("direction", "forward", ["forward", "both", "gated"], "How the steps are read.")
_HELD_OUT = flags.DEFINE_float("held_out", 0.3, "Share of the problems that is held out.", 0.0, 1.0)

_tuned = jax.jit(metrics.tune_threshold)


def held_out(record: Record, seed: int, share: float) -> bool:
    """Whether a record's problem is held out: a function of problem and seed alone."""
    digest = hashlib.sha256(f"{seed}\0{record.problem.strip()}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def load(paths: list[str], format: str) -> list[Record]:
    """All records that have a step label, each once; faults of the files are counted on stderr."""
    faults: list = []
    found = {}
    for path in paths:
        for record in read_records(path, format, faults):
            if any(label is not None for label in record.step_labels):
                found.setdefault((record.problem, record.steps, record.step_labels), record)
    for fault in faults:
        print(f"left out: {fault}", file=sys.stderr)
    return list(found.values())


def measure(score: np.ndarray, data: prm.StepBatch, label: np.ndarray, threshold: float) -> dict[str, float]:
    """Accuracy and AUROC of labelled steps, F1 of first errors."""
    scored = np.asarray(data.valid & data.step_mask)
    predicted = metrics.predict_first_error(jnp.asarray(score), data.step_mask, threshold)
    f1 = metrics.processbench_f1(predicted, jnp.asarray(label), jnp.asarray(_covered(data, label)))
    return {
        "accuracy": float(metrics.step_accuracy(jnp.asarray(score), data.label, scored)),
        "auroc": float(metrics.step_auroc(jnp.asarray(score), data.label, scored)),
        "f1": float(f1.f1),
        "error_accuracy": float(f1.error_accuracy),
        "correct_accuracy": float(f1.correct_accuracy),
    }


def _covered(data: prm.StepBatch, label: np.ndarray) -> np.ndarray:
    """Rows whose first error lies among the scored steps, or that have none; -2 stands for an unknown label."""
    mask = np.asarray(data.step_mask)
    there = np.take_along_axis(mask, np.clip(label, 0, mask.shape[1] - 1)[:, None], 1)[:, 0] & (label < mask.shape[1])
    return np.where(label >= 0, there, (label == -1) & mask.any(1))


def run(records: list[Record], seed: int) -> dict[str, dict[str, float] | int]:
    """One split, one model."""
    split = [held_out(record, seed, _HELD_OUT.value) for record in records]
    parts = [[r for r, out in zip(records, split, strict=True) if out == kind] for kind in (False, True)]
    if len(parts[0]) < _BATCH.value or not parts[1]:
        sys.exit(
            f"--data: {len(parts[0])} solutions to train on and {len(parts[1])} held out, wanted at least "
            f"{_BATCH.value} and 1"
        )
    tokenizer = CharTokenizer()
    sizes = dict(length=_LENGTH.value, steps=_MAX_STEPS.value, both=_DIRECTION.value != "forward")
    known, unseen = (prm.encode(part, tokenizer, **sizes) for part in parts)
    first = [np.array([-2 if r.label is None else r.label for r in part]) for part in parts]

    config = TransformerConfig(tokenizer.vocab_size, _WIDTH.value, _DEPTH.value)
    model = prm.StepRewardModel(config, _DIRECTION.value)
    rate = optax.cosine_decay_schedule(_RATE.value, _STEPS.value)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.01))
    batches = prm.minibatches(known, _BATCH.value, seed)
    stages = (prm.Stage(optimizer, _STEPS.value),)
    params, losses = prm.train(model, model.init(jax.random.key(seed)), batches, stages)

    score = jax.jit(model.score)
    scores = [_by_rows(score, params, part) for part in (known, unseen)]
    grid = jnp.quantile(scores[0][np.asarray(known.step_mask)], jnp.linspace(0.0, 0.5, 64))
    threshold = float(_tuned(jnp.asarray(scores[0]), known.step_mask, jnp.asarray(first[0]), grid))
    scored = np.asarray(unseen.valid & unseen.step_mask)
    right = float(np.mean(unseen.label[scored] > 0.5))
    return {
        "seed": seed,
        "trained_on": len(parts[0]),
        "held_out": len(parts[1]),
        "held_out_steps": int(scored.sum()),
        "loss": float(np.mean(losses[-20:])),
        "threshold": threshold,
        "train": measure(scores[0], known, first[0], threshold),
        "model": measure(scores[1], unseen, first[1], threshold),
        "chance": {
            "accuracy": max(right, 1.0 - right),
            "auroc": 0.5,
            "f1": _chance(scores, (known, unseen), first, seed),
        },
        "position": {"auroc": _of_position(known, unseen)},
    }


def _by_rows(score, params, data: prm.StepBatch, size: int = 32) -> np.ndarray:
    rows = data.label.shape[0]
    padded = np.minimum(np.arange(-(-rows // size) * size), rows - 1).reshape(-1, size)
    return np.concatenate([np.asarray(score(params, prm.rows_of(data, index))) for index in padded])[:rows]


def _chance(scores, data, first, seed: int, repeats: int = 20) -> float:
    """Mean held-out F1 of the model's scores in random order, with a threshold tuned on training scores so shuffled."""
    rng = np.random.default_rng(seed)
    known, unseen = data

    def shuffled(score, mask):
        out = score.copy()
        out[mask] = rng.permutation(score[mask])
        return jnp.asarray(out)

    found = []
    for _ in range(repeats):
        a, b = (shuffled(s, np.asarray(d.step_mask)) for s, d in zip(scores, data, strict=True))
        grid = jnp.quantile(a[np.asarray(known.step_mask)], jnp.linspace(0.0, 0.5, 64))
        threshold = _tuned(a, known.step_mask, jnp.asarray(first[0]), grid)
        predicted = metrics.predict_first_error(b, unseen.step_mask, threshold)
        covered = jnp.asarray(_covered(unseen, first[1]))
        found.append(float(metrics.processbench_f1(predicted, jnp.asarray(first[1]), covered).f1))
    return float(np.mean(found))


def _of_position(known: prm.StepBatch, unseen: prm.StepBatch) -> float:
    """AUROC of a score that knows the step's index alone: the share of right steps there in training."""
    valid = np.asarray(known.valid & known.step_mask)
    share = (np.sum(known.label * valid, 0) + 1.0) / (valid.sum(0) + 1.0)
    score = np.broadcast_to(share, unseen.label.shape)
    return float(metrics.step_auroc(jnp.asarray(score), unseen.label, unseen.valid & unseen.step_mask))


def main(argv: list[str]) -> None:
    """Trains, measures, prints."""
    if len(argv) > 1:
        raise app.UsageError(f"found {' '.join(argv[1:])}, wanted flags alone")
    try:
        records = load(_DATA.value, _FORMAT.value)
    except (OSError, ValueError) as error:
        sys.exit(f"--data: {error}")
    results = []
    for seed in range(_SEEDS.value):
        results.append(run(records, seed))
        print(json.dumps(results[-1]), flush=True)
    table = {
        name: {metric: _spread([result[name][metric] for result in results]) for metric in results[0][name]}
        for name in ("train", "model", "chance", "position")
    }
    print(json.dumps({"seeds": len(results), "mean_and_std": table}))


def _spread(values: list[float]) -> list[float]:
    return [round(float(np.mean(values)), 4), round(float(np.std(values, ddof=min(1, len(values) - 1))), 4)]


if __name__ == "__main__":
    app.run(main)
