"""What a run needs of a TPU slice, before anybody pays for one: its programs, compiled for the slice on this machine.

The compiler is the real one (the package libtpu, extra `plan`); nothing can be run this way. How long a step takes is
bounded from below by what the chip can do at most, and not predicted.
"""

from collections.abc import Iterator, Mapping
import math
import os
import re
import time
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict
import numpy as np

from creditjax.training import config as config_lib
from creditjax.training import cost, loop
from creditjax.training import mesh as mesh_lib


class Chip(NamedTuple):
    """One chip, as its maker describes it (cloud.google.com/tpu/docs).

    Attributes:
      accelerator: what libtpu calls a slice of it, with the number of `cores` behind.
      cores: that libtpu counts in a chip.
      memory: bytes.
      flops: peak of bfloat16 products a second.
      bandwidth: bytes a second between memory and chip.
      links: bytes a second to other chips, all links together.
    """

    accelerator: str
    cores: int
    memory: float
    flops: float
    bandwidth: float
    links: float


CHIPS = {
    "v4": Chip("v4", 2, 32 * 2**30, 275e12, 1228e9, 300e9),
    "v5e": Chip("v5litepod", 1, 16 * 2**30, 197e12, 819e9, 200e9),
    "v5p": Chip("v5p", 2, 95 * 2**30, 459e12, 2765e9, 600e9),
    "v6e": Chip("v6e", 1, 32 * 2**30, 918e12, 1640e9, 448e9),
}


class Program(NamedTuple):
    """A compiled program on one device.

    Attributes:
      name: what it is.
      seconds: that compiling took here.
      arguments, outputs, reused, temporary, code: bytes; `reused` is the part of the outputs that lies in arguments.
      flops: of matrix products, in one call.
      traffic: bytes between memory and chip, by XLA's count, which has loops run once.
      collectives: kind → how often and how many bytes in one call.
      refused: what the compiler says if the program has no room. Its outputs, code, traffic and collectives are then
        unknown, 0 here.
    """

    name: str
    seconds: float
    arguments: int
    outputs: int
    reused: int
    temporary: int
    code: int
    flops: float
    traffic: float
    collectives: Mapping[str, cost.Collective]
    refused: str = ""

    @property
    def peak(self) -> int:
        """Bytes while it runs."""
        return self.arguments + self.outputs - self.reused + self.temporary + self.code


class Plan(NamedTuple):
    """What a run needs of a slice.

    Attributes:
      topology: "v5e:4x4".
      mesh: axis → devices.
      chip: the chip, None for devices that are no TPU.
      state: part of the training state → bytes on one device.
      batch: bytes of a batch of rollouts on one device.
      programs: those of one step.
    """

    topology: str
    mesh: Mapping[str, int]
    chip: Chip | None
    state: Mapping[str, int]
    batch: int
    programs: tuple[Program, ...]

    @property
    def fits(self) -> bool:
        """Whether every program has room."""
        if any(program.refused for program in self.programs):
            return False
        return self.chip is None or all(program.peak <= self.chip.memory for program in self.programs)


def parse_topology(topology: str) -> tuple[Chip, int]:
    """The chip and the number of chips of "v5e:16x16".

    Raises:
      ConfigError: another chip, or no sizes.

    >>> parse_topology("v5e:4x4")[1]
    16
    """
    name, _, sizes = topology.partition(":")
    if name not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", sizes):
        raise config_lib.ConfigError(f"--plan: {topology!r}, wanted one of {', '.join(CHIPS)} and sizes, as v5e:4x4")
    return CHIPS[name], math.prod(map(int, sizes.split("x")))


def described_devices(topology: str) -> list[Any]:
    """The devices of a slice that is not there. Call it before anything else has used JAX.

    Raises:
      ConfigError: no such slice, or libtpu is not installed.
    """
    chip, count = parse_topology(topology)
    # What libtpu would otherwise ask the network for.
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ["TPU_ACCELERATOR_TYPE"] = f"{chip.accelerator}-{count * chip.cores}"
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    except Exception as error:  # noqa: BLE001  # whatever type the plugin raises
        missing = "" if _has_libtpu() else "libtpu is not installed: pip install 'creditjax[plan]'"
        raise config_lib.ConfigError(f"--plan: {topology!r}: {missing or error}") from error


def _has_libtpu() -> bool:
    import importlib.util

    return importlib.util.find_spec("libtpu") is not None


def make_plan(config: ConfigDict, devices: list[Any], topology: str = "", say=lambda line: None) -> Plan:
    """Compiles the programs of one step for devices that need not be there.

    Args:
      config: of the run, with its mesh.
      devices: all of the slice.
      topology: its name, for the report and for what the chip can do.
      say: receives a line before each program.

    Raises:
      ConfigError: the config is refused, or does not fit the number of devices.
    """
    try:
        mesh = mesh_lib.make_mesh(config_lib.mesh_shape(config), devices)
    except ValueError as error:
        raise config_lib.ConfigError(f"config.{error}") from error
    programs = loop.Programs(config, config_lib.check_config(config, mesh_lib.batch_shards(mesh)), mesh)
    programs.check_signals()
    made = []
    for name, function, arguments in _programs(programs):
        say(f"compiling the {name} for {len(devices)} devices")
        made.append(_compile(name, function, arguments, len(devices)))
    state = programs.abstract
    parts = {
        "parameters": state.params,
        "optimiser": state.opt_state,
        "reference": state.reference,
        "learned models": state.extra,
        "replay": state.replay,
    }
    held = {name: size for name, tree in parts.items() if (size := _bytes(tree))}
    chip = parse_topology(topology)[0] if topology else None
    return Plan(topology, dict(mesh.shape), chip, held, _bytes(_batch(programs)), tuple(made))


