"""How long estimators and kernels take, in units of what the machine can do.

Two yardsticks, each timed in the same rounds and on the same arrays as what it measures: for element-wise and group
estimators a jitted sum of exactly the arrays that the estimator reads, for recursions over positions
``jnp.cumsum(axis=-1)`` over the rewards. `ratio` is the time over the yardstick's. Beside them one array ``[P * G, T]``
is copied: how fast that goes is the bandwidth of the machine, and `copy_share` says how much of it an estimator gets.
"""

from collections.abc import Callable, Iterator
import dataclasses
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from jax.interpreters import partial_eval

from creditjax import algebra, kernels, recipes
from creditjax.algebra.estimate import prune
from creditjax.benchmark import peers, synthetic
from creditjax.benchmark.synthetic import readable, synthetic_batch
from creditjax.benchmark.timing import medians

GAMMA, LAM = 0.99, 0.95


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      name: a recipe, or `kernels.` and a kernel.
      shape: ``[P * G, T]``.
      ms: median time.
      yardstick: "sum of inputs" or "cumsum".
      yardstick_ms: its median time in the same rounds.
      ratio: `ms / yardstick_ms`.
      copy_share: bytes read and written per second, as a share of what a copy reads and writes in the same rounds.
        Each array counts once: what is read again, or kept on the way, lowers the share.
      cost: how the recipe's time grows, see `creditjax.recipes.registry.COSTS`; None for a kernel.
      peer: the fastest installed library that does the same work.
      peer_ms: its median time on the same arrays.
      peers: all of them.
    """

    name: str
    shape: tuple[int, int]
    ms: float
    yardstick: str
    yardstick_ms: float
    ratio: float
    copy_share: float
    cost: str | None = None
    peer: str | None = None
    peer_ms: float | None = None
    peers: dict[str, float] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The row as plain data, without what it does not have."""
        fields = dataclasses.asdict(self) | {"shape": list(self.shape)}
        return {name: value for name, value in fields.items() if value is not None and value != {}}


@dataclasses.dataclass(frozen=True)
class _Work:
    """Something to time: a function, its arrays, and whether it is a recursion over positions."""

    fn: Callable
    args: tuple
    recursion: bool


def names() -> list[str]:
    """Every row that :func:`speed` can make."""
    return [f"kernels.{name}" for name in _KERNELS] + recipes.list_recipes()


def speed(shape: tuple[int, int, int], only: tuple[str, ...] = (), rounds: int = 15) -> Iterator[Row]:
    """Times kernels and recipes one after another.

    Args:
      shape: ``(P, G, T)``.
      only: names to keep; a bare kernel name keeps the kernel and a recipe of that name. Empty: everything.
      rounds: repetitions of each.

    Raises:
      ValueError: a name in `only` that nothing has.
    """
    known = names()
    unknown = [name for name in only if name not in known and f"kernels.{name}" not in known]
    if unknown:
        raise ValueError(f"--only: {', '.join(unknown)} unknown, wanted some of {', '.join(known)}")
    for name in known:
        if not only or name in only or name.removeprefix("kernels.") in only:
            work = _kernel_work(name.removeprefix("kernels."), shape) if "." in name else _recipe_work(name, shape)
            yield _measure(name, work, shape, rounds)


def _measure(name: str, work: _Work, shape: tuple[int, int, int], rounds: int) -> Row:
    compiled = jax.jit(work.fn).lower(*work.args).compile()
    yardstick, yardstick_call = _yardstick(work, shape)
    copied = jnp.asarray(synthetic_batch(shape).reward)
    copy = jax.jit(jnp.copy)
    calls = {"": lambda: compiled(*work.args), yardstick: yardstick_call, "copy": lambda: copy(copied)}
    others = peers.calls(name.removeprefix("kernels."), shape)
    times = medians(calls | others, rounds)
    seen = {peer: times[peer] for peer in others}
    fastest = min(seen, key=seen.get) if seen else None
    arrays = (*_arrays_read(work), *jax.tree.leaves(jax.eval_shape(work.fn, *work.args)))
    moved = sum(x.size * x.dtype.itemsize for x in arrays)
    return Row(
        name=name,
        shape=(shape[0] * shape[1], shape[2]),
        ms=times[""],
        yardstick=yardstick,
        yardstick_ms=times[yardstick],
        ratio=times[""] / times[yardstick],
        copy_share=moved / times[""] / (2 * copied.nbytes / times["copy"]),
        cost=None if "." in name else recipes.recipe(name).cost,
        peer=fastest,
        peer_ms=seen[fastest] if fastest else None,
        peers=seen,
    )


def _yardstick(work: _Work, shape: tuple[int, int, int]) -> tuple[str, Callable[[], Any]]:
    if work.recursion:
        reward = jnp.asarray(synthetic_batch(shape).reward).reshape(-1, shape[2])
        cumsum = jax.jit(lambda x: jnp.cumsum(x, axis=-1))
        return "cumsum", lambda: cumsum(reward)
    arrays = _arrays_read(work)
    total = jax.jit(lambda arrays: sum(jnp.sum(x, dtype=jnp.float32) for x in arrays))
    return "sum of inputs", lambda: total(arrays)


def _arrays_read(work: _Work) -> list[jax.Array]:
    """The leaves of the arguments that the result depends on: a batch holds more than an estimator reads."""
    leaves, structure = jax.tree.flatten(work.args)
    traced = jax.make_jaxpr(lambda leaves: jax.tree.leaves(work.fn(*jax.tree.unflatten(structure, leaves))))(leaves)
    _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    return [leaf for leaf, kept in zip(leaves, used, strict=True) if kept and jnp.ndim(leaf)]


