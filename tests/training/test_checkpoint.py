import os
import pathlib
import shutil

import jax
from jax import numpy as jnp
import numpy as np
import optax
import pytest

from creditjax.models.control import MLPPolicy
from creditjax.training import checkpoint
from creditjax.training import mesh as mesh_lib
from creditjax.training import state as state_lib

POLICY, OPTIMIZER = MLPPolicy(num_actions=3, observation_size=8, hidden=(16,)), optax.adam(1e-3)


@pytest.fixture(scope="module")
def mesh():
    return mesh_lib.make_mesh({"fsdp": 8})


@pytest.fixture(scope="module")
def abstract(mesh):
    return state_lib.abstract_state(mesh, POLICY, OPTIMIZER, True)


@pytest.fixture(scope="module")
def first(mesh):
    return state_lib.init_state(mesh, POLICY, OPTIMIZER, 0, True)


@pytest.fixture(scope="module")
def advance(first, mesh):
    places = state_lib.state_shardings(mesh, first)
    return jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), out_shardings=places, donate_argnums=0)


def save_three(directory, first, advance):
    """Checkpoints of steps 1, 2, 3 whose states are donated right after each save; returns them on the host."""
    checkpoints = checkpoint.Checkpointer(directory, keep_last=2, keep_best=1)
    state, saved = jax.tree.map(jnp.copy, first), {}
    for step, score in ((1, 0.5), (2, 0.9), (3, 0.7)):
        state = advance(state)
        saved[step] = jax.tree.map(np.array, state)
        checkpoints.save(step, state)
        checkpoints.save_best(step, state.params, score)
        state = advance(state)  # overwrites the buffers that are still being written
    checkpoints.close()
    return saved


def test_saving_keeps_last_and_best_apart_and_survives_donation(tmp_path, first, advance, abstract):
    saved = save_three(tmp_path, first, advance)
    again = checkpoint.Checkpointer(tmp_path, keep_last=2, keep_best=1)
    assert (again.latest, again.best) == (3, 2)
    assert sorted(os.listdir(tmp_path / "last")) == ["2", "3"]
    restored = again.restore(abstract)
    assert checkpoint.same(restored, saved[3])
    assert jax.tree.all(jax.tree.map(lambda x, a: x.sharding == a.sharding, restored, abstract))
    assert checkpoint.same(again.restore_best(abstract.params), saved[2].params)
    again.close()


def test_restoring_onto_another_mesh(tmp_path, first, advance):
    saved = save_three(tmp_path, first, advance)
    other = mesh_lib.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    again = checkpoint.Checkpointer(tmp_path)
    assert checkpoint.same(again.restore(state_lib.abstract_state(other, POLICY, OPTIMIZER, True)), saved[3])
    again.close()


def data_files(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(file for file in directory.glob("**/d/*") if file.is_file())


def flip_a_bit(file: pathlib.Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x40
    file.write_bytes(data)


def corrupt(directory: pathlib.Path, how: str) -> None:
    """Damages every data file of a checkpoint, or its metadata."""
    for file in data_files(directory):
        if how == "truncated":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        elif how == "flipped":
            flip_a_bit(file)
        elif how == "missing":
            file.unlink()
    if how == "metadata":
        next(directory.glob("**/_METADATA")).write_text("{")


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing", "metadata"])
def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(tmp_path, first, advance, abstract, how, caplog):
    saved = save_three(tmp_path, first, advance)
    corrupt(tmp_path / "last" / "3", how)
    again = checkpoint.Checkpointer(tmp_path)
    with caplog.at_level("WARNING"):
        restored = again.restore(abstract)
    assert checkpoint.same(restored, saved[2])
    assert "Checkpoint 3 cannot be read and is set aside" in caplog.text
    assert (tmp_path / "damaged" / "3").is_dir()
    # The step can be saved again.
    again.save(3, restored)
    again.wait()
    assert checkpoint.same(again.restore(abstract), saved[2])
    again.close()


def test_one_flipped_bit_anywhere_never_gives_other_numbers(tmp_path, first, advance, abstract):
    # Which of its data files a checkpoint still reads, and which were written over by a later one, differs from save
    # to save; the promise does not.
    saved = save_three(tmp_path / "whole", first, advance)
    files = [file.relative_to(tmp_path) for file in data_files(tmp_path / "whole" / "last" / "3")]
    fell_back = 0
    for i, file in enumerate(files):
        copy = tmp_path / str(i)
        shutil.copytree(tmp_path / "whole", copy)
        flip_a_bit(copy / file.relative_to("whole"))
        again = checkpoint.Checkpointer(copy)
        restored = again.restore(abstract)
        damaged = (copy / "damaged" / "3").is_dir()
        assert checkpoint.same(restored, saved[2 if damaged else 3]), file
        fell_back += damaged
        again.close()
    assert fell_back


def test_nothing_readable_is_an_error_and_nothing_there_is_none(tmp_path, first, advance, abstract):
    empty = checkpoint.Checkpointer(tmp_path / "empty")
    assert empty.restore(abstract) is None
    empty.close()
    save_three(tmp_path / "bad", first, advance)
    for step in ("2", "3"):
        corrupt(tmp_path / "bad" / "last" / step, "metadata")
    bad = checkpoint.Checkpointer(tmp_path / "bad")
    with pytest.raises(RuntimeError, match="no checkpoint under .* can be read: 3: .*; 2: "):
        bad.restore(abstract)
    bad.close()


def test_resuming_earlier_removes_best_checkpoints_of_the_future(tmp_path, first, advance, abstract):
    saved = save_three(tmp_path, first, advance)
    again = checkpoint.Checkpointer(tmp_path)
    again.save_best(5, jax.tree.map(jnp.copy, first.params), 0.95)
    again.wait()
    assert again.best == 5
    assert checkpoint.same(again.restore(abstract), saved[3])
    assert again.best is None or again.best <= 3
    again.close()


def test_every_single_bit_is_in_the_fingerprint():
    leaves = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "n": np.int32(5)}
    before = np.asarray(checkpoint.fingerprint(leaves))
    for index in range(12):
        for bit in (0, 13, 31):
            changed = leaves["w"].view(np.uint32).copy()
            changed.ravel()[index] ^= np.uint32(1 << bit)
            after = np.asarray(checkpoint.fingerprint({**leaves, "w": changed.view(np.float32)}))
            assert (after != before).tolist() == [False, True]
    assert (np.asarray(checkpoint.fingerprint({**leaves, "n": np.int32(6)})) != before).tolist() == [True, False]
