"""Flat rows with group ids, as other trainers keep them, through an estimator and back: what the adapters share.

Rows ``[N, T]`` of any groups (ragged, interleaved, in any order) are laid into a batch ``[P, G, T]`` on the host, its
axes rounded up to a few sizes, so that batches of varying lengths share programs. Rows that are in order already are
not copied where their shape fits.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from creditjax import algebra, recipes
from creditjax.algebra import Credit, Transform
from creditjax.algebra.core import check_piece
from creditjax.packing import _BLANK_IS_MINUS_ONE, check_shared
from creditjax.trajectory import _FIELD_AXES, FIELDS, Trajectory, signal_spec

Estimator = str | recipes.Recipe | Transform
"""The name of a recipe, a recipe, or a chain."""

# Every estimator is given these where they are there.
_STRUCTURE = ("tokens", "action_mask", "outcome", "votes", "trajectory")


class Places(NamedTuple):
    """Where each row lies in the batch.

    Attributes:
      prompt: int ``[N]``.
      rollout: int ``[N]``.
      shape: P and G, rounded up.
      in_order: whether row n lies at place n of the flattened batch.
    """

    prompt: np.ndarray
    rollout: np.ndarray
    shape: tuple[int, int]
    in_order: bool


class Made(NamedTuple):
    """Credit as it was computed, and how to read it.

    Attributes:
      credit: of the batch ``[P, G, T]``, on JAX's first CPU.
      places: of the rows in it.
      length: T of the rows, at most that of the batch.
    """

    credit: Credit
    places: Places
    length: int


def as_estimator(estimator: Estimator, **overrides: Any) -> Transform:
    """The `Transform` behind a recipe's name, a recipe or a chain.

    Raises:
      KeyError: no such recipe, with the nearest names.
      TypeError: something else, or overrides of what is no name.
    """
    if isinstance(estimator, str):
        return recipes.recipe(estimator, **overrides).estimator
    if overrides:
        raise TypeError(f"{next(iter(overrides))}: only the name of a recipe takes hyperparameters")
    made = estimator.estimator if isinstance(estimator, recipes.Recipe) else estimator
    check_piece("estimator:", made, "the name of a recipe, a recipe or a chain")
    return made


def with_discounts(estimator: Estimator, overrides: Mapping[str, Any], gamma: Any = None, lam: Any = None) -> Transform:
    """The estimator with the trainer's discount and trace, where a recipe is meant by its name, has hyperparameters
    called so, and `overrides` leaves them open. A recipe or a chain that was made already keeps its own.
    """
    follows: dict[str, Any] = {}
    if isinstance(estimator, str):
        given = {"gamma": gamma, "lam": lam}
        follows = {
            name: float(given[name])
            for name in recipes.hyperparameters(estimator)
            if given.get(name) is not None and name not in overrides
        }
    return as_estimator(estimator, **follows, **overrides)


def absent(package: str, error: ImportError) -> ImportError:
    """What to say when a trainer that an adapter is for cannot be imported."""
    return ImportError(f"{package} cannot be imported ({error}); it is installed by pip install '{package}'")


def compute(
    estimator: Transform,
    arrays: Mapping[str, Any],
    group_ids: Any,
    *,
    step: int = 0,
    num_segments: int = 0,
    exact_shapes: bool = False,
) -> Made:
    """Credit of flat rows.

    Args:
      estimator: a source, or a chain that starts with one.
      arrays: fields and signals by name, NumPy, one row each. What the estimator does not read is left out. `tokens`
        may be absent if the estimator does not read them, `outcome` if there is `reward`: then it is the row's sum.
        Flags may be numbers that are 0 or 1.
      group_ids: N integers or strings: rows with equal ids are rollouts of one draw of a prompt.
      step: training step, for schedules.
      num_segments: K; by default what the signals of segments say, else the largest segment.
      exact_shapes: compile for these P, G, T and K, instead of rounding them up.

    Raises:
      KeyError: a name that is neither a field nor a declared signal.
      TypeError, ValueError: see `Trajectory` and `estimate`; no rows; `action_mask` absent, or what an estimator needs;
        ids that are not one integer or string a row; flags that are neither 0 nor 1; rows of a group that disagree in
        a signal with one value for it.
    """
    rows = _trajectory(estimator, arrays, num_segments)
    n, length = rows.tokens.shape
    size = (lambda x: x) if exact_shapes else round_up
    ids, first = _ranks(group_ids, n)
    check_shared(rows, np.asarray(group_ids), first[ids])
    places = _places(ids, size)
    k = rows.num_segments and size(rows.num_segments)
    batch = _batch(rows, places, size(length), k)
    if arrays.get("tokens") is None and _tokens_matter(estimator, batch):
        raise ValueError("tokens: absent, but this estimator compares them, wanted int32 [N, T]")
    cpu = jax.local_devices(backend="cpu")[0]
    # The rows are in the host's memory, whatever else the process computes on.
    with jax.default_device(cpu):
        estimator, batch, at = jax.device_put((estimator, batch, np.int32(step)), cpu)
        return Made(algebra.estimate(estimator, batch, step=at), places, length)


def round_up(size: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, … that is at least `size`: at most a third is added, and a half on
    small sizes.

    >>> [round_up(size) for size in (1, 5, 8, 9, 100, 1025)]
    [1, 6, 8, 12, 128, 1536]
    """
    power = 1 << max(size - 1, 0).bit_length()
    return 3 * power // 4 if power >= 4 and size <= 3 * power // 4 else power


