"""Trains a process-reward model on step-label files and says how it does on problems that it has not seen.

    python -m experiments.train_prm --data=FILE[,FILE...] [--model=text|transformer] [--folds=5] [--seeds=3]

Files are those of `creditjax.process.readers`. In every run each family of problems (one problem, and what the reader
made of the same line) is held out once. The others train `--members` models, whose probabilities are averaged; each
leaves out another fifth of the training problems, on which it is stopped at its best step AUROC and the threshold of
F1 is tuned. What is held out decides nothing.

Prints one JSON object a run and one of means. Measured over all held-out steps up to the first wrong one:

    auroc              with a 95% interval, from families drawn again with replacement
    auroc_same_index   of pairs of steps with equal index alone: what the index does not explain
    pairs              share of wrong steps that score below the right step in their place, behind the same steps
    f1, accuracy       of first errors (ProcessBench), and of single steps
    index, chance      the AUROC of a step's index alone; F1 of the scores in random order, the most frequent label

With `--design=WORD` also on the families whose SHA-256 with that word is odd, as `confirmation`: for features that
were chosen while looking at the even ones.
"""

from collections.abc import Callable, Sequence
import functools
import hashlib
import json
import sys
from typing import Any, NamedTuple

from absl import app, flags
import jax
from jax import numpy as jnp
import numpy as np
import optax

from creditjax.models.transformer import TransformerConfig
from creditjax.process import metrics, prm
from creditjax.process.readers import read_records
from creditjax.process.records import Record, families, rivals
from creditjax.tasks.tokenizer import CharTokenizer

_DATA = flags.DEFINE_list("data", [], "Step-label files.")
_FORMAT = flags.DEFINE_string("format", "auto", "A format of creditjax.process.readers.")
_MODEL = flags.DEFINE_enum("model", "text", ["text", "transformer"], "Features of the text, or its characters.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs.", lower_bound=1)
_FOLDS = flags.DEFINE_integer("folds", 5, "Parts of the problems, each held out once.", lower_bound=2)
_MEMBERS = flags.DEFINE_integer("members", 5, "Models whose probabilities are averaged.", 1, 5)
_STEPS = flags.DEFINE_integer("steps", 400, "Updates of a model at most.", lower_bound=1)
_EVERY = flags.DEFINE_integer("every", 25, "Updates from one look at the validation problems to the next.", 1)
_BATCH = flags.DEFINE_integer("batch", 32, "Solutions an update.", lower_bound=1)
_MAX_STEPS = flags.DEFINE_integer("max_steps", 32, "Steps of a solution.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 16, "Of the model.", lower_bound=4)
_RATE = flags.DEFINE_float("learning_rate", 3e-3, "Of Adam.", lower_bound=0.0)
_DECAY = flags.DEFINE_float("weight_decay", 0.1, "Of Adam, decoupled.", lower_bound=0.0)
_PAIRS = flags.DEFINE_float("pair_weight", 3.0, "Of a pair against a step; --model=text.", lower_bound=0.0)
_LENGTH = flags.DEFINE_integer("length", 512, "Characters, the problem included; --model=transformer.", lower_bound=8)
_DEPTH = flags.DEFINE_integer("depth", 2, "Layers; --model=transformer.", lower_bound=1)
_DIRECTION = flags.DEFINE_enum(
    "direction", "forward", ["forward", "both", "gated"], "How steps are read; --model=transformer."
)
_DESIGN = flags.DEFINE_string("design", None, "The word that tells which families the features were chosen on.")
_SCORES = flags.DEFINE_string("scores", None, "File for the held-out scores: one JSON object a solution and run.")

PARTS = 5
"""Parts of the training problems; each member leaves another one out."""


class Learner(NamedTuple):
    """A kind of model with the data as it reads it."""

    data: Any
    init: Callable[[jax.Array], Any]
    train: Callable[..., Any]
    score: Callable[[Any, Any], jax.Array]


class Data(NamedTuple):
    """Records, what they have in common, and their labels as arrays: ``[B]`` or ``[B, K]``."""

    records: Sequence[Record]
    family: np.ndarray
    rival: np.ndarray
    first: np.ndarray
    label: np.ndarray
    valid: np.ndarray
    mask: np.ndarray

    def rows(self, index: np.ndarray) -> "Data":
        """Some of the rows; rivals are those of all rows."""
        return Data([self.records[row] for row in index], *(x[index] for x in self[1:]))


def load(paths: list[str], format: str) -> tuple[list[Record], list[str]]:
    """All records that have a step label, each once, and their families; faults of the files are told on stderr."""
    faults: list = []
    found = []
    for number, path in enumerate(paths):
        for record in read_records(path, format, faults):
            if any(label is not None for label in record.step_labels):
                found.append((number, record))
    for fault in faults:
        print(f"left out: {fault}", file=sys.stderr)
    # Ids count lines where a file has none: they are of one family within a file alone.
    named = [Record(f"{number}:{r.id}", r.problem, r.steps, step_labels=r.step_labels) for number, r in found]
    once = {}
    for (_, record), family in zip(found, families(named), strict=True):
        once.setdefault((record.problem, record.steps, record.step_labels), (record, family))
    return [record for record, _ in once.values()], [family for _, family in once.values()]


def parts_of(family: np.ndarray, parts: int, seed: int) -> np.ndarray:
    """A part for each row, i64 ``[B]``: equal for rows of a family, families in parts of equal number."""
    names, inverse = np.unique(family, return_inverse=True)
    return np.random.default_rng(seed).permutation(len(names))[inverse] % parts


def learner(records: Sequence[Record], rival: Sequence[int]) -> Learner:
    """The model that the flags name."""
    if _MODEL.value == "text":
        text = prm.TextRewardModel(_WIDTH.value, pair_weight=_PAIRS.value)
        data = prm.encode_text(records, _MAX_STEPS.value, rivals=rival)
        train = functools.partial(prm.train, text, objective=prm.text_loss)
        return Learner(data, text.init, train, jax.jit(text.score))
    tokenizer = CharTokenizer()
    config = TransformerConfig(tokenizer.vocab_size, _WIDTH.value, _DEPTH.value)
    model = prm.StepRewardModel(config, _DIRECTION.value)
    both = _DIRECTION.value != "forward"
    stream = prm.encode(records, tokenizer, _LENGTH.value, _MAX_STEPS.value, both=both)
    return Learner(stream, model.init, functools.partial(prm.train, model), jax.jit(model.score))


def fit(kind: Learner, data: Data, rows: np.ndarray, validation: np.ndarray, unseen: np.ndarray, seed: int):
    """Trains on `rows` and scores `validation` and `unseen` with the parameters that were best on the former."""
    best: dict[str, Any] = {"auroc": -1.0}
    known = prm.rows_of(kind.data, validation)
    judge = _jitted(metrics.step_auroc)
    label, valid = data.label[validation], data.valid[validation]

    def watch(updates: int, params: Any) -> None:
        if updates % _EVERY.value and updates != _STEPS.value:
            return
        score = by_rows(kind.score, params, known)
        auroc = float(judge(score, label, valid))
        if auroc > best["auroc"]:
            best.update(auroc=auroc, updates=updates, params=params, score=score)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(_RATE.value, weight_decay=_DECAY.value))
    batches = prm.minibatches(prm.rows_of(kind.data, rows), min(_BATCH.value, len(rows)), seed)
    kind.train(jax.jit(kind.init)(jax.random.key(seed)), batches, (prm.Stage(optimizer, _STEPS.value),), watch=watch)
    return best["score"], by_rows(kind.score, best["params"], prm.rows_of(kind.data, unseen)), best["updates"]


