import jax
from jax import numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from creditjax.models.transformer import PARAMETER_AXES
from creditjax.training import mesh as mesh_lib


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ({"data": -1}, (8, 1, 1)),
        ({"fsdp": 8}, (1, 8, 1)),
        ({"data": 2, "fsdp": -1, "tensor": 2}, (2, 2, 2)),
    ],
)
def test_mesh_sizes(shape, sizes):
    mesh = mesh_lib.make_mesh(shape)
    assert tuple(mesh.shape.values()) == sizes
    assert mesh.axis_names == ("data", "fsdp", "tensor")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"data": 3}, "makes 3 devices, there are 8"),
        ({"data": -1, "fsdp": -1}, "at most one"),
        ({"data": 0}, "positive"),
        ({"model": 2}, r"unknown axes \['model'\]"),
    ],
)
def test_mesh_errors(shape, message):
    with pytest.raises(ValueError, match=message):
        mesh_lib.make_mesh(shape)


def test_parameters_are_split_by_name_and_size():
    mesh = mesh_lib.make_mesh({"fsdp": 4, "tensor": 2})

    def spec(path, *shape):
        return mesh_lib.partition_spec(path, shape, mesh)

    assert spec("layers/attention/query/kernel", 4, 64, 32) == PartitionSpec(None, "fsdp", "tensor")
    assert spec("0/mu/layers/attention/output/kernel", 4, 32, 64) == PartitionSpec(None, "tensor", "fsdp")
    assert spec("layers/mlp/down/kernel", 4, 96, 64) == PartitionSpec(None, "tensor", "fsdp")
    assert spec("embed/embedding", 30, 64) == PartitionSpec("tensor", "fsdp")
    assert spec("value/kernel", 64, 1) == PartitionSpec("fsdp")
    # An axis that is no multiple stays whole; so do scalars.
    assert spec("embed/embedding", 31, 63) == PartitionSpec()
    assert spec("count") == PartitionSpec()


def test_every_named_parameter_has_a_rule_that_fits():
    mesh = mesh_lib.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    for path, axes in PARAMETER_AXES.items():
        spec = mesh_lib.partition_spec(f"0/nu/{path}", (8,) * len(axes), mesh)
        placed = [name for name in spec if name]
        assert "fsdp" in placed, path
        assert ("tensor" in placed) == bool(mesh_lib.TENSOR_AXES & set(axes)), path
        assert len(placed) == len(set(placed)), path


def test_rows_go_to_the_mesh_and_come_back():
    mesh = mesh_lib.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    tree = {"a": np.arange(24.0).reshape(8, 3), "b": np.arange(8)}
    placed = mesh_lib.from_local(mesh, 8, tree)
    assert placed["a"].sharding.shard_shape((8, 3)) == (2, 3)
    back = mesh_lib.to_local(placed)
    np.testing.assert_array_equal(back["a"], tree["a"])
    np.testing.assert_array_equal(back["b"], tree["b"])
    assert mesh_lib.local_rows(mesh, 8) == (0, 8)
    assert mesh_lib.batch_shards(mesh) == 4


def test_held_fraction_reads_the_shardings():
    mesh = mesh_lib.make_mesh({"fsdp": 8})
    tree = {"w": jnp.zeros((16, 8)), "odd": jnp.zeros((128,))}
    placed = jax.device_put(tree, mesh_lib.shardings(mesh, tree))
    assert mesh_lib.held_fraction(placed) == 1 / 8
    assert mesh_lib.held_fraction(tree) == 1.0
