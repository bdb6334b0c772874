"""The commands' flags, which share one name space when a notebook or a test imports several commands."""

import importlib
import pkgutil

from absl import flags

import experiments


def test_commands_can_be_imported_together_and_ask_for_nothing_of_each_other():
    for module in pkgutil.iter_modules(experiments.__path__, "experiments."):
        importlib.import_module(module.name)
    assert flags.FLAGS(["a command without flags"]) == ["a command without flags"]