def by_rows(score: Callable, params: Any, data: Any, size: int = 32) -> np.ndarray:
    """Scores in blocks of one shape, f32 ``[B, K]``."""
    rows = data.label.shape[0]
    padded = np.minimum(np.arange(-(-rows // size) * size), rows - 1).reshape(-1, size)
    return np.concatenate([np.asarray(score(params, prm.rows_of(data, index))) for index in padded])[:rows]


# -------------------------------------------------------------------------------------------------------- measuring


class Held(NamedTuple):
    """What is said of solutions by models that have not seen their problems."""

    score: np.ndarray
    index_score: np.ndarray
    predicted: np.ndarray
    shuffled: np.ndarray


# One program for all folds and members.
_jitted = functools.cache(jax.jit)


def predict(score: np.ndarray, mask: np.ndarray, known: np.ndarray, known_mask: np.ndarray, first: np.ndarray):
    """First errors, i64 ``[B]``, with the threshold that is best for the scores `known` of other solutions."""
    grid = jnp.quantile(jnp.asarray(known[known_mask]), jnp.linspace(0.0, 0.5, 64))
    threshold = _jitted(metrics.tune_threshold)(jnp.asarray(known), jnp.asarray(known_mask), jnp.asarray(first), grid)
    return np.asarray(_jitted(metrics.predict_first_error)(jnp.asarray(score), jnp.asarray(mask), threshold))


def permuted(score: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The scores under the mask in random order."""
    out = score.copy()
    out[mask] = rng.permutation(score[mask])
    return out


def index_score(label: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """A score that knows the step's index alone: the share of right steps there, f64 ``[K]``."""
    return (np.sum(label * valid, 0) + 1.0) / (valid.sum(0) + 1.0)


def wins(score: np.ndarray, data: Data, same_index: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """How often a right step outscores a wrong one, ties half, and how many pairs: ``[F, F]`` by their families."""
    names, family = np.unique(data.family, return_inverse=True)
    rows, index = np.nonzero(data.valid)
    right = data.label[rows, index] > 0.5
    value = score[rows, index]
    won, count = np.zeros((2, len(names), len(names)))
    for row, k, v in zip(rows[~right], index[~right], value[~right], strict=True):
        against = right & (index == k) if same_index else right
        beaten = (value[against] > v) + 0.5 * (value[against] == v)
        np.add.at(won[:, family[row]], family[rows[against]], beaten)
        np.add.at(count[:, family[row]], family[rows[against]], 1.0)
    return won, count


def of_pairs(score: np.ndarray, data: Data, everywhere: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`wins`, of each wrong step and the rival in its place alone; `everywhere` has the scores of all rows."""
    names, family = np.unique(data.family, return_inverse=True)
    won, count = np.zeros((2, len(names), len(names)))
    for row in np.nonzero((data.rival >= 0) & (data.first >= 0) & (data.first < score.shape[1]))[0]:
        right, wrong = everywhere[data.rival[row], data.first[row]], score[row, data.first[row]]
        won[family[row], family[row]] += (right > wrong) + 0.5 * (right == wrong)
        count[family[row], family[row]] += 1
    return won, count


def interval(won: np.ndarray, count: np.ndarray, seed: int, draws: int = 2000) -> list[float]:
    """``sum won / sum count`` and its 95% interval, from families drawn with replacement."""
    rng = np.random.default_rng(seed)
    weight = rng.multinomial(len(won), np.full(len(won), 1.0 / len(won)), draws).astype(float)
    total = np.einsum("df,fg,dg->d", weight, count, weight, optimize=True)
    share = np.einsum("df,fg,dg->d", weight, won, weight, optimize=True) / np.where(total, total, np.nan)
    return [float(won.sum() / max(count.sum(), 1.0)), *(float(x) for x in np.nanquantile(share, (0.025, 0.975)))]


def covered(data: Data) -> np.ndarray:
    """Rows whose first error lies among the scored steps, or that have none; -2 stands for an unknown label."""
    width = data.mask.shape[1]
    there = np.take_along_axis(data.mask, np.clip(data.first, 0, width - 1)[:, None], 1)[:, 0] & (data.first < width)
    return np.where(data.first >= 0, there, (data.first == -1) & data.mask.any(1))


def measure(held: Held, data: Data, rows: np.ndarray, seed: int) -> dict[str, Any]:
    """All that is measured on some rows."""
    part = data.rows(rows)
    score, index = held.score[rows], held.index_score[rows]
    arrays = [jnp.asarray(x) for x in (score, part.label, part.valid)]
    right = float(np.mean(part.label[part.valid] > 0.5))
    f1 = lambda predicted: float(metrics.processbench_f1(predicted[rows], part.first, covered(part)).f1)  # noqa: E731
    same = interval(*wins(score, part, same_index=True), seed)
    return {
        "solutions": len(rows),
        "steps": int(part.valid.sum()),
        "wrong_steps": int((part.label[part.valid] <= 0.5).sum()),
        "auroc": interval(*wins(score, part), seed),
        "auroc_same_index": same,
        "pairs": interval(*of_pairs(score, part, held.score), seed),
        "f1": f1(held.predicted),
        "accuracy": float(metrics.step_accuracy(*arrays)),
        "index": {"auroc": float(metrics.step_auroc(jnp.asarray(index, jnp.float32), *arrays[1:]))},
        "chance": {
            "f1": float(np.mean([f1(predicted) for predicted in held.shuffled])),
            "accuracy": max(right, 1.0 - right),
        },
    }


# ------------------------------------------------------------------------------------------------------------- runs


def run(kind: Learner, data: Data, seed: int) -> tuple[Held, list[int]]:
    """Every fold held out once; also after how many updates the models were stopped."""
    fold = parts_of(data.family, _FOLDS.value, seed)
    held = Held(np.zeros(data.label.shape, np.float32), np.zeros(data.label.shape), *_predictions(len(fold)))
    rng = np.random.default_rng(seed)
    stopped = []
    for number in range(_FOLDS.value):
        unseen, known = np.nonzero(fold == number)[0], np.nonzero(fold != number)[0]
        part = parts_of(data.family[known], PARTS, seed + 1)
        scores, known_score, judged = [], np.zeros((len(known), data.label.shape[1]), np.float32), part < _MEMBERS.value
        for member in range(_MEMBERS.value):
            validation = part == member
            fitted = fit(kind, data, known[~validation], known[validation], unseen, seed * PARTS + member)
            known_score[validation], score, updates = fitted
            scores.append(score)
            stopped.append(updates)
        held.score[unseen] = np.mean(scores, axis=0)
        held.index_score[unseen] = index_score(data.label[known], data.valid[known])
        judge = (known_score[judged], data.mask[known[judged]])
        first = data.first[known[judged]]
        held.predicted[unseen] = predict(held.score[unseen], data.mask[unseen], *judge, first)
        for draw in range(len(held.shuffled)):
            score = permuted(held.score[unseen], data.mask[unseen], rng)
            noise = permuted(*judge, rng)
            held.shuffled[draw, unseen] = predict(score, data.mask[unseen], noise, judge[1], first)
    return held, stopped


def _predictions(rows: int, repeats: int = 20) -> tuple[np.ndarray, np.ndarray]:
    return np.full(rows, -1), np.full((repeats, rows), -1)


def prepare() -> tuple[Learner, Data]:
    """Files, model and arrays, or the exit with the flag that does not fit."""
    if not _DATA.value:
        sys.exit("--data: no file, wanted step-label files")
    try:
        records, family = load(_DATA.value, _FORMAT.value)
    except (OSError, ValueError) as error:
        sys.exit(f"--data: {error}")
    count = len(set(family))
    if count < _FOLDS.value * 2 or count - -(-count // _FOLDS.value) < PARTS:
        wanted = max(2 * _FOLDS.value, 2 * PARTS)
        sys.exit(f"--data: {count} problems with step labels, wanted at least {wanted} for --folds={_FOLDS.value}")
    rival = rivals(records, family)
    kind = learner(records, rival)
    # Rows are chosen on the host, where that compiles nothing.
    kind = kind._replace(data=jax.tree.map(np.asarray, kind.data))
    first = np.array([-2 if record.label is None else record.label for record in records])
    mask = np.asarray(kind.data.step_mask)
    arrays = (np.asarray(kind.data.label), np.asarray(kind.data.valid) & mask, mask)
    return kind, Data(records, np.array(family), np.array(rival), first, *arrays)


def main(argv: list[str]) -> None:
    """Trains, measures, prints."""
    if len(argv) > 1:
        raise app.UsageError(f"found {' '.join(argv[1:])}, wanted flags alone")
    kind, data = prepare()
    everything = np.arange(len(data.records))
    results, scores = [], []
    for seed in range(_SEEDS.value):
        held, stopped = run(kind, data, seed)
        result = {"seed": seed, "updates": float(np.mean(stopped)), "held_out": measure(held, data, everything, seed)}
        if _DESIGN.value is not None:
            rows = everything[[odd(_DESIGN.value, family) for family in data.family]]
            result["confirmation"] = measure(held, data, rows, seed)
        results.append(result)
        scores.append(held.score)
        print(json.dumps(_rounded(result)), flush=True)
    if _SCORES.value:
        write(_SCORES.value, data, scores)
    parts = [part for part in ("held_out", "confirmation") if part in results[0]]
    table = {part: _spread([result[part] for result in results]) for part in parts}
    print(json.dumps({"seeds": len(results), "mean_and_std": table}))


def odd(word: str, family: str) -> bool:
    """Whether a family lies in the half that nothing was chosen on."""
    return bool(hashlib.sha256(f"{word} {family}".encode()).digest()[-1] % 2)


def write(path: str, data: Data, scores: list[np.ndarray]) -> None:
    """One JSON object a solution and run: its id, the seed, and the score and label of every step that was scored."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            for seed, score in enumerate(scores):
                for row, record in enumerate(data.records):
                    at = data.mask[row]
                    shown = {"id": record.id, "seed": seed, "score": score[row, at].tolist()}
                    file.write(json.dumps(shown | {"label": list(record.step_labels[: at.size])}) + "\n")
    except OSError as error:
        sys.exit(f"--scores: {error}")


def _rounded(tree: Any) -> Any:
    return jax.tree.map(lambda x: round(x, 4) if isinstance(x, float) else x, tree)


def _spread(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over runs of every number; of intervals that of the estimate."""
    out: dict[str, Any] = {}
    for name, value in results[0].items():
        values = [result[name] for result in results]
        if isinstance(value, dict):
            out[name] = _spread(values)
        else:
            numbers = [v[0] if isinstance(v, list) else v for v in values]
            deviation = float(np.std(numbers, ddof=min(1, len(numbers) - 1)))
            out[name] = [round(float(np.mean(numbers)), 4), round(deviation, 4)]
    return out


if __name__ == "__main__":
    app.run(main)