def _is_recursion(fn: Callable, args: tuple, length: int) -> bool:
    """Whether a recurrence or a cumulative operation runs over the positions."""

    def search(jaxpr) -> bool:
        for equation in jaxpr.eqns:
            operands = [v.aval for v in equation.invars if getattr(v.aval, "ndim", 0)]
            over_positions = any(a.shape[-1] == length for a in operands)
            name = equation.primitive.name
            if over_positions and (name.startswith(("custom_vjp_call", "cum"))):
                return True
            if any(search(inner) for inner in map(_inner_jaxpr, equation.params.values()) if inner is not None):
                return True
        return False

    return search(jax.make_jaxpr(fn)(*args).jaxpr)


def _inner_jaxpr(parameter):
    inner = getattr(parameter, "jaxpr", parameter)
    return inner if hasattr(inner, "eqns") else None


def _credit_value(estimator, batch):
    return algebra.estimate(estimator, batch).value


def _recipe_work(name: str, shape: tuple[int, int, int]) -> _Work:
    estimator = recipes.recipe(name).estimator
    wanted = readable((*algebra.needs(estimator), *estimator.uses))
    batch = jax.tree.map(jnp.asarray, prune(estimator, synthetic_batch(shape, wanted)))
    args = (estimator, batch)
    return _Work(_credit_value, args, _is_recursion(_credit_value, args, shape[2]))


def _kernel_work(name: str, shape: tuple[int, int, int]) -> _Work:
    kernel = _KERNELS[name]
    batch = synthetic_batch(shape, readable(kernel.reads))
    args = tuple(jnp.asarray(batch.get(field)) for field in kernel.reads)
    if not kernel.group:
        args = tuple(x.reshape(-1, *x.shape[2:]) for x in args)
    return _Work(jax.vmap(kernel.fn), args, kernel.recursion)


class _Kernel(NamedTuple):
    """A kernel with the fields and signals that it is fed; on one stream, or on one `group`."""

    fn: Callable
    reads: tuple[str, ...]
    recursion: bool = False
    group: bool = False


def _branch_td(tokens, mask, outcome):
    length = jnp.max(jnp.where(mask, jnp.arange(mask.shape[-1]) + 1, 0), axis=-1)
    return kernels.prefix.branch_td(tokens, length, outcome, jnp.ones(outcome.shape))


def _vtrace(reward, value, current, behaviour, mask, next_value, terminated, truncated):
    ends = dict(next_value=next_value, terminated=terminated, truncated=truncated)
    return kernels.vtrace.vtrace(reward, value, current, behaviour, mask, GAMMA, LAM, **ends)


_STREAM = ("reward", "action_mask")
_ENDS = ("next_value", "terminated", "truncated")
_CRITIC = ("reward", "value", "action_mask")
_SEGMENTS = synthetic.SIZES["K"]

_KERNELS: dict[str, _Kernel] = {
    "reverse_linear_recurrence": _Kernel(
        lambda r, m: kernels.reverse_linear_recurrence(jnp.where(m, GAMMA, 1.0), r), _STREAM, recursion=True
    ),
    "gather_rewards": _Kernel(kernels.gather_rewards, _STREAM, recursion=True),
    "future_sum": _Kernel(lambda r, m: kernels.future_sum(r, m, GAMMA), _STREAM, recursion=True),
    "discounted_return": _Kernel(
        lambda r, m, n, e, c: kernels.discounted_return(r, m, GAMMA, e, c, n), (*_STREAM, *_ENDS), recursion=True
    ),
    "gae": _Kernel(
        lambda r, v, m, n, e, c: kernels.gae(r, v, m, GAMMA, LAM, n, e, c), (*_CRITIC, *_ENDS), recursion=True
    ),
    "gae_without_ends": _Kernel(lambda r, v, m: kernels.gae(r, v, m, GAMMA, LAM), _CRITIC, recursion=True),
    "lambda_return": _Kernel(
        lambda r, v, m, n, e, c: kernels.lambda_return(r, v, m, GAMMA, LAM, n, e, c), (*_CRITIC, *_ENDS), recursion=True
    ),
    "td_error": _Kernel(
        lambda r, v, m, n, e, c: kernels.td_error(r, v, m, GAMMA, n, e, c), (*_CRITIC, *_ENDS), recursion=True
    ),
    "n_step_return": _Kernel(
        lambda r, v, m, n, e, c: kernels.n_step_return(r, v, m, GAMMA, 3, n, e, c), (*_CRITIC, *_ENDS), recursion=True
    ),
    "vtrace": _Kernel(
        _vtrace, ("reward", "value", "logprob_current", "logprob", "action_mask", *_ENDS), recursion=True
    ),
    "min_return": _Kernel(kernels.min_return, _STREAM, recursion=True),
    "softmin_weights": _Kernel(lambda x: kernels.softmin_weights(x, jnp.ones(x.shape, bool)), ("process_reward",)),
    "segment_sum": _Kernel(
        lambda x, s, m: kernels.segments.segment_sum(x, s, m, _SEGMENTS), ("reward", "segment", "action_mask")
    ),
    "segment_last": _Kernel(lambda s, m: kernels.segments.segment_last(s, m, _SEGMENTS), ("segment", "action_mask")),
    "segment_broadcast": _Kernel(kernels.segments.broadcast, ("process_reward", "segment")),
    "branch_td": _Kernel(_branch_td, ("tokens", "action_mask", "outcome"), group=True),
    "match_reward": _Kernel(
        lambda s, m: kernels.matching.match_reward(s, jnp.ones(s.shape[0], bool), m),
        ("call_similarity", "reference_mask"),
    ),
}