def to_rows(x: np.ndarray, places: Places, length: int) -> np.ndarray:
    """An array ``[P, G, T, ...]`` as rows ``[N, T, ...]`` in their first order: a fresh array."""
    return x[places.prompt, places.rollout, :length]


def _trajectory(estimator: Transform, arrays: Mapping[str, Any], num_segments: int) -> Trajectory:
    """The rows as a `Trajectory` ``[N, T]`` of what the estimator reads, checked."""
    check_piece("estimator:", estimator, "a source or a chain that starts with one, such as outcome()")
    for name in arrays:
        if name not in FIELDS:
            signal_spec(name)
    kept = {*algebra.needs(estimator), *estimator.uses, *_STRUCTURE}
    given = {name: np.asarray(x) for name, x in arrays.items() if x is not None and (name in kept or name == "reward")}
    if "action_mask" not in given:
        raise ValueError("action_mask: absent, wanted flags [N, T]: where the policy acted")
    for name, x in given.items():
        if (_FIELD_AXES[name][1] if name in FIELDS else signal_spec(name).dtype) == "bool":
            given[name] = _flags(name, x)
    mask = given["action_mask"]
    if mask.ndim != 2 or 0 in mask.shape:
        raise ValueError(f"action_mask: shape {list(mask.shape)}, wanted [N, T], at least one row and one position")
    given.setdefault("tokens", np.zeros(mask.shape, np.int32))
    if "outcome" not in given:
        if "reward" not in given:
            raise ValueError("outcome: absent, wanted float32 [N], or the whole reward stream as reward [N, T]")
        given["outcome"] = _sums(given["reward"])
    fields = {name: x for name, x in given.items() if name in FIELDS and name in kept}
    signals = {name: x for name, x in given.items() if name not in FIELDS}
    return Trajectory(**fields, signals=signals, num_segments=num_segments or _count_segments(fields, signals))


def _sums(reward: np.ndarray) -> np.ndarray:
    """The reward of each row, f32 ``[N]``. Half precision holds the rewards that are in it, but not their sums."""
    try:
        return reward.sum(axis=-1, dtype=np.float64).astype(np.float32)
    except (TypeError, ValueError):
        raise TypeError(f"reward: dtype {reward.dtype}, wanted float32 [N, T]") from None


def _flags(name: str, x: np.ndarray) -> np.ndarray:
    """Flags as bool; trainers keep masks as integers or floats."""
    if x.dtype == bool:
        return x
    try:
        extremes = (x.min(initial=0), x.max(initial=0))
    except TypeError:
        raise TypeError(f"{name}: dtype {x.dtype}, wanted flags, True or False (or 0 or 1)") from None
    if wrong := [value for value in extremes if value not in (0, 1)]:
        raise ValueError(f"{name}: value {wrong[0]}, wanted flags, True or False (or 0 or 1)")
    flags = x.astype(bool)
    if not (flags == x).all():
        raise ValueError(f"{name}: values between 0 and 1, wanted flags")
    return flags


def _count_segments(fields: Mapping[str, np.ndarray], signals: Mapping[str, np.ndarray]) -> int:
    for name, x in signals.items():
        own = [axis for axis in signal_spec(name).axes if axis not in ("P", "G")]
        for axis, more in (("K", 0), ("K+1", 1)):
            if axis in own:
                return x.shape[x.ndim - len(own) + own.index(axis)] - more
    return max(int(fields["segment"].max()) + 1, 1) if "segment" in fields else 0