def _programs(programs: loop.Programs) -> Iterator[tuple[str, Any, tuple]]:
    """Name, jitted function and shapes of every program of a step."""
    state, mesh, rows = programs.abstract, programs.mesh, programs.config.batch.prompts
    key = jax.eval_shape(lambda: jax.random.key(0))
    prompts = _rows(mesh, rows, programs.task.prompts("train", 0, 1))
    yield "rollout", programs.rollout, (state.params, prompts, key)
    number = jax.ShapeDtypeStruct((), np.int32)
    recipe = (_same(mesh, programs.recipe.estimator), _same(mesh, programs.recipe.objective))
    yield "update", programs.update, (state, _batch(programs), *recipe, number)
    if programs.config.warm_start.steps:
        gold = _rows(mesh, programs.config.warm_start.prompts, programs.task.gold("train", 0, 1))
        yield "supervised step", programs.imitate, (state, gold, number)


def _batch(programs: loop.Programs) -> Any:
    return _rows(programs.mesh, programs.config.batch.prompts, programs.example())


def _rows(mesh: jax.sharding.Mesh, rows: int, tree: Any) -> Any:
    """Shapes of the tree with so many rows, split as a batch is."""
    sharding = mesh_lib.batch_sharding(mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype, sharding=sharding), tree)


def _same(mesh: jax.sharding.Mesh, tree: Any) -> Any:
    sharding = mesh_lib.replicated(mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=sharding), tree)


def _bytes(tree: Any) -> int:
    """Bytes of one device."""
    total = 0
    for x in jax.tree.leaves(tree):
        shape = x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)
        total += math.prod(shape) * (16 if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize)
    return total


def _compile(name: str, function: Any, arguments: tuple, devices: int) -> Program:
    start = time.perf_counter()
    flops = cost.matmul_flops(function, *arguments) / devices
    try:
        compiled = function.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        said = str(error).splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")
        seconds, wanted = time.perf_counter() - start, re.search(r"temporaries \(([\d.]+)([KMG])\)", said)
        temporary = int(float(wanted[1]) * 2 ** {"K": 10, "M": 20, "G": 30}[wanted[2]]) if wanted else 0
        return Program(name, seconds, _bytes(arguments), 0, 0, temporary, 0, flops, 0.0, {}, said)
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    return Program(
        name,
        seconds,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        flops,
        float(compiled.cost_analysis().get("bytes accessed", 0.0)),
        cost.collectives(compiled.as_text()),
    )


def report(plan: Plan) -> str:
    """The plan as text: bytes, time at best, collectives, and what to change where it does not fit."""
    mesh = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    lines = [f"{plan.topology or 'devices'}: {math.prod(plan.mesh.values())} devices, mesh {mesh}", ""]
    lines += ["On one device"]
    lines += [f"  {name:<18}{_mib(size)}" for name, size in {**plan.state, "batch of rollouts": plan.batch}.items()]
    for program in plan.programs:
        lines += ["", f"{program.name.capitalize()}, {_mib(program.peak).strip()} while it runs"]
        if program.refused:
            lines.append(f"  refused by the compiler: {program.refused}")
        known = (
            ("arguments", "temporary") if program.refused else ("arguments", "outputs", "reused", "temporary", "code")
        )
        for name in known:
            lines.append(f"  {name:<18}{_mib(getattr(program, name))}")
        lines.append(f"  {'products':<18}{program.flops / 1e9:12,.3f} GFLOP")
        if not program.refused:
            lines.append(f"  {'memory traffic':<18}{_mib(int(program.traffic))}, loops counted once")
        for kind, found in sorted(program.collectives.items()):
            lines.append(f"  {kind:<18}{_mib(found.bytes)} in {found.count}")
        if plan.chip is not None:
            times = limits(program, plan.chip)
            slowest = max(times, key=times.get)  # type: ignore[arg-type]
            lines.append(f"  {'at best':<18}{times[slowest] * 1e3:12,.3f} ms, for {slowest}")
    if plan.chip is not None:
        lines += ["", f"Memory of a chip: {_mib(int(plan.chip.memory)).strip()}. " + _verdict(plan, plan.chip)]
    return "\n".join(lines)


def limits(program: Program, chip: Chip) -> dict[str, float]:
    """Seconds that each resource needs at its peak: no call is faster than the longest of them."""
    moved = sum(found.bytes for found in program.collectives.values())
    return {
        "products": program.flops / chip.flops,
        "memory traffic": program.traffic / chip.bandwidth,
        "collectives": moved / chip.links,
    }


def _verdict(plan: Plan, chip: Chip) -> str:
    worst = max(plan.programs, key=lambda program: (bool(program.refused), program.peak))
    if plan.fits:
        return f"Everything fits; the {worst.name} leaves {_mib(int(chip.memory) - worst.peak).strip()}."
    over = worst.peak - int(chip.memory)
    by = f", by {_mib(over).strip()}" if over > 0 else ""
    return f"The {worst.name} does not fit{by}. {_advice(plan, worst)}"


def _advice(plan: Plan, program: Program) -> str:
    """The knob that takes most off what is largest."""
    held = sum(plan.state.values())
    if held >= max(program.temporary, plan.batch):
        return "Most is state: raise config.mesh.fsdp, over which parameters and the optimiser are split."
    if program.name == "rollout":
        return "Most is the rollout's: lower config.batch.prompts or group_size, or take more devices along `data`."
    return "Most is what the update keeps for the gradient: raise config.batch.micro_batches."


def _mib(size: int) -> str:
    return f"{size / 2**20:12,.2f} MiB"
