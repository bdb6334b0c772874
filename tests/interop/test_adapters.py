"""Flat NumPy rows through estimators: the numbers of `estimate`, in the rows' order, whatever they come as."""

import subprocess
import sys

import jax
from jax import numpy as jnp
import numpy as np
import pytest

import creditjax
from creditjax import algebra, testing
from creditjax.algebra.estimate import _estimate
from creditjax.interop import numpy as credit
from creditjax.interop import rows

MASK = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 1]])


def flat(batch, order):
    """The rows of a batch ``[P, G, T]`` as keyword arrays in another order, and their ids."""
    p, g = batch.batch_shape
    ids = np.repeat(np.arange(p) * 1000 - 7, g)[order]
    names = [*(name for name in creditjax.trajectory.FIELDS if batch.get(name) is not None), *batch.signals]

    def one(name):
        x = np.asarray(batch.get(name))
        axes = testing.batches.axes_of(batch, name)
        if axes[:2] == ("P", "G"):
            return x.reshape(-1, *x.shape[2:])[order]
        return np.repeat(x, g, axis=0)[order] if axes[:1] == ("P",) else x

    return {name: one(name) for name in names}, ids


@pytest.mark.parametrize("name", ["grpo", "opo", "gae", "gigpo", "tempo", "remax", "reinforce_plus_plus", "a2tgpo"])
def test_rows_get_what_estimate_gives_their_batch(name):
    estimator = creditjax.recipe(name).estimator
    needs = {*algebra.needs(estimator), *estimator.uses}
    batch = testing.random_batch(3, (5, 3, 9), needs=needs)
    order = np.random.default_rng(0).permutation(15)
    arrays, ids = flat(batch, order)
    found = credit.credit(name, group_ids=ids, num_segments=batch.num_segments, **arrays)
    wanted = creditjax.estimate(estimator, batch)
    for mine, theirs in [(found.value, wanted.value), (found.valid, wanted.valid)]:
        np.testing.assert_allclose(mine, np.asarray(theirs).reshape(15, 9)[order], atol=2e-5)
    assert set(found.extras) == set(wanted.extras)
    assert found.value.flags.writeable and found.value.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "outcome", "ids", "wanted"),
    [
        ("dr_grpo", [1, 0, 2, 5, 5, 7], [0, 0, 0, 1, 1, 2], [0, -1, 1, 0, 0, 0]),
        ("rloo", [1, 0, 2, 5, 5, 7], [0, 0, 0, 1, 1, 2], [0, -1.5, 1.5, 0, 0, 0]),
        ("grpo", [1, 0, 2, 5, 5, 7], [0, 0, 0, 1, 1, 2], [0, -1, 1, 0, 0, 0]),
        ("dr_grpo", [1, 10, 3, 12], ["b", "a", "b", "a"], [-1, -1, 1, 1]),
        ("dr_grpo", [5, 1, 3], [2**60, 2**60 + 1, 2**60 + 1], [0, -1, 1]),
        ("grpo", [1, 0, np.nan, 1], [4, 4, 4, 4], [0.57735, -1.1547, 0, 0.57735]),
        ("grpo", [0.7, np.nan, np.nan], [4, 4, 4], [0, 0, 0]),
    ],
    ids=["C12 centred", "C12 rloo", "C12 grpo", "C13 interleaved", "C10 ids of 64 bits", "C16 unscored", "C16 alone"],
)
def test_ragged_and_interleaved_groups(name, outcome, ids, wanted):
    found = credit.function(name)(action_mask=np.ones((len(outcome), 1)), outcome=outcome, group_ids=ids)
    np.testing.assert_allclose(found[:, 0], wanted, atol=2e-5)


def test_what_lies_under_the_mask_is_not_read():
    value = np.array([[0.2, 0.4, np.nan], [0.2, 0.4, np.inf]])
    gae = credit.function("gae", whiten=False)
    found = gae(action_mask=[[1, 1, 0], [1, 1, 0]], reward=[[0, 1, 0], [0, 1, 0]], value=value, group_ids=[0, 1])
    np.testing.assert_allclose(found, [[0.8, 0.6, 0], [0.8, 0.6, 0]], atol=1e-6)


