"""Descriptions of sweeps: lists of overrides, each a dictionary from a dotted path of the config to a value.

Everything here is a pure function that gives the same list on every machine, and all of them combine:

    product(zipped({"recipe.name": ["grpo", "gae"], "recipe.eps_clip": [0.2, 0.1]}), {"seed": range(3)})    6 trials
    sample(20, 0, {"optimizer.learning_rate": log_uniform(1e-4, 1e-2)}) + [{"recipe.name": "rloo"}]         21 trials
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import hashlib
import math
import re
from typing import Any

import numpy as np

Overrides = dict[str, Any]
# From a number in [0, 1) to a value.
Distribution = Callable[[float], Any]
# What a description is made of: values by path, or another description.
Factor = Mapping[str, Iterable[Any]] | Sequence[Mapping[str, Any]]

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def product(*factors: Factor) -> list[Overrides]:
    """Every value of every path with every value of all others; the last path varies fastest.

    Args:
      *factors: mappings from a path to its values, and other descriptions, each of whose overrides is one value.

    Raises:
      ValueError: a path that is none, has no values, or is set by two factors.

    >>> product({"recipe.name": ["grpo", "rloo"], "seed": range(2)})[1:3]
    [{'recipe.name': 'grpo', 'seed': 1}, {'recipe.name': 'rloo', 'seed': 0}]
    """
    made: list[Overrides] = [{}]
    for columns in _columns(factors):
        made = [_joined(a, b) for a in made for b in columns]
    return made


def zipped(*factors: Factor) -> list[Overrides]:
    """The first value of every path together, then the second, and so on.

    Raises:
      ValueError: as :func:`product`, and paths with different numbers of values.

    >>> zipped({"batch.prompts": [16, 64], "optimizer.learning_rate": [3e-4, 1e-3]})[1]
    {'batch.prompts': 64, 'optimizer.learning_rate': 0.001}
    """
    columns = _columns(factors)
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{len(column)} of {_paths(column)}" for column in columns)
        raise ValueError(f"zipped: found {lengths}, wanted as many of each")
    made: list[Overrides] = []
    for row in zip(*columns, strict=True):
        joined: Overrides = {}
        for overrides in row:
            joined = _joined(joined, overrides)
        made.append(joined)
    return made


def chain(*descriptions: Sequence[Mapping[str, Any]]) -> list[Overrides]:
    """One description after the other, as `+` of lists.

    Raises:
      ValueError: a path that is none.

    >>> chain(product({"seed": [0, 1]}), [{"recipe.name": "rloo"}])
    [{'seed': 0}, {'seed': 1}, {'recipe.name': 'rloo'}]
    """
    return [overrides for description in descriptions for overrides in _overrides(description)]


def sample(n: int, seed: int, distributions: Mapping[str, Distribution]) -> list[Overrides]:
    """Random search: `n` independent draws of every path.

    A draw depends on the seed, its path and its number alone. So a larger `n` begins with the same draws, and another
    path beside it changes none.

    Args:
      n: number of draws.
      seed: of the whole description.
      distributions: by path :func:`uniform`, :func:`log_uniform`, :func:`integers` or :func:`choice`.

    Raises:
      ValueError: a path that is none, or a value that is no distribution.

    >>> sample(2, 0, {"optimizer.learning_rate": log_uniform(1e-4, 1e-2), "seed": integers(0, 9)})
    [{'optimizer.learning_rate': 0.000472885, 'seed': 3}, {'optimizer.learning_rate': 0.000336257, 'seed': 6}]
    """
    if n < 0:
        raise ValueError(f"sample: n={n}, wanted at least 0")
    for path, distribution in distributions.items():
        _check_path(path)
        if not callable(distribution):
            raise ValueError(f"{path}: {distribution!r}, wanted uniform, log_uniform, integers or choice")
    return [
        {path: _plain(path, distribution(_unit(seed, path, i))) for path, distribution in distributions.items()}
        for i in range(n)
    ]


def uniform(low: float, high: float) -> Distribution:
    """Numbers from `low` to `high`, of six significant digits.

    Raises:
      ValueError: bounds that are not finite or not in order.
    """
    _check_bounds("uniform", low, high, -math.inf)
    return lambda u: _short(low + (high - low) * u, low, high)


def log_uniform(low: float, high: float) -> Distribution:
    """Numbers from `low` to `high` whose logarithm is uniform, of six significant digits.

    Raises:
      ValueError: bounds that are not positive and finite, or not in order.
    """
    _check_bounds("log_uniform", low, high, 0.0)
    return lambda u: _short(low * math.exp(math.log(high / low) * u), low, high)


def integers(low: int, high: int) -> Distribution:
    """Integers from `low` to `high`, both included.

    Raises:
      ValueError: bounds that are no integers or not in order.
    """
    if not all(isinstance(bound, int | np.integer) and not isinstance(bound, bool) for bound in (low, high)):
        raise ValueError(f"integers: from {low!r} to {high!r}, wanted integers")
    if low > high:
        raise ValueError(f"integers: from {low} to {high}, wanted the lower bound first")
    return lambda u: int(low) + int(u * (int(high) - int(low) + 1))


def choice(values: Iterable[Any]) -> Distribution:
    """One of the values, each as likely.

    Raises:
      ValueError: no values, or a string in the place of several.
    """
    chosen = _values("choice", values)
    return lambda u: chosen[int(u * len(chosen))]


def _columns(factors: Sequence[Factor]) -> list[list[Overrides]]:
    columns = []
    for factor in factors:
        if isinstance(factor, Mapping):
            columns += [[{path: value} for value in _values(_check_path(path), x)] for path, x in factor.items()]
        else:
            columns.append(_overrides(factor))
            if not columns[-1]:
                raise ValueError("a factor of the sweep is an empty list, wanted overrides")
    return columns


def _overrides(description: Sequence[Mapping[str, Any]]) -> list[Overrides]:
    if isinstance(description, str | Mapping) or not all(isinstance(x, Mapping) for x in description):
        raise ValueError(f"{description!r}, wanted a list of overrides: dictionaries from a path to a value")
    return [{_check_path(path): _plain(path, value) for path, value in x.items()} for x in description]


def _joined(left: Overrides, right: Overrides) -> Overrides:
    if twice := sorted({*left} & {*right}):
        raise ValueError(f"{twice[0]}: set by two factors, wanted one")
    return left | right


def _paths(column: Sequence[Overrides]) -> str:
    return " and ".join(dict.fromkeys(path for overrides in column for path in overrides))


def _check_path(path: Any) -> str:
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise ValueError(f"{path!r}: no path of the config, wanted names with dots between them: 'recipe.name'")
    return path


def _values(path: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{path}: {values!r}, wanted a list of values")
    found = [_plain(path, value) for value in values]
    if not found:
        raise ValueError(f"{path}: no values, wanted one at least")
    return found


def _plain(path: str, value: Any) -> Any:
    """A value as Python's own, so that it is written alike everywhere."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_plain(path, x) for x in value)
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError(f"{path}: {value!r}, wanted a number, a string, True, False, None or a tuple of them")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path}: {value!r}, wanted a finite number")
    return value


def _check_bounds(name: str, low: float, high: float, least: float) -> None:
    if not least < low < high < math.inf:
        above = " above 0" if least == 0 else ""
        raise ValueError(f"{name}: from {low!r} to {high!r}, wanted finite bounds{above}, the lower first")


def _unit(seed: int, path: str, index: int) -> float:
    # A hash, because the streams of NumPy's generators may change between its versions.
    digest = hashlib.sha256(f"{seed} {path} {index}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def _short(value: float, low: float, high: float) -> float:
    # Exponentials differ in the last bit between machines, and the identity of a trial must not.
    return min(max(float(f"{value:.6g}"), float(low)), float(high))
