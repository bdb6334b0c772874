"""Eight virtual CPU devices and a persistent compilation cache, set before JAX is imported."""

import gc
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests spend their time compiling, not computing.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    # Less time in the compiler: no tuned kernels, and code in one piece, as threads would only take turns on two cores.
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_use_xnnpack=false --xla_cpu_parallel_codegen_split_count=1 "
    + os.environ.get("XLA_FLAGS", "")
)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import hypothesis
import jax
import pytest

# Tracing makes many objects and few cycles: at the usual thresholds an eighth of the time goes into looking for them.
gc.set_threshold(20_000, 20, 50)

# Deadlines would time the compiler; derandomised, a failure is the same on every machine.
hypothesis.settings.register_profile("creditjax", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile("creditjax")


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs():
    """The programs of one module are of no use to the next, and of hundreds a process grows to several GB."""
    yield
    jax.clear_caches()