@pytest.mark.parametrize(
    "cast",
    [
        lambda x: x.astype(np.float64),
        lambda x: x.astype(np.int64),
        lambda x: x.astype(jnp.bfloat16),
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: np.asfortranarray(x),
        lambda x: x.tolist(),
        lambda x: jnp.asarray(x),
    ],
    ids=["float64", "int64", "bfloat16", "strided", "column-major", "list", "jax"],
)
def test_any_kind_of_array(cast):
    reward, value = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 2], [0, 0, 4.0]]), np.ones((4, 3))
    estimator = creditjax.chain(algebra.rewards(), algebra.gae(gamma=0.5, lam=0.5))
    found = credit.credit(
        estimator, action_mask=cast(MASK), reward=cast(reward), value=cast(value), group_ids=np.zeros(4, np.int16)
    )
    wanted = credit.credit(estimator, action_mask=MASK > 0, reward=reward, value=value, group_ids=[0] * 4)
    np.testing.assert_array_equal(found.value, wanted.value)
    assert found.value.dtype == np.float32


def test_batches_of_varying_shapes_share_programs():
    advantages = credit.function(creditjax.chain(algebra.outcome(), algebra.group_center()))

    def run(lengths):
        rng = np.random.default_rng(0)
        for n, length in lengths:
            ids = np.arange(n) % 5
            advantages(action_mask=np.ones((n, length)), outcome=rng.random(n), group_ids=ids)

    run([(20, 100)])
    before = _estimate._cache_size()
    run([(18, 97), (20, 128), (16, 111), (19, 105)])
    assert _estimate._cache_size() == before
    run([(20, 129)])
    assert _estimate._cache_size() == before + 1


def test_shapes_can_be_kept():
    made = rows.compute(algebra.outcome(), {"action_mask": MASK[:, :2], "outcome": np.ones(4)}, [0, 1, 2, 3])
    assert made.credit.value.shape == (4, 1, 2)
    arrays = {"action_mask": np.ones((5, 5)), "outcome": np.ones(5)}
    rounded = rows.compute(algebra.outcome(), arrays, [0] * 5)
    kept = rows.compute(algebra.outcome(), arrays, [0] * 5, exact_shapes=True)
    assert rounded.credit.value.shape == (1, 6, 6) and kept.credit.value.shape == (1, 5, 5)


def test_rows_in_order_are_not_copied():
    reward = np.ones((8, 16), np.float32)
    batch = creditjax.Trajectory(np.zeros((8, 16), np.int32), np.ones((8, 16), bool), np.ones(8, np.float32), reward)
    ids = np.repeat(np.arange(2), 4)
    laid = rows._batch(batch, rows._places(ids, rows.round_up), 16, 0)
    assert np.shares_memory(laid.reward, reward)
    shuffled = rows._batch(batch, rows._places(np.arange(8) % 2, rows.round_up), 16, 0)
    assert shuffled.reward.shape == (2, 4, 16) and not np.shares_memory(shuffled.reward, reward)


