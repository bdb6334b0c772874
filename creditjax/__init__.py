"""creditjax: composable credit assignment for reinforcement learning in JAX.

An estimator is a chain of small pure transformations of credit, run on a batch of rollouts:

    import creditjax as cj

    estimator = cj.chain(cj.algebra.outcome(), cj.algebra.group_normalize())
    credit = cj.estimate(estimator, batch)        # credit.value is [P, G, T]
"""

from creditjax import algebra, kernels, numerics
from creditjax.algebra import (
    Credit,
    Level,
    Transform,
    blend,
    chain,
    credit_trace,
    estimate,
    explain,
    gate,
    linear_schedule,
    modulate,
    route,
    transform,
    where,
)
from creditjax.packing import (
    Packing,
    concatenate,
    pack,
    pack_index,
    pad_positions,
    pad_rollouts,
    slice_positions,
    stack,
    unpack,
)
from creditjax.recipes import Recipe, list_recipes, recipe, register
from creditjax.recommend import recommend
from creditjax.segments import segments_from_separators, segments_from_starts, segments_of_length
from creditjax.trajectory import SIGNALS, SignalSpec, Trajectory, declare_signal, signal_spec
from creditjax.validation import Fault, check, validate
from creditjax.version import __version__

__all__ = [
    "SIGNALS",
    "Credit",
    "Fault",
    "Level",
    "Packing",
    "Recipe",
    "SignalSpec",
    "Trajectory",
    "Transform",
    "__version__",
    "algebra",
    "blend",
    "chain",
    "check",
    "concatenate",
    "credit_trace",
    "declare_signal",
    "estimate",
    "explain",
    "gate",
    "kernels",
    "linear_schedule",
    "list_recipes",
    "modulate",
    "numerics",
    "pack",
    "pack_index",
    "pad_positions",
    "pad_rollouts",
    "recipe",
    "recommend",
    "register",
    "route",
    "segments_from_separators",
    "segments_from_starts",
    "segments_of_length",
    "signal_spec",
    "slice_positions",
    "stack",
    "transform",
    "unpack",
    "validate",
    "where",
]
