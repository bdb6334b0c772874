"""Writes docs/peers.md: what holds of the advantage estimators that verl, TRL, Tunix and rlax ship.

    make peers-page

needs the environment of requirements/peers.txt. Every assertion is asked twice: on tidy batches, and on batches with
whatever a valid batch of this library may hold. Then each estimator is given inputs that users of one library or
another had trouble with, and its numbers are put beside those of the recipe that computes the same.
"""

from collections.abc import Callable, Iterable
import logging
import os
import pathlib
from typing import Any, NamedTuple
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import creditjax
from creditjax import testing
from creditjax.testing.table import PROPERTIES
from docs.markers import splice
from docs.peer_estimators import Peer, peers, rewards_of_tunix_ppo

PAGE = pathlib.Path(__file__).parent / "peers.md"
STRUCTURE = (
    "zero_outside_mask",
    "finite",
    "padding_invariant",
    "expansion_invariant",
    "permutation_equivariant",
    "prompt_independent",
    "dtype_stable",
)
LAWS = (
    "shift_invariant",
    "scale_equivariant",
    "scale_invariant",
    "sign_preserved",
    "unbiased",
    "unbiased_up_to_scale",
)
SHAPE = (4, 4, 6)

# By estimator and property the verdict and what was found.
Verdicts = dict[str, dict[str, tuple[str, str]]]


class Case(NamedTuple):
    """An input that tells estimators apart.

    Attributes:
      title: what it is about.
      text: the input, for readers.
      batch: of one or two positions' worth of numbers.
      ragged: whether rows that act nowhere stand for nothing, so that only estimators with ids can be asked.
      of: which peers it is put to.
    """

    title: str
    text: str
    batch: creditjax.Trajectory
    ragged: bool = False
    of: Callable[[Peer], bool] = lambda peer: peer.groups != "none" and "value" not in peer.needs


