"""The estimator as a program: transformations of JAX, devices, precision, gradients, recompilation, cost."""

from collections.abc import Callable
import functools
from typing import Any, Unpack

import jax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np

from creditjax.algebra import Transform, credit_trace, estimate, lift
from creditjax.testing.batches import map_arrays
from creditjax.testing.check import (
    SEEDS,
    SHAPE,
    Estimator,
    Function,
    Mismatch,
    NotTraced,
    Options,
    as_function,
    as_traceable,
    check,
    compare,
    default_batches,
    fail,
    tolerances,
)
from creditjax.trajectory import Trajectory, signal_spec

_COUNTED = "/jax/core/compile/jaxpr_trace_duration"


def assert_jit_vmap_agree(estimator: Estimator, **options: Unpack[Options]) -> None:
    """Eager, under `jit` and under `vmap` it gives the same numbers."""
    value = _traceable("assert_jit_vmap_agree", estimator, options)
    mapped = jax.jit(jax.vmap(value))
    # `estimate` is jitted, and what it compiled serves the other assertions too.
    compiled = value if isinstance(estimator, Transform) else jax.jit(value)

    def eager(batch: Trajectory) -> Any:
        if isinstance(estimator, Transform):
            return lift(credit_trace(estimator, batch)[-1][1], batch).value
        return value(batch)

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        wanted = np.asarray(eager(batch))
        twice = jax.tree.map(lambda x: np.stack([x, x]), batch)
        ways = {"under jit": compiled(batch), "under vmap": mapped(twice)[1]}
        for way, found in ways.items():
            if (wrong := compare(f"credit {way} differs from eager", found, wanted, **tolerances(options))) is not None:
                return wrong
        return None

    check("assert_jit_vmap_agree", estimator, holds, {"seeds": range(1), **options})


def assert_sharding_agrees(estimator: Estimator, *, mesh: Mesh | None = None, **options: Unpack[Options]) -> None:
    """With the prompts split over devices it gives the numbers that it gives on one.

    A `Transform` runs under `shard_map`, see `estimate`; a function under `jit` with sharded inputs.

    Args:
      estimator: what is tested.
      mesh: the devices, all there are by default.
      **options: see `Options`. The number of prompts has to be divisible by that of devices.
    """
    value = _traceable("assert_sharding_agrees", estimator, options)
    mesh = mesh or jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    prompts = SHAPE[0] if SHAPE[0] % mesh.size == 0 else mesh.size
    batches = options.get("batches") or default_batches(estimator, shape=(prompts, *SHAPE[1:]))
    axes = tuple(mesh.axis_names)

    @jax.jit
    def compiled(batch: Trajectory) -> Any:
        if isinstance(estimator, Transform):
            return estimate(estimator, batch, mesh=mesh, mesh_axes=axes).value
        return value(batch)

    def sharded(batch: Trajectory) -> Any:
        if isinstance(estimator, Transform):
            return compiled(batch)

        def put(name: str, x: np.ndarray) -> jax.Array:
            split = name not in batch.signals or "P" in signal_spec(name).axes
            return jax.device_put(x, NamedSharding(mesh, PartitionSpec(axes if split else None)))

        return compiled(map_arrays(batch, put))

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        # A batch that does not split over the devices is no counterexample: shrinking stops there.
        what = f"credit on {mesh.size} devices differs from that on one"
        return compare(what, sharded(batch), function(batch), **tolerances(options))

    check("assert_sharding_agrees", estimator, holds, {"seeds": range(1), **options, "batches": batches})


def assert_dtype_stable(estimator: Estimator, **options: Unpack[Options]) -> None:
    """Credit is float32, whatever precision outcomes come in, and with 64-bit types enabled too."""
    value = as_traceable(estimator)

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        # The trace of a `Transform` says its type; a function may be one of NumPy, so it is run.
        made = functools.partial(jax.eval_shape, value) if isinstance(estimator, Transform) else function
        wanted = function(batch)
        for x64 in (False, True):
            for dtype in (jnp.bfloat16, jnp.float16, np.float64):
                types = f"with {np.dtype(dtype).name} outcomes" + (" and 64-bit types enabled" if x64 else "")
                try:
                    with jax.enable_x64(x64):
                        other = batch.replace(outcome=np.asarray(batch.outcome).astype(dtype))
                        if (found := made(other).dtype) != np.float32:
                            return Mismatch(f"credit is {found} {types}, wanted float32", function(other), wanted)
                except (TypeError, ValueError) as error:
                    fail("assert_dtype_stable", estimator, f"it cannot be computed {types}: {error}")
        return None

    check("assert_dtype_stable", estimator, holds, {"seeds": range(1), **options})


