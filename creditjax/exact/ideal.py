"""What ideal judges, provers, teachers, probes and networks would say of an episode, from its exact values.

Each function makes one signal of `creditjax.trajectory.SIGNALS` from an `Oracle`, and errs as far as its `noise` makes
it: a judge whose beliefs are off misjudges steps. Five conventions:

* A *chance* is a value brought to [0, 1] by the least and the greatest return that can be had, so that it is the
  probability of success where outcomes are 0 or 1.
* A step is *right* if it does not lower the expected return, and what it *commits to* is right from a chance of 1/2 on.
* Another *instruction* (asked for a good answer, with the criteria, by a better teacher) tilts the policy by
  ``exp(± Q)``: the log-ratio of such a pair is the advantage, but for what the normalisation adds.
* What a network *attends to* at a token, and what an explainer gives it, is the size of its exact credit. What it
  *represents* is a random vector for each thing that it can see.
* What the game knows nothing of is neutral: no prompt, no edits, no replay, all of it thinking and in form, half of the
  run behind.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from creditjax.exact.paths import Paths
from creditjax.exact.values import spread

if TYPE_CHECKING:
    from creditjax.exact.signals import Oracle

Array = np.ndarray
Maker = Callable[["Oracle", Paths], Array]

_FEATURES = 8
_EXPLAINERS = 3
# Steps that change nothing are not wrong for the last digit of a float.
_SLACK = 1e-9


def _bounds(oracle: "Oracle") -> tuple[float, float]:
    """The least and the greatest return of any episode."""
    low = high = np.zeros(1)
    for layer in reversed(oracle.process.layers):
        leads, legal, paid = np.asarray(layer.next), np.asarray(layer.legal), np.asarray(layer.reward)
        if len(low) == 1:
            leads = np.zeros_like(leads)
        low = np.where(legal, paid + low[leads], np.inf).min(axis=-1)
        high = np.where(legal, paid + high[leads], -np.inf).max(axis=-1)
    return float(low[0]), float(high[0])


def _scaled(oracle: "Oracle", value: Array) -> Array:
    low, high = _bounds(oracle)
    return np.clip((value - low) / max(high - low, 1e-12), 0.0, 1.0)


def _chance(oracle: "Oracle", paths: Paths) -> Array:
    """At each boundary, ``[L, K + 1]``."""
    return _scaled(oracle, oracle.boundary_value(paths))


def _success(oracle: "Oracle", paths: Paths) -> Array:
    """Whether the outcome is a success, bool ``[L]``."""
    return _scaled(oracle, paths.outcome) >= 0.5


def _step_label(oracle: "Oracle", paths: Paths) -> Array:
    return (oracle.process_reward(paths) >= -_SLACK).astype(np.float64)


def _thought_label(oracle: "Oracle", paths: Paths) -> Array:
    """In a failure, every step from the first one on that lowers the chance."""
    right = _step_label(oracle, paths)
    return np.where(_success(oracle, paths)[:, None], right, 1 - np.cumprod(right, axis=1))


def _subproblems(oracle: "Oracle", paths: Paths) -> Array:
    """Each step is a subproblem, and the last one is the problem, ``[L, K]``."""
    made = _step_label(oracle, paths)
    made[:, -1] = _success(oracle, paths)
    return made


def _committed(oracle: "Oracle", paths: Paths) -> Array:
    return _chance(oracle, paths)[:, 1:] >= 0.5


def _confidence(oracle: "Oracle", paths: Paths) -> Array:
    p = _chance(oracle, paths)[:, 1:]
    surprise = [np.where(x > 0, -x * np.log(np.where(x > 0, x, 1.0)), 0.0) for x in (p, 1 - p)]
    return np.exp(-sum(surprise))


def _belief(oracle: "Oracle", paths: Paths) -> Array:
    p = _chance(oracle, paths)
    return np.stack([1 - p, p], axis=-1)


def _taken(paths: Paths) -> Array:
    """Which segments an episode has, ``[L, K]``."""
    return np.stack([(paths.segment == k).any(1) for k in range(int(paths.segment.max()) + 1)], axis=-1)


def _by_segment(paths: Paths, x: Array) -> Array:
    """Sums over the actions of each segment, ``[L, K]``."""
    count = int(paths.segment.max()) + 1
    return np.stack([np.where((paths.segment == k) & paths.acts, x, 0.0).sum(1) for k in range(count)], axis=-1)


def _instructed(direction: float) -> Maker:
    """Log-probability of each action under the policy tilted by ``exp(direction * Q)``, ``[L, T]``."""

    def make(oracle: "Oracle", paths: Paths) -> Array:
        tables = []
        for layer, q in zip(oracle.process.layers, oracle.believed_q, strict=True):
            plain = np.log(np.maximum(oracle.solution.policy[np.asarray(layer.observation)], 1e-30))
            tilted = np.where(layer.legal, plain + direction * q, -np.inf)
            top = tilted.max(axis=-1, keepdims=True)
            total = top + np.log(np.exp(tilted - top).sum(axis=-1, keepdims=True))
            tables.append(np.where(layer.legal, tilted - total, 0.0))
        return np.where(paths.acts, paths.gather(tables), 0.0)

    return make


def _by_a_teacher(direction: float) -> Maker:
    return lambda oracle, paths: _by_segment(paths, _instructed(direction)(oracle, paths))


def _unprompted(oracle: "Oracle", paths: Paths) -> Array:
    """Who has seen nothing takes any legal action, ``[L, T]``."""
    choices = oracle.process.choices[paths.observation].sum(axis=-1)
    return np.where(paths.acts, -np.log(np.maximum(choices, 1)), 0.0)


def _grounding(oracle: "Oracle", paths: Paths) -> Array:
    ratio = _by_segment(paths, oracle.logprob(paths) - _unprompted(oracle, paths))
    return ratio / np.maximum(_by_segment(paths, np.ones(paths.tokens.shape)), 1.0)


def _contribution(oracle: "Oracle", paths: Paths) -> Array:
    """The credit of each action, ``[L, T]``."""
    return np.where(paths.acts, oracle.step_credit(paths), 0.0)


def _salience(oracle: "Oracle", paths: Paths) -> Array:
    return np.abs(_contribution(oracle, paths))


def _flow(oracle: "Oracle", paths: Paths) -> Array:
    salience = _salience(oracle, paths)
    return salience / np.maximum(salience.max(axis=-1, keepdims=True), 1e-12)


def _attributions(oracle: "Oracle", paths: Paths) -> Array:
    salience = _salience(oracle, paths)
    # Where nothing mattered all actions mattered alike.
    salience = np.where(salience.max(axis=-1, keepdims=True) > _SLACK, salience, paths.acts)
    share = salience / np.maximum(salience.sum(axis=-1, keepdims=True), 1e-12)
    return np.repeat(share[..., None], _EXPLAINERS, axis=-1)


def _decisive(oracle: "Oracle", paths: Paths) -> Array:
    """The action changes what is to be expected, bool ``[L, T]``."""
    return paths.acts & (paths.gather(spread(oracle.process, oracle.believed_q)) > _SLACK)


def _features(oracle: "Oracle", paths: Paths) -> Array:
    table = np.random.default_rng(0).standard_normal((len(oracle.process.observations), _FEATURES))
    return np.where(paths.acts[..., None], table[paths.observation], 0.0)


def _cuts(paths: Paths) -> Array:
    """Thinking is cut after half of the longest episode's actions, and after all of them."""
    longest = int(paths.acts.sum(axis=1).max())
    return np.array([(longest + 1) // 2, longest], np.int32)


def _summary_reward(oracle: "Oracle", paths: Paths) -> Array:
    """What is to be expected of going on from each cut, ``[L, B, 1]``."""
    before, _ = oracle.expected_return(paths)
    number = np.cumsum(paths.acts, axis=1) - paths.acts
    made = []
    for cut in _cuts(paths):
        there = paths.acts & (number == cut)
        here = np.take_along_axis(before, np.argmax(there, axis=1)[:, None], axis=1)[:, 0]
        made.append(np.where(there.any(axis=1), here, paths.outcome))
    return np.stack(made, axis=1)[..., None]


def _no(shape: str) -> Maker:
    return lambda oracle, paths: np.zeros(paths.tokens.shape[: len(shape)], bool)


def _yes(oracle: "Oracle", paths: Paths) -> Array:
    return np.ones(len(paths.tokens), bool)


IDEAL: dict[str, Maker] = {
    "attention_distance": _salience,
    "attention_flow": _flow,
    "attributions": _attributions,
    "belief": _belief,
    "budget": lambda oracle, paths: _cuts(paths),
    "candidate_reward": lambda oracle, paths: paths.outcome,
    "commitment_correct": _committed,
    "confidence": _confidence,
    "correctness": lambda oracle, paths: _chance(oracle, paths)[:, 1:],
    "critic_value": lambda oracle, paths: oracle.boundary_value(paths)[:, :-1, None],
    "edit_mask": _no("LT"),
    "format_ok": _yes,
    "future_influence": _salience,
    "gold_mark": lambda oracle, paths: np.asarray(np.int32(1)),
    "grounding": _grounding,
    "hidden": _features,
    "is_curriculum": _yes,
    "is_offpolicy": _no("L"),
    "judge_error": lambda oracle, paths: 1 - _step_label(oracle, paths)[..., None],
    "judge_grad_dot_emb": lambda oracle, paths: _contribution(oracle, paths)[..., None],
    "judge_verdict": lambda oracle, paths: _scaled(oracle, paths.outcome)[:, None],
    "logprob_better": _instructed(1.0),
    "logprob_negative": _unprompted,
    "logprob_plain": lambda oracle, paths: oracle.logprob(paths),
    "logprob_rubric": _instructed(1.0),
    "logprob_worse": _instructed(-1.0),
    "mark": lambda oracle, paths: _success(oracle, paths).astype(np.int32),
    "planning_mask": _decisive,
    "prefix_score": lambda oracle, paths: oracle.expected_return(paths)[1],
    "progress": lambda oracle, paths: np.asarray(np.float64(0.5)),
    "prompt_length": lambda oracle, paths: np.asarray(np.int32(0)),
    "prompt_mean": lambda oracle, paths: np.asarray(oracle.solution.start),
    "prompt_score": lambda oracle, paths: oracle.expected_return(paths)[0][0, 0],
    "prover_value": _chance,
    "revision_mask": _no("LT"),
    "solution_label": lambda oracle, paths: np.asarray(np.int32(1)),
    "step_format": lambda oracle, paths: _taken(paths).astype(np.float64),
    "step_label": _step_label,
    "thought_label": _thought_label,
    "step_mask": _no("LT"),
    "step_score": lambda oracle, paths: _chance(oracle, paths)[:, 1:],
    "subproblem_reward": _subproblems,
    "summary_reward": _summary_reward,
    "teacher_span_better": _by_a_teacher(1.0),
    "teacher_span_logprob": _by_a_teacher(0.0),
    "teacher_span_worse": _by_a_teacher(-1.0),
    "thinking_mask": lambda oracle, paths: paths.acts,
    "verdict": lambda oracle, paths: _success(oracle, paths).astype(np.int32),
}
"""By signal, one entry an episode, or what holds for every prompt alike (see `paths.batch`)."""
