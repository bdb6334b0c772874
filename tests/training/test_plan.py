"""What programs cost, and what a run needs of devices that need not be there."""

import importlib.util
import math

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from configs import forkme, quickstart
from creditjax.training import ConfigError, cost, plan
from creditjax.training import mesh as mesh_lib

GIB = 2**30


def small(**fields):
    config = quickstart.get_config("runlocal")
    config.update_from_flattened_dict({"policy.width": 16, "policy.depth": 1, "policy.heads": 2, **fields})
    return config


@pytest.mark.parametrize("length", [1, 5])
def test_products_are_counted_as_often_as_they_are_made(length):
    x, w = jnp.ones((8, 16)), jnp.ones((16, 16))
    one = 2 * 8 * 16 * 16

    def scanned(x, w):
        return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=length)[0]

    def looped(x, w):
        return jax.lax.while_loop(lambda c: (c[1] < length) & (c[0].sum() < 9), lambda c: (c[0] @ w, c[1] + 1), (x, 0))

    def branched(x, w):
        return jax.lax.cond(x.sum() > 0, lambda: x @ w, lambda: x)

    assert cost.matmul_flops(scanned, x, w) == cost.matmul_flops(looped, x, w) == length * one
    assert cost.matmul_flops(jax.jit(branched), x, w) == one
    # Forward, and backward the two products with respect to either factor.
    assert cost.matmul_flops(jax.grad(lambda w: jnp.sum(scanned(x, w) ** 2)), w) == pytest.approx(
        (3 * length - 1) * one, abs=one
    )


def test_collectives_in_a_loop_count_as_often_as_it_runs():
    mesh = mesh_lib.make_mesh({"data": 4}, jax.devices()[:4])
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    def f(x):
        def body(c, _):
            return jax.lax.with_sharding_constraint(jnp.tanh(c * jnp.sum(c, axis=0)), rows), None

        return jax.lax.scan(body, x, None, length=7)[0]

    text = jax.jit(f, in_shardings=rows, out_shardings=rows).lower(jax.ShapeDtypeStruct((8, 32), np.float32)).compile()
    assert cost.collectives(text.as_text()) == {"all-reduce": cost.Collective(7, 7 * 32 * 4)}
    alone = jax.jit(lambda x: x + 1, in_shardings=whole).lower(jax.ShapeDtypeStruct((8,), np.float32)).compile()
    assert cost.collectives(alone.as_text()) == {}


def test_a_plan_for_the_devices_of_this_machine():
    """Data parallel: what is reduced is the gradient, and no rollout is gathered for its credit."""
    said: list[str] = []
    made = plan.make_plan(small(), jax.devices()[:2], say=said.append)
    assert [program.name for program in made.programs] == ["rollout", "update", "supervised step"]
    assert len(said) == 3 and made.mesh == {"data": 2, "fsdp": 1, "tensor": 1}
    assert made.state["optimiser"] == pytest.approx(2 * made.state["parameters"], abs=64)
    rollout, update, _ = made.programs
    assert not rollout.collectives and set(update.collectives) == {"all-reduce"}
    assert (
        made.state["parameters"] <= update.collectives["all-reduce"].bytes < 1.5 * made.state["parameters"] + made.batch
    )
    assert update.flops > rollout.flops > 0 and update.arguments > sum(made.state.values())
    for word in ("2 devices, mesh data 2", "parameters", "Update, ", "all-reduce", "GFLOP"):
        assert word in plan.report(made)


def test_what_does_not_fit_is_said_with_the_knob():
    chip = plan.CHIPS["v5e"]

    def made(name, state, temporary, batch=1):
        program = plan.Program(name, 1.0, int(state), 0, 0, int(temporary), 0, 1e12, 1e9, {})
        return plan.Plan("v5e:2x2", {"data": 4}, chip, {"parameters": int(state)}, int(batch), (program,))

    assert "does not fit, by 4,096.00 MiB" in plan.report(made("update", 15 * GIB, 5 * GIB))
    for name, state, temporary, knob in [
        ("update", 15 * GIB, 5 * GIB, "config.mesh.fsdp"),
        ("update", 5 * GIB, 15 * GIB, "config.batch.micro_batches"),
        ("rollout", 5 * GIB, 15 * GIB, "config.batch.prompts"),
    ]:
        found = made(name, state, temporary)
        assert not found.fits and knob in plan.report(found)
    fits = made("update", 2 * GIB, 2 * GIB)
    assert fits.fits and "Everything fits; the update leaves 12,288.00 MiB" in plan.report(fits)
    times = plan.limits(fits.programs[0], chip)
    assert times["products"] == pytest.approx(1 / 197) and max(times, key=times.get) == "products"


def test_a_program_that_the_compiler_refuses_is_part_of_the_plan():
    class Refusing:
        def __init__(self, said):
            self.said = said

        def __call__(self, x):
            return x @ x

        def lower(self, x):
            return self

        def compile(self):
            raise jax.errors.JaxRuntimeError(self.said)

    x = jax.ShapeDtypeStruct((64, 64), np.float32)
    said = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (18.50G) exceeds"
    )
    program = plan._compile("update", Refusing(said), (x,), 2)
    assert program.temporary == 18.5 * GIB and program.arguments == 64 * 64 * 4 and program.flops == 64**3
    made = plan.Plan("v5e:2x2", {"data": 4}, plan.CHIPS["v5e"], {"parameters": 16384}, 1, (program,))
    assert not made.fits
    assert "refused by the compiler: Ran out of memory" in plan.report(made) and "micro_batches" in plan.report(made)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        plan._compile("update", Refusing("INTERNAL: no"), (x,), 2)


@pytest.mark.parametrize(
    ("topology", "said"), [("v9:2x2", "one of v4, v5e"), ("v5e", "and sizes"), ("v5e:0x4", "sizes"), ("", "sizes")]
)
def test_slices_that_do_not_exist_are_refused(topology, said):
    with pytest.raises(ConfigError, match=said):
        plan.parse_topology(topology)
    assert plan.parse_topology("v5p:2x2x4")[1] == 16


def test_a_mesh_that_does_not_fit_the_slice_is_refused():
    config = forkme.get_config("runlocal")
    config.mesh.data = 3
    with pytest.raises(ConfigError, match=r"config.mesh: .* there are 4"):
        plan.make_plan(config, jax.devices()[:4])


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu (extra `plan`) is not installed")
def test_the_tpu_compiler_agrees_on_the_bytes_of_the_state():
    config = small()
    config.mesh.fsdp = 2
    made = plan.make_plan(config, plan.described_devices("v5e:2x2"), "v5e:2x2")
    update = next(program for program in made.programs if program.name == "update")
    assert made.fits and update.arguments >= sum(made.state.values())
    assert math.prod(made.mesh.values()) == 4 and set(update.collectives) <= {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
    }
