"""Ground truth: tasks small enough to be solved, and estimators held against the solution.

process = exact.lay_out(game)
solution = exact.solve(process, policy)             # values, exact credit, in float64
moments = exact.enumerate_moments(recipe("grpo").estimator, process, solution, group_size=4)
"""

from creditjax.exact.game import Act, Chance, Game, remember
from creditjax.exact.joint import Prompt, enumerate_joint_moments
from creditjax.exact.moments import (
    Judgement,
    Moments,
    count_groups,
    enumerate_moments,
    group_credit,
    groups,
    judge,
    reinforce,
    sample_moments,
    true_gradient,
)
from creditjax.exact.paths import Paths, batch, enumerate_paths, exact_credit, probability, sample_paths
from creditjax.exact.process import Layer, Process, lay_out, softmax, tabulate
from creditjax.exact.values import Solution, Values, policy_gradient, reach, solve, start_value, values

__all__ = [
    "Act",
    "Chance",
    "Game",
    "Judgement",
    "Layer",
    "Moments",
    "Paths",
    "Process",
    "Prompt",
    "Solution",
    "Values",
    "batch",
    "count_groups",
    "enumerate_joint_moments",
    "enumerate_moments",
    "enumerate_paths",
    "exact_credit",
    "group_credit",
    "groups",
    "judge",
    "lay_out",
    "policy_gradient",
    "probability",
    "reach",
    "reinforce",
    "remember",
    "sample_moments",
    "sample_paths",
    "softmax",
    "solve",
    "start_value",
    "tabulate",
    "true_gradient",
    "values",
]
