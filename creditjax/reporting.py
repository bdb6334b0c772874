"""What a paper about credit assignment should say, and how much of it one does.

The checklist of the survey (arXiv:2604.09459, appendix C; card `ca_reporting_checklist`): fourteen items in six
categories, ten required and four recommended.
"""

from collections.abc import Mapping
from typing import NamedTuple

from creditjax.naming import nearest

# "partial" counts half by choice: the source has symbols only.
STATES: dict[str, float | None] = {"reported": 1.0, "partial": 0.5, "missing": 0.0, "not applicable": None}


class Item(NamedTuple):
    """One item of the checklist."""

    id: str
    category: str
    required: bool
    text: str


ITEMS: tuple[Item, ...] = (
    Item("base_model", "model and data", True, "base model: name, size, version"),
    Item("training_data", "model and data", True, "training data: origin, amount, filters"),
    Item("granularity", "credit method", True, "granularity of credit: token, segment, step, turn or agent"),
    Item("methodology", "credit method", True, "family of the method in the taxonomy"),
    Item("episode_baseline", "baselines", True, "an episode-level baseline on the same base model"),
    Item("compute_matched", "baselines", True, "the baseline at equal compute, or compute compared"),
    Item("ablation", "baselines", False, "an ablation that isolates the credit"),
    Item("benchmarks", "evaluation", True, "benchmarks and their exact splits"),
    Item("metric", "evaluation", True, "the metric and its definition"),
    Item("spread", "evaluation", False, "spread over at least three seeds, or confidence intervals"),
    Item("compute", "compute", True, "total hours of training on which hardware"),
    Item("credit_cost", "compute", False, "extra cost of credit: forward passes, resets, calls of a judge"),
    Item("mean_length", "trajectories", True, "mean length: tokens when reasoning, turns when agentic"),
    Item("length_distribution", "trajectories", False, "least, median and greatest length"),
)


class Audit(NamedTuple):
    """How a record does against the checklist.

    Attributes:
      required: mean over the applicable required items, 1 if none is.
      all: mean over all applicable items, 1 if none is.
      missing: ids of items that are missing, the required ones first.
      partial: ids of items that are reported in part, the required ones first.
      states: the state of every item, in the order of `ITEMS`.
    """

    required: float
    all: float
    missing: tuple[str, ...]
    partial: tuple[str, ...]
    states: dict[str, str]


def audit(record: Mapping[str, str]) -> Audit:
    """Holds a record of one experiment or paper against the checklist.

    Args:
      record: from the id of an item to "reported", "partial", "missing" or "not applicable". An absent item is missing.

    Raises:
      KeyError: an item that the checklist does not have.
      ValueError: a state that is none of the four.

    >>> audit({item.id: "reported" for item in ITEMS} | {"compute": "partial"}).required
    0.95
    """
    known = [item.id for item in ITEMS]
    for name, state in record.items():
        if name not in known:
            raise KeyError(f"checklist item {name!r} is unknown; {nearest(name, known)}")
        if not isinstance(state, str) or state not in STATES:
            raise ValueError(f"checklist item {name!r}: {state!r}, wanted one of {', '.join(STATES)}")
    states = {name: record.get(name, "missing") for name in known}
    order = sorted(ITEMS, key=lambda item: not item.required)
    return Audit(
        required=_mean([states[item.id] for item in ITEMS if item.required]),
        all=_mean(list(states.values())),
        missing=tuple(item.id for item in order if states[item.id] == "missing"),
        partial=tuple(item.id for item in order if states[item.id] == "partial"),
        states=states,
    )


def _mean(states: list[str]) -> float:
    counted = [value for state in states if (value := STATES[state]) is not None]
    return sum(counted) / len(counted) if counted else 1.0
