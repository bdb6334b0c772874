"""Medians of interleaved runs, so that whatever else the machine does falls on all alike."""

from collections.abc import Callable, Mapping
import statistics
import time
from typing import Any

import jax


def medians(calls: Mapping[str, Callable[[], Any]], rounds: int, budget_s: float = 60.0) -> dict[str, float]:
    """Milliseconds of each call, the median over rounds in which every call runs once.

    Args:
      calls: what to time; a result that holds JAX arrays is waited for. Each is called once before, to compile.
      rounds: wanted number of rounds.
      budget_s: no further round starts after this many seconds (at least one is run).
    """
    for call in calls.values():
        jax.block_until_ready(call())
    times = {name: [] for name in calls}
    start = time.perf_counter()
    for done in range(rounds):
        if done and time.perf_counter() - start > budget_s:
            break
        for name, call in calls.items():
            began = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - began)
    return {name: 1e3 * statistics.median(seen) for name, seen in times.items()}
