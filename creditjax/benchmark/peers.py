"""The same work in other libraries, where they are importable: on the same arrays, cores and token rewards.

rlax and tunix run jitted, on rows; verl runs in torch with the threads that torch takes. What each computes differs in
what a mask means and in whitening, and the differences are in their favour: rlax knows no masks, and nothing here moves
data between the libraries while the clock runs.
"""

from collections.abc import Callable
import importlib
import os
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.benchmark.synthetic import synthetic_batch

GAMMA, LAM = 0.99, 0.95

Calls = dict[str, Callable[[], Any]]


def _import(name: str):
    """The module, or None if it or something that it needs is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def calls(name: str, shape: tuple[int, int, int]) -> Calls:
    """Peers' calls for a kernel or recipe of this name, by library; empty where none is installed.

    Args:
      name: "gae", "vtrace" or "grpo"; anything else has no peer.
      shape: ``(P, G, T)``.
    """
    found: Calls = {}
    for library, of in (("rlax", _rlax), ("tunix", _tunix), ("verl", _verl)):
        if call := of(name, shape):
            found |= {f"{library}{suffix}": fn for suffix, fn in call.items()}
    return found


def _rows(shape: tuple[int, int, int], *names: str) -> list[np.ndarray]:
    signals = tuple(name for name in names if name in ("value", "logprob_current"))
    batch = synthetic_batch(shape, signals)
    return [np.asarray(batch.get(name)).reshape(-1, shape[2]) for name in names]


def _rlax(name: str, shape: tuple[int, int, int]) -> Calls:
    if name not in ("gae", "vtrace") or (rlax := _import("rlax")) is None:
        return {}
    reward, value, current, behaviour, ended = (
        jnp.asarray(x) for x in _rows(shape, "reward", "value", "logprob_current", "logprob", "terminated")
    )
    discount = jnp.where(ended, 0.0, GAMMA)
    values = jnp.pad(value, ((0, 0), (0, 1)))
    if name == "gae":
        fn = jax.jit(jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=(0, 0, None, 0)))
        return {"": lambda: fn(reward, discount, LAM, values)}
    rho = jnp.exp(current - behaviour)
    fn = jax.jit(jax.vmap(lambda v, r, d, w: rlax.vtrace_td_error_and_advantage(v[:-1], v[1:], r, d, w, LAM)))
    return {"": lambda: fn(values, reward, discount, rho)}


def _tunix(name: str, shape: tuple[int, int, int]) -> Calls:
    if name not in ("gae", "grpo") or (core := _import("tunix.rl.algo_core")) is None:
        return {}
    reward, value, mask = _rows(shape, "reward", "value", "action_mask")
    if name == "gae":
        fn = jax.jit(lambda r, v, m: core.compute_gae_advantages(r, v, m, GAMMA, LAM))
        arrays = [jnp.asarray(x) for x in (reward, value, mask.astype(np.float32))]
        return {"": lambda: fn(*arrays)}
    # Its function takes scalar rewards on the host; from token rewards, as everywhere here, they are summed first.
    return {"": lambda: core.compute_advantages(reward.sum(axis=-1), shape[1])[:, None] * mask}


def _verl(name: str, shape: tuple[int, int, int]) -> Calls:
    if name not in ("gae", "grpo") or (core := _import("verl.trainer.ppo.core_algos")) is None:
        return {}
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    reward, value, mask = (torch.from_numpy(x.copy()) for x in _rows(shape, "reward", "value", "action_mask"))
    mask = mask.float()
    if name == "gae":
        return {"": lambda: core.compute_gae_advantage_return(reward, value, mask, GAMMA, LAM)}
    index = np.repeat(np.arange(shape[0]), shape[1]).astype(str).astype(object)
    found = {"": lambda: core.compute_grpo_outcome_advantage(reward, mask, index)}
    if hasattr(core, "compute_grpo_vectorized_outcome_advantage"):
        found[" (vectorised)"] = lambda: core.compute_grpo_vectorized_outcome_advantage(reward, mask, index)
    return found
