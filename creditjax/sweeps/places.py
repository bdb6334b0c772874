"""The backends of sweeps by name, and the NAME=VALUE options that each is given."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from typing import Any, NamedTuple

from creditjax.naming import nearest
from creditjax.sweeps.backend import Backend


class Place(NamedTuple):
    """Where trials run.

    Attributes:
      backend: what runs them.
      processes: of a trial. If there are several, they have to look for each other.
    """

    backend: Backend
    processes: int = 1


def local(parallel: int, options: Mapping[str, Any]) -> Place:
    """Processes of this machine; no options."""
    from creditjax.sweeps.local import Local

    check_names(options, ())
    return Place(Local(parallel))


def ray(parallel: int, options: Mapping[str, Any]) -> Place:
    """Actors of a Ray cluster: `address`, and by the names of its resources how much a trial needs."""
    with _extra("ray"):
        from creditjax.sweeps.ray import Ray

    resources = {name: amount for name, amount in options.items() if name != "address"}
    for name, amount in resources.items():
        if isinstance(amount, str):
            raise ValueError(f"options: {name}={amount}, wanted a number")
    return Place(Ray(parallel, resources, options.get("address")))


def slurm(parallel: int, options: Mapping[str, Any]) -> Place:
    """Jobs of a Slurm cluster: options of sbatch, with underscores in their names."""
    with _extra("slurm", "submitit"):
        from creditjax.sweeps.slurm import Slurm

    return Place(Slurm(parallel, options), options.get("nodes", 1) * options.get("ntasks_per_node", 1))


BACKENDS: Mapping[str, Callable[[int, Mapping[str, Any]], Place]] = {"local": local, "ray": ray, "slurm": slurm}


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """Options by name; values that are numbers become some.

    Raises:
      ValueError: one without a name or value, or given twice.

    >>> parse_options(["partition=a100", "time=600", "TPU=0.5"])
    {'partition': 'a100', 'time': 600, 'TPU': 0.5}
    """
    found: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        if not name or not value:
            raise ValueError(f"options: {option!r}, wanted NAME=VALUE")
        if name in found:
            raise ValueError(f"options: {name} is given twice, wanted once")
        found[name] = _number(value)
    return found


def check_names(options: Mapping[str, Any], known: Sequence[str], needed: Sequence[str] = ()) -> None:
    """Refuses options that there are not, and the lack of those that are needed.

    Raises:
      ValueError: with the nearest name.
    """
    for name in options:
        if name not in known:
            raise ValueError(f"options: {name!r}, {nearest(name, known)}")
    for name in needed:
        if name not in options:
            raise ValueError(f"options: {name} is absent, wanted {name}=VALUE")


def _number(value: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


@contextlib.contextmanager
def _extra(name: str, package: str = "") -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        if absent not in (name, package):
            raise
        raise ValueError(f"{absent} is not installed: pip install 'creditjax[{name}]'") from error