def test_signals_of_prompts_and_of_the_batch():
    arrays = {"action_mask": MASK, "outcome": [1.0, 0, 0, 1], "group_ids": [0, 1, 0, 1]}
    found = credit.function("remax")(greedy_outcome=[0.5, 0.25, 0.5, 0.25], **arrays)
    np.testing.assert_allclose(found.sum(axis=1) / MASK.sum(axis=1), [0.5, -0.25, -0.5, 0.75])
    with pytest.raises(ValueError, match="greedy_outcome: 0.5 in row 0 and 0.75 in row 2, wanted one value"):
        credit.function("remax")(greedy_outcome=[0.5, 0.25, 0.75, 0.25], **arrays)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"action_mask": None}, ValueError, "action_mask: absent"),
        ({"action_mask": MASK[0]}, ValueError, r"action_mask: shape \[3\], wanted \[N, T\]"),
        ({"action_mask": MASK * 0.5}, ValueError, "action_mask: values between 0 and 1|action_mask: value 0.5"),
        ({"action_mask": MASK * 2}, ValueError, "action_mask: value 2, wanted flags"),
        ({"outcome": None}, ValueError, "outcome: absent, wanted float32"),
        ({"outcome": [1.0, 2.0]}, ValueError, r"outcome: shape \[2\], wanted \[4\]"),
        ({"outcome": ["a"] * 4}, TypeError, "outcome: dtype"),
        ({"group_ids": [0, 1]}, ValueError, "group_ids: int64 .*, wanted 4 integers or strings"),
        ({"group_ids": [0.0, 1, 2, 3]}, ValueError, "group_ids: float64 .*, wanted 4 integers or strings"),
        ({"values": np.ones((4, 3))}, KeyError, "values"),
        ({"token": np.ones((4, 3))}, KeyError, "not declared"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_bad_rows_are_told_apart(changed, error, message):
    given = {"action_mask": MASK, "outcome": np.ones(4), "group_ids": [0, 0, 1, 1]} | changed
    with pytest.raises(error, match=message):
        credit.credit("grpo", **given)


def test_estimators_that_are_none():
    with pytest.raises(KeyError, match="grpo"):
        credit.function("grpoo")
    with pytest.raises(TypeError, match="only the name of a recipe takes hyperparameters"):
        credit.function(algebra.outcome(), eps=1.0)
    with pytest.raises(TypeError, match="wanted the name of a recipe"):
        credit.function(3)


def test_tokens_are_asked_for_where_they_are_compared():
    given = {"action_mask": MASK, "outcome": [1.0, 0, 0, 1], "group_ids": [0, 0, 0, 0]}
    with pytest.raises(ValueError, match="tokens: absent, but this estimator compares them"):
        credit.credit("tempo", **given)
    np.testing.assert_array_equal(
        credit.credit("grpo", **given).value, credit.credit("grpo", tokens=MASK, **given).value
    )


def test_a_process_without_other_jax_code():
    code = (
        "import numpy, creditjax.interop.numpy as credit\n"
        "assert numpy.__name__ == 'numpy' and hasattr(numpy, 'linalg')\n"
        "f = credit.function('rloo')\n"
        "print(f(action_mask=numpy.ones((2, 1)), outcome=[1.0, 0.0], group_ids=['x', 'x']).tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[[1.0], [-1.0]]"


def test_under_64_bit_types_and_a_transfer_guard():
    given = {"action_mask": MASK, "outcome": [1.0, 0, 0, 1], "group_ids": [0, 0, 1, 1]}
    wanted = credit.credit("grpo", **given).value
    with jax.enable_x64(True), jax.transfer_guard("disallow"):
        found = credit.credit("grpo", **given).value
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.int64, np.float64])
def test_rewards_of_any_precision_are_summed_as_they_are(dtype):
    # In half precision 2048 + 1 is 2048, and 40,000 + 40,000 an infinity.
    for reward, wanted in (([[2048, 1], [1, 1]], 2047.0), ([[39936, 39936], [0, 0]], 79872.0)):
        found = credit.credit(
            "rloo", group_ids=[0, 0], action_mask=np.ones((2, 2)), reward=np.array(reward).astype(dtype)
        )
        np.testing.assert_array_equal(found.value, [[wanted] * 2, [-wanted] * 2])


def test_what_is_no_flag_number_or_name_is_named():
    given = {"action_mask": np.ones((2, 2)), "reward": np.ones((2, 2)), "group_ids": [0, 0]}
    for change, said in [
        ({"group_ids": np.array([{}, {}])}, "group_ids: unhashable type: 'dict', wanted integers or strings"),
        ({"action_mask": [["a", "b"]] * 2}, "action_mask: dtype <U1, wanted flags"),
        ({"reward": [["a", "b"]] * 2}, "reward: dtype <U1, wanted float32"),
    ]:
        with pytest.raises(TypeError, match=said):
            credit.credit("rloo", **{**given, **change})