def main() -> None:
    """Asks, and writes the page."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    found = peers()
    versions = dict.fromkeys(f"{peer.library} {peer.version}" for peer in found)
    splice(PAGE, "versions", f"Written by `make peers-page` with {', '.join(versions)}.")
    splice(PAGE, "cases", "\n\n".join([*(of_case(case, found) for case in cases()), gradients(), whole_rewards()]))
    verdicts: Verdicts = {}
    for peer in found:
        row = verdicts[f"{peer.library} `{peer.name}`"] = {name: ask(name, peer) for name in (*STRUCTURE, *LAWS)}
        print(peer.library, peer.name, {name: verdict for name, (verdict, _) in row.items()}, flush=True)
    splice(PAGE, "structure", table(verdicts, STRUCTURE))
    splice(PAGE, "laws", table(verdicts, LAWS))
    splice(PAGE, "counterexamples", "\n\n".join(counterexamples(verdicts)))


def ask(name: str, peer: Peer) -> tuple[str, str]:
    """The verdict: "yes", "tidy" (on tidy batches only), "no" or "–" (it cannot be asked), and what was found."""
    if name == "padding_invariant" and peer.groups == "in order":
        return "–", ""  # padding with rollouts is another group size
    if name == "expansion_invariant" and not peer.masks:
        return "–", ""
    assertion = PROPERTIES[name]
    if name.startswith("unbiased"):
        try:
            assertion(peer.estimator)
        except AssertionError as error:
            return "no", str(error)
        except KeyError:
            return "–", ""
        return "yes", ""
    on_tidy = verdict(assertion, peer, tidy=True)
    if on_tidy:
        return "no", on_tidy
    on_any = verdict(assertion, peer, tidy=False)
    return ("tidy", on_any) if on_any else ("yes", "")


def verdict(assertion: Callable[..., None], peer: Peer, *, tidy: bool) -> str:
    """What the assertion says, "" if it holds."""

    def batch(seed: int) -> creditjax.Trajectory:
        made = testing.random_batch(seed, SHAPE, needs=peer.needs, degenerate=not tidy, hostile=not tidy)
        # What a score that is missing does is shown once, by `finite` and among the inputs.
        made = made.replace(outcome=np.nan_to_num(made.outcome))
        return made if peer.masks else without_gaps(made)

    try:
        assertion(peer.estimator, batches=batch, seeds=range(4), shrink=peer.arrays != "jax")
    except (AssertionError, ValueError) as error:
        return str(error)
    return ""


def without_gaps(batch: creditjax.Trajectory) -> creditjax.Trajectory:
    """The batch with what each rollout did moved to its beginning."""
    mask = np.asarray(batch.action_mask)
    order = np.argsort(~mask, axis=-1, kind="stable")

    def one(name: str, x: np.ndarray) -> np.ndarray:
        return np.take_along_axis(x, order, axis=-1) if testing.batches.axes_of(batch, name)[-1:] == ("T",) else x

    return testing.batches.map_arrays(batch, one)


def table(verdicts: Verdicts, names: Iterable[str]) -> str:
    """Estimators by properties."""
    names = tuple(names)
    titles = " | ".join(name.replace("_", " ") for name in names)
    lines = [f"| estimator | {titles} |", "| --- " * (len(names) + 1) + "|"]
    lines += [f"| {peer} | {' | '.join(row[name][0] for name in names)} |" for peer, row in verdicts.items()]
    return "\n".join(lines)


def counterexamples(verdicts: Verdicts) -> Iterable[str]:
    """What each assertion said, folded: of what fails on tidy batches with the batch, else in one line."""
    for peer, row in verdicts.items():
        said = [shortened(text, 16 if verdict == "no" else 1) for verdict, text in row.values() if text]
        if said:
            text = "\n\n".join(said)
            title = f"<details><summary>{peer.replace('`', '')}: {len(said)}</summary>"
            yield f"{title}\n\n```text\n{text}\n```\n\n</details>"


def shortened(text: str, lines: int) -> str:
    """The first lines of a text."""
    every = [line.rstrip() for line in text.splitlines()]
    return "\n".join([*every[:lines], *(["    …"] if lines < len(every) and lines > 1 else [])])


def batch_of(outcome: Any, mask: Any = None, **more: Any) -> creditjax.Trajectory:
    """A batch of one position a rollout unless a mask is given."""
    outcome = np.asarray(outcome, np.float32)
    mask = np.ones((*outcome.shape, 1), bool) if mask is None else np.asarray(mask, bool)
    return creditjax.Trajectory(np.zeros(mask.shape, np.int32), mask, outcome, **more)


def cases() -> list[Case]:
    """Inputs that users of one library or another had trouble with."""
    nan = np.nan
    alone = [[[1], [0]], [[1], [1]]]
    ragged = [[[1], [1], [1]], [[1], [1], [0]], [[1], [0], [0]]]
    hidden = [[[1, 1, 0], [1, 0, 0]]]
    outcomes = [[1.0, 3.0]]
    given = {"reward": [[[0, 1, nan], [3, nan, nan]]], "signals": {"value": [[[0.2, 0.4, nan], [0.5, nan, nan]]]}}
    zeros = {"reward": [[[0, 1, 0], [3, 0, 0]]], "signals": {"value": [[[0.2, 0.4, 9], [0.5, 9, 9]]]}}
    with_value = lambda peer: "value" in peer.needs and "logprob" not in peer.needs  # noqa: E731
    return [
        Case(
            "A rollout that is alone in its group",
            "rewards 5 | 1, 3",
            batch_of([[5, 0], [1, 3]], alone),
            ragged=True,
        ),
        Case(
            "Groups of different sizes",
            "rewards 1, 0, 2 | 5, 5 | 7",
            batch_of([[1, 0, 2], [5, 5, 0], [7, 0, 0]], ragged),
            ragged=True,
        ),
        Case(
            "A sibling without one token of the policy",
            "rewards 100, 1, 3; the mask of the first is empty, as after a failure of the infrastructure",
            batch_of([[100, 1, 3]], [[[0], [1], [1]]]),
        ),
        Case("A rollout that could not be scored", "rewards 1, 0, NaN, 1", batch_of([[1, 0, nan, 1]])),
        Case("Equal rewards whose mean is not exact", "rewards .1, .1, .1", batch_of([[0.1] * 3])),
        Case("Nearly equal rewards", "rewards 2, 2.0001", batch_of([[2.0, 2.0001]])),
        Case(
            "Numbers behind the mask",
            "masks 110 and 100, rewards 0, 1 and 3, values .2, .4 and .5, and behind the mask 9 for every value",
            batch_of(outcomes, hidden, **zeros),
            of=with_value,
        ),
        Case(
            "NaN behind the mask",
            "the same, and behind the mask NaN for every value and reward",
            batch_of(outcomes, hidden, **given),
            of=with_value,
        ),
        Case(
            "NaN behind the mask of rewards",
            "masks 110 and 100, rewards 0, 1 and 3, and NaN behind the mask",
            batch_of(outcomes, hidden, reward=given["reward"]),
            of=lambda peer: peer.library == "verl" and not peer.needs,
        ),
    ]


def of_case(case: Case, found: list[Peer]) -> str:
    """Who agrees with the recipe that computes the same, and the numbers of who does not."""
    agree, differ = [], []
    for peer in filter(case.of, found):
        if case.ragged and peer.groups != "ids" or set(peer.needs) - {"value"}:
            continue
        estimator = testing.foreign(
            peer.function, needs=peer.needs, arrays=peer.arrays, name=peer.name, skip_idle=case.ragged
        )
        name, hyperparameters = peer.recipe
        # Ours as it is by default: what it does with a rollout that is alone is part of the question.
        hyperparameters = {key: x for key, x in hyperparameters.items() if key != "single"}
        mask = np.asarray(case.batch.action_mask)
        reads = (
            case.batch.with_signals(reward_components=case.batch.outcome[..., None]) if name == "gdpo" else case.batch
        )
        wanted = creditjax.estimate(creditjax.recipe(name, **hyperparameters).estimator, reads).value[mask]
        try:
            made = estimator(case.batch)[mask]
        except (ValueError, AssertionError, RuntimeError) as error:
            differ.append((peer, f"{type(error).__name__}: {str(error).splitlines()[0]}", show(wanted)))
            continue
        if np.allclose(made, wanted, atol=2e-4):
            agree.append(f"{peer.library} `{peer.name}`")
        else:
            differ.append((peer, show(made), show(wanted)))
    lines = [f"### {case.title}", "", f"Input: {case.text}."]
    if agree:
        lines += ["", f"As the recipe: {', '.join(agree)}."]
    if differ:
        lines += ["", "| estimator | found | the recipe |", "| --- | --- | --- |"]
        lines += [f"| {peer.library} `{peer.name}` | {theirs} | {ours} |" for peer, theirs, ours in differ]
    return "\n".join(lines)


def show(x: Any) -> str:
    """Numbers in a cell."""
    return ", ".join(f"{float(value):.4g}" for value in np.ravel(x))


def gradients() -> str:
    """Whether a gradient flows through advantages to the values, by library that has a generalised advantage."""
    rewards, values, mask = (np.array(x, np.float32) for x in ([[0, 1, 2]], [[0.5, 0.25, 1]], [[1, 1, 1]]))
    lines = [
        "### Gradients through advantages",
        "",
        "Input: rewards 0, 1, 2, values .5, .25, 1; the derivative of the first advantage by the values.",
    ]
    lines += ["", "| estimator | found |", "| --- | --- |"]
    for peer in peers():
        if "value" not in peer.needs or "logprob" in peer.needs:
            continue
        rows = {"reward": rewards, "action_mask": mask > 0, "value": values}

        def first(value: Any, rows: dict = rows, peer: Peer = peer, of: Any = lambda x: x) -> Any:
            made = peer.function(testing.Rows({**{k: of(x) for k, x in rows.items()}, "value": value}, np.zeros(1), 1))
            return (made[0] if isinstance(made, tuple) else made)[0, 0]

        if peer.arrays == "torch":
            import torch

            made = first(torch.tensor(values, requires_grad=True), of=torch.from_numpy)
            found = "none: it is detached" if not made.requires_grad else "it flows"
        else:
            found = show(jax.grad(lambda value: first(value, of=jax.numpy.asarray))(jax.numpy.asarray(values)))
        lines.append(f"| {peer.library} `{peer.name}` | {found} |")
    return "\n".join(lines)


def whole_rewards() -> str:
    """What Tunix's PPO learner hands to its advantage estimator."""
    given = rewards_of_tunix_ppo(0.7)
    return "\n".join(
        [
            "### Rewards that are no whole numbers, in Tunix's `PPOLearner`",
            "",
            "Input: a training step of `PPOLearner` whose reward function returns 0.7 for both completions, `beta=0`.",
            f"Its advantage estimator is given rewards of type {given.dtype}, which sum to {show(given.sum(axis=-1))}.",
        ]
    )


if __name__ == "__main__":
    main()