def assert_gradient_stopped(estimator: Estimator, **options: Unpack[Options]) -> None:
    """No gradient flows through credit to anything in the batch."""
    value = _traceable("assert_gradient_stopped", estimator, options)

    @jax.jit
    def gradients(floats: dict[str, Any], batch: Trajectory) -> dict[str, Any]:
        def total(floats: dict[str, Any]) -> Any:
            # Integers have no gradient, which is what is asked for.
            return jnp.sum(jnp.asarray(value(_exchanged(batch, floats)), jnp.float32))

        return jax.grad(total)(floats)

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        floats: dict[str, Any] = {}
        map_arrays(batch, lambda name, x: floats.setdefault(name, x) if x.dtype == np.float32 else x)
        for name, found in gradients(floats, batch).items():
            wrong = compare(f"a gradient flows through credit to {name}", found, np.zeros_like(found), 0.0, 0.0)
            if wrong is not None:
                return wrong
        return None

    check("assert_gradient_stopped", estimator, holds, {"seeds": range(1), **options})


def _exchanged(batch: Trajectory, changed: dict[str, Any]) -> Trajectory:
    """The batch with some fields and signals exchanged."""
    fields = {name: x for name, x in changed.items() if name not in batch.signals}
    return batch.replace(**fields).with_signals(**{n: x for n, x in changed.items() if n in batch.signals})


def assert_no_recompilation(estimator: Estimator, **options: Unpack[Options]) -> None:
    """After the first batch nothing is traced again for another of the same shape, nor for other float
    hyperparameters of a `Transform`.
    """
    batches = options.get("batches") or default_batches(estimator)
    first, *others = (batches(seed) for seed in options.get("seeds", SEEDS))
    as_function(estimator)(first)
    # A second call of the first batch settles what is made lazily.
    as_function(estimator)(first)
    trials: list[tuple[str, Estimator, Trajectory]] = [("a batch of the same shape", estimator, x) for x in others]
    if isinstance(estimator, Transform):
        trials.append(("other hyperparameters", jax.tree.map(lambda x: x * np.float32(0.9), estimator), first))
    for what, other, batch in trials:
        with _Traces() as traces:
            as_function(other)(batch)
        if traces.count:
            fail("assert_no_recompilation", estimator, f"{what}: traced {traces.count} times, wanted 0")


def assert_linear_cost(
    estimator: Estimator, *, length: int = 256, at_most: float = 2.4, **options: Unpack[Options]
) -> None:
    """Twice the positions cost about twice the operations.

    Args:
      estimator: what is tested.
      length: T; the other batch has 2 T.
      at_most: tolerated ratio of the compiler's counts of floating point operations.
      **options: `batches`, if given, is called with the seed and the shape.
    """
    value = _traceable("assert_linear_cost", estimator, options)
    make: Callable[..., Trajectory] = options.get("batches") or default_batches(estimator)

    def flops(length: int) -> float:
        cost = jax.jit(value).lower(make(0, shape=(2, 3, length))).cost_analysis()
        return float((cost or {}).get("flops", 0.0))

    once, twice = flops(length), flops(2 * length)
    if not twice <= at_most * once:
        what = f"{2 * length} positions cost {twice / once:.2f} times the operations of {length}"
        numbers = [f"{once:.6g} operations, then {twice:.6g}"]
        fail("assert_linear_cost", estimator, f"{what}, wanted at most {at_most:g}", numbers)


def _traceable(name: str, estimator: Estimator, options: Options) -> Callable[[Trajectory], Any]:
    value = as_traceable(estimator)
    batch = (options.get("batches") or default_batches(estimator))(0)
    as_function(estimator)(batch)  # what fails outside of a trace, or has another shape, says so itself
    try:
        jax.eval_shape(value, batch)
    except Exception as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        fail(name, estimator, f"JAX cannot trace it: {said}", kind=NotTraced)
    return value


class _Traces:
    """Counts what JAX traces while it is entered."""

    def __enter__(self) -> "_Traces":
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self

    def __exit__(self, *_: Any) -> None:
        jax.monitoring.unregister_event_duration_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.count += event == _COUNTED
