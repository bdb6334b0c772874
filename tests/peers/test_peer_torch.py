"""Torch tensors through estimators, whatever dtype, layout or device they come in."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; `make peers` has it")

import creditjax
from creditjax import algebra
from creditjax.interop import numpy as credit_of_arrays
from creditjax.interop import rows
from creditjax.interop import torch as credit

MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 1, 1]])
VALUE = torch.tensor([[0.5, 0.25, float("nan")], [1, 2, 3], [0.5, 0.5, 1], [0, 0.25, 0.5]])
OUTCOME = torch.tensor([1.0, 0.0, 2.0, 0.0])
IDS = np.array(["b", "a", "b", "a"], object)


def run(module, **changed):
    given = {"action_mask": MASK, "value": VALUE, "outcome": OUTCOME, "group_ids": IDS} | changed
    return module.credit("gae", **given)


def test_tensors_get_what_arrays_get():
    found = run(credit)
    wanted = run(credit_of_arrays, action_mask=MASK.numpy(), value=VALUE.numpy(), outcome=OUTCOME.numpy())
    for mine, theirs in [(found.value, wanted.value), (found.valid, wanted.valid)]:
        assert isinstance(mine, torch.Tensor) and mine.is_contiguous()
        np.testing.assert_array_equal(mine.numpy(), theirs)
    np.testing.assert_array_equal(found.extras["value_target"].numpy(), wanted.extras["value_target"])
    found.value.mul_(2.0)  # nobody else holds this memory
    np.testing.assert_array_equal(run(credit).value.numpy(), wanted.value)


@pytest.mark.parametrize(
    "cast",
    [
        lambda x: x.double(),
        lambda x: x.bfloat16(),
        lambda x: x.half(),
        lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
        lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
        lambda x: x.t().contiguous().t() if x.dim() == 2 else x,
        lambda x: x.numpy(),
        lambda x: x.tolist(),
    ],
    ids=["float64", "bfloat16", "float16", "strided", "requires_grad", "transposed", "numpy", "list"],
)
def test_any_kind_of_tensor(cast):
    found = run(credit, action_mask=cast(MASK), value=cast(VALUE), outcome=cast(OUTCOME))
    np.testing.assert_array_equal(found.value.numpy(), run(credit).value.numpy())
    assert found.value.dtype == torch.float32 and not found.value.requires_grad


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16])
def test_masks_of_any_kind(dtype):
    np.testing.assert_array_equal(run(credit, action_mask=MASK.to(dtype)).value.numpy(), run(credit).value.numpy())


def test_ids_as_a_tensor():
    ids = torch.tensor([2**40, 5, 2**40, 5])
    np.testing.assert_array_equal(run(credit, group_ids=ids).value.numpy(), run(credit).value.numpy())


def test_tensors_elsewhere_are_refused():
    with pytest.raises(TypeError, match=r"value: a tensor on meta, wanted one on the CPU.*call \.cpu\(\)"):
        run(credit, value=VALUE.to("meta"))
    with pytest.raises(TypeError, match="action_mask: torch.int64, torch.sparse_coo"):
        run(credit, action_mask=MASK.to_sparse())


def test_rows_that_fit_are_neither_copied_in_nor_out(monkeypatch):
    value, mask = torch.rand(8, 16), torch.ones(8, 16, dtype=torch.bool)
    seen = []
    estimate = algebra.estimate
    monkeypatch.setattr(rows, "_batch", lambda *args, batch=rows._batch: seen.append(batch(*args)) or seen[-1])
    monkeypatch.setattr(algebra, "estimate", lambda *args, **kwargs: seen.append(estimate(*args, **kwargs)) or seen[-1])
    estimator = creditjax.chain(algebra.rewards(), algebra.gae())
    given = {"tokens": torch.zeros(8, 16, dtype=torch.int32), "action_mask": mask, "outcome": torch.ones(8)}
    found = credit.credit(estimator, value=value, group_ids=[0] * 4 + [1] * 4, **given)
    batch, made = seen
    assert np.shares_memory(batch.signals["value"], value.numpy())
    assert found.value.data_ptr() == made.value.unsafe_buffer_pointer()


def test_a_process_without_other_jax_code():
    code = (
        "import torch, creditjax.interop.torch as credit\n"
        "assert torch.__name__ == 'torch' and hasattr(torch, 'nn')\n"
        "f = credit.function('rloo')\n"
        "print(f(action_mask=torch.ones(2, 1), outcome=torch.tensor([1.0, 0.0]), group_ids=['x', 'x']).tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[[1.0], [-1.0]]"