def _ranks(group_ids: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids as ranks in the order of first appearance, int ``[N]``, and the first row of each rank."""
    ids = np.asarray(group_ids)
    if ids.shape != (n,) or ids.dtype.kind not in "iuOUST":
        raise ValueError(f"group_ids: {ids.dtype} {list(ids.shape)}, wanted {n} integers or strings, one a row")
    if ids.dtype.kind in "OUST":
        seen: dict[Any, int] = {}
        try:
            inverse = np.array([seen.setdefault(x, len(seen)) for x in ids.tolist()])
        except TypeError as error:
            raise TypeError(f"group_ids: {error}, wanted integers or strings, one a row") from None
        return inverse, np.unique(inverse, return_index=True)[1]
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return rank[inverse], np.sort(first)


def _places(ids: np.ndarray, size: Any) -> Places:
    order = np.argsort(ids, kind="stable")
    counts = np.bincount(ids)
    rollout = np.empty_like(ids)
    rollout[order] = np.arange(len(ids)) - (np.cumsum(counts) - counts)[ids[order]]
    shape = (size(len(counts)), size(int(counts.max())))
    return Places(ids, rollout, shape, bool((ids * shape[1] + rollout == np.arange(len(ids))).all()))


def _batch(rows: Trajectory, places: Places, length: int, num_segments: int) -> Trajectory:
    """The rows laid into ``[P, G, T]``; a place without a row acts nowhere and does not vote."""
    sizes = {"T": length, "K": num_segments, "K+1": num_segments + 1}

    def grow(x: np.ndarray, axes: tuple[str, ...], blank: Any) -> np.ndarray:
        widths = [(0, sizes.get(axis, size) - size) for axis, size in zip(axes, x.shape, strict=True)]
        return np.pad(x, widths, constant_values=blank) if any(more for _, more in widths) else x

    def lay(name: str, x: np.ndarray) -> np.ndarray:
        axes = ("P", "G", *_FIELD_AXES[name][0]) if name in FIELDS else signal_spec(name).axes
        own = tuple(axis for axis in axes if axis not in ("P", "G"))
        each = x.ndim > len(own)  # one a row, not one for all of them
        blank = -1 if name in _BLANK_IS_MINUS_ONE else 0
        x = grow(x, ("N", *own) if each else own, x.dtype.type(blank))
        if "P" not in axes:
            return x[0] if each else x
        count = 2 if "G" in axes else 1
        lead, where = places.shape[:count], (places.prompt, places.rollout)[:count]
        if each and count == 2 and places.in_order and len(x) == np.prod(lead):
            return x.reshape(*lead, *x.shape[1:])
        out = np.full((*lead, *x.shape[each:]), blank, x.dtype)
        if name == "trajectory":
            # An empty place is a rollout of its own, so that it shares nobody's vote.
            out[:] = -1 - np.arange(places.shape[1], dtype=x.dtype)
        out[where if each else ...] = x
        return out

    fields = {name: lay(name, np.asarray(x)) for name in FIELDS if (x := rows.get(name)) is not None}
    signals = {name: lay(name, np.asarray(x)) for name, x in rows.signals.items()}
    return Trajectory(**fields, signals=signals, num_segments=num_segments)


# By the structure of an estimator and what its batch carries: hyperparameters and sizes do not matter.
_TOKENS_MATTER: dict[Any, bool] = {}


def _tokens_matter(estimator: Transform, batch: Trajectory) -> bool:
    key = (jax.tree.structure(estimator), frozenset(batch.signals), batch.reward is None)
    if key not in _TOKENS_MATTER:
        _TOKENS_MATTER[key] = _reads_tokens(estimator, batch)
    return _TOKENS_MATTER[key]


def _reads_tokens(estimator: Transform, batch: Trajectory) -> bool:
    """Whether a token reaches the credit, found in the traced program: pieces do not declare that they read tokens."""

    def value(tokens: Any) -> Any:
        credit = algebra.estimate(estimator, batch.replace(tokens=tokens))
        return credit.value, credit.valid, credit.extras

    program = jax.make_jaxpr(value)(batch.tokens).jaxpr
    return _is_read(program, program.invars[0])


def _is_read(program: Any, variable: Any) -> bool:
    for equation in program.eqns:
        inner = getattr(equation.params.get("jaxpr"), "jaxpr", None)
        for i, x in enumerate(equation.invars):
            if x is variable and (inner is None or _is_read(inner, inner.invars[i])):
                return True
    return any(x is variable for x in program.outvars)
