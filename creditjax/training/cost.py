"""What a program costs, read from the program: matrix products from its jaxpr, collectives from its compiled text.

XLA's own cost analysis counts the body of a loop once. Here it counts as often as the loop runs, or may run at most.
"""

from collections.abc import Callable, Iterator
import math
import re
from typing import Any, NamedTuple

import jax

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
_BYTES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8, "s4": 1, "u4": 1, "f8e4m3fn": 1, "f8e5m2": 1}


def matmul_flops(function: Callable[..., Any], *arguments: Any) -> float:
    """Floating-point operations of the matrix products of ``function(*arguments)``, over all devices together.

    A product ``[M, K] [K, N]`` counts ``2 M N K``. A `while` loop runs as often as the largest integer that its
    condition compares with, once if there is none; of the branches of a `cond` the dearest counts.

    >>> import jax.numpy as jnp
    >>> matmul_flops(lambda x: jax.lax.scan(lambda c, _: (c @ x, None), x, None, length=3)[0], jnp.ones((4, 4)))
    384.0
    """
    return _flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _flops(jaxpr: Any) -> float:
    total = 0.0
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            total += 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[d] for d in contracted)
        elif name == "scan":
            total += params["length"] * _flops(params["jaxpr"].jaxpr)
        elif name == "while":
            total += _bound(params["cond_jaxpr"].jaxpr) * _flops(params["body_jaxpr"].jaxpr)
        elif name == "cond":
            total += max(_flops(branch.jaxpr) for branch in params["branches"])
        elif name == "shard_map":
            total += params["mesh"].size * sum(map(_flops, _inner(params)))
        else:
            total += sum(map(_flops, _inner(params)))
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs that an equation calls."""
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part


def _bound(condition: Any) -> int:
    literals = [
        int(x.val)
        for eqn in condition.eqns
        if eqn.primitive.name == "lt"
        for x in eqn.invars
        if hasattr(x, "val") and not x.aval.shape and jax.numpy.issubdtype(x.aval.dtype, jax.numpy.integer)
    ]
    return max(literals, default=1)


class Collective(NamedTuple):
    """Collective operations of one kind in a program.

    Attributes:
      count: how often one is run.
      bytes: what one device receives in all of them, results of the operations as they are laid out.
    """

    count: int
    bytes: int


def collectives(text: str) -> dict[str, Collective]:
    """Collectives by kind in the text of a compiled program, loops counted.

    A loop counts as often as the one integer that its condition holds; once if that is not one.

    Args:
      text: ``compiled.as_text()``.

    >>> collectives('''ENTRY %main (x: f32[4]) -> f32[4] {
    ...   %x = f32[4]{0} parameter(0)
    ...   ROOT %sum = f32[4]{0} all-reduce(%x), to_apply=%add
    ... }''')
    {'all-reduce': Collective(count=1, bytes=16)}
    """
    bodies = _computations(text)
    runs = dict.fromkeys(bodies, 0)
    entry = next(name for name, (is_entry, _) in bodies.items() if is_entry)
    _visit(entry, 1, bodies, runs)
    found: dict[str, Collective] = {}
    for name, (_, lines) in bodies.items():
        for line in lines if runs[name] else ():
            if match := re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(", line):
                shape, kind, started = match.groups()
                # The result of an asynchronous start holds the operands too.
                size = _size(shape) // (2 if started and kind != "all-reduce" else 1)
                before = found.get(kind, Collective(0, 0))
                found[kind] = Collective(before.count + runs[name], before.bytes + runs[name] * size)
    return found


def _computations(text: str) -> dict[str, tuple[bool, list[str]]]:
    """Name of each computation → whether it is the entry, and its lines."""
    found: dict[str, tuple[bool, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{\s*$", line):
            lines = []
            found[match[2]] = (match[1] is not None, lines)
        elif line.startswith("  "):
            lines.append(line)
    return found


def _visit(name: str, times: int, bodies: dict[str, tuple[bool, list[str]]], runs: dict[str, int]) -> None:
    runs[name] += times
    for line in bodies[name][1]:
        if loop := re.search(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)", line):
            known = re.search(r"\"known_trip_count\":\{\"n\":\"(\d+)\"", line)
            trips = int(known[1]) if known else _trips(bodies[loop[1]][1])
            _visit(loop[2], times * trips, bodies, runs)
            continue
        for group in re.findall(
            r"(?:calls|to_apply|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.-]+)", line
        ):
            for called in re.findall(r"[\w.-]+", group):
                if called in bodies:
                    _visit(called, times, bodies, runs)


def _trips(condition: list[str]) -> int:
    numbers = {int(n) for line in condition for n in re.findall(r"= s32\[\]\S* constant\((\d+)\)", line)}
    return numbers.pop() if len(numbers) == 1 else 1


def _size(shape: str) -> int:
    total = 0
    for kind, dims in re.findall(r"([a-z]+\d*\w*)\[([\d,]*)\]", shape):
        if kind in _BYTES:
            total += _BYTES[kind] * math.prod(int(d) for d in dims.split(",") if d)
    return total
