"""Trials: the points of a sweep, each with its resolved config, an id made from that alone, and the flags that give it.

A trial gets its config by flags, so that it can be repeated by hand, and its config is what those flags were parsed to:
whoever reads a trial's config here reads what the trainer will be given.
"""

from collections.abc import Callable, Mapping, Sequence
import hashlib
import json
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from creditjax.training import config as config_lib

# From flags (`--config.seed=1`) to the config that they make.
Parse = Callable[[Sequence[str]], ConfigDict]


class Trial(NamedTuple):
    """A point of a sweep.

    Attributes:
      id: a readable label and a hash of the resolved config, the same on every machine.
      number: place in the sweep, from 1.
      overrides: what the sweep sets, by dotted path.
      config: the resolved config as plain JSON data.
      flags: what makes that config of the sweep's own, one flag an override.
    """

    id: str
    number: int
    overrides: Mapping[str, Any]
    config: Mapping[str, Any]
    flags: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Steps of the whole run, the warm start included."""
        return self.config["warm_start"]["steps"] + self.config["steps"]

    @property
    def metric(self) -> str:
        """The metric by which the run keeps its best parameters, and by which trials are ranked."""
        return self.config["checkpoint"]["best_metric"]

    @property
    def shown(self) -> str:
        """The overrides on one line."""
        return " ".join(f"{path}={value}" for path, value in self.overrides.items()) or "(the config as it is)"


def resolve(hypers: Sequence[Mapping[str, Any]], parse: Parse, given: Sequence[str] = ()) -> list[Trial]:
    """The trials of a sweep, every one of them checked.

    Args:
      hypers: overrides by dotted path, one mapping a trial.
      parse: from the flags of a trial to its config; raises ValueError, of which ConfigError is one.
      given: paths that the command line sets already.

    Raises:
      ConfigError: with a line for every trial that cannot be run; two trials that are the same run; a path that is both
        swept over and given.
    """
    trials, faults = [], []
    for number, overrides in enumerate(hypers, 1):
        try:
            trials.append(_trial(number, overrides, parse, given))
        except ValueError as error:
            shown = " ".join(f"{path}={value}" for path, value in overrides.items())
            faults.append(f"trial {number} ({shown}): {error}")
    first: dict[str, Trial] = {}
    for trial in trials:
        other = first.setdefault(trial.id, trial)
        if other is not trial:
            free = ", ".join(config_lib.MAY_CHANGE)
            faults.append(
                f"trials {other.number} ({other.shown}) and {trial.number} ({trial.shown}) are the same run, wanted "
                f"different ones; {free} may change within a run and make no other"
            )
    if faults:
        raise config_lib.ConfigError("\n".join(faults))
    if not trials:
        raise config_lib.ConfigError("the sweep has no trials, wanted one at least")
    return trials


def identify(config: Mapping[str, Any]) -> str:
    """The id of a resolved config: recipe, seed, and ten digits of a hash without what may change within a run.

    Args:
      config: of `creditjax.training.config.to_json`.
    """
    kept = {path: value for path, value in flatten(config).items() if not config_lib.may_change(path)}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{config['recipe']['name']}-s{config['seed']}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of a resolved config by dotted path.

    >>> flatten({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'a.c': {}, 'd': [2]}
    """
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def flag(path: str, value: Any, quoted: bool = False) -> str:
    """An override as a flag; numbers keep every bit.

    Args:
      path: dotted path of the field.
      value: a number, string, boolean, None, or a tuple of them.
      quoted: write a string as a literal, where a bare one would be read as something else.

    >>> flag("recipe.lam", 0.1)
    '--config.recipe.lam=0.1'
    """
    return f"--config.{path}={value if isinstance(value, str) and not quoted else repr(value)}"


def _trial(number: int, overrides: Mapping[str, Any], parse: Parse, given: Sequence[str]) -> Trial:
    if both := sorted({*overrides} & {*given}):
        raise config_lib.ConfigError(f"config.{both[0]} is set on the command line too, wanted one of the two")
    flags = []
    for path, value in overrides.items():
        for quoted in (False, True):
            written = flag(path, value, quoted)
            if faithful := _same(_field(parse([written]), path), value):
                break
        if not faithful:
            found = _field(parse([flag(path, value)]), path)
            raise config_lib.ConfigError(f"config.{path}: {value!r} arrives as {found!r}, wanted another value or type")
        flags.append(written)
    config = parse(flags)
    config_lib.check_config(config)
    resolved = config_lib.to_json(config)
    return Trial(identify(resolved), number, dict(overrides), resolved, tuple(flags))


def _field(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name]
    return config


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, list | tuple) and isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return found == wanted and isinstance(found, str) == isinstance(wanted, str)
