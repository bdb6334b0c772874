"""The --config flag, and what is wrong with it in one line instead of a traceback."""

from collections.abc import Callable, Sequence
import re
import sys
from typing import Any

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from creditjax.interop.command_line import join
from creditjax.naming import nearest


def define_config(values: flags.FlagValues = flags.FLAGS, argv: list[str] | None = None) -> flags.FlagHolder:
    """Defines --config=FILE[:arg], whose fields --config.path=value overrides. Commands in one process share it.

    Args:
      values: where the flag is defined.
      argv: the arguments that will be parsed, the program's name first; those of this process if None.
    """
    if "config" in values:  # of another command that is imported in this process
        return flags.FlagHolder(values, values["config"])
    help_text = "A config file, FILE[:arg]."
    return config_flags.DEFINE_config_file(
        "config", None, help_text, values, lock_config=False, accept_new_attributes=True, sys_argv=argv
    )


def run(main: Callable[[list[str]], Any], own: flags.FlagValues | None = None) -> None:
    """`app.run` for a command with :func:`define_config`.

    Args:
      main: called with the arguments that are no flags.
      own: flags of this command that share their names with those of others.
    """

    def parse(argv: list[str]) -> list[str]:
        if own is not None:
            join(own)
        try:
            return _parse(argv)
        except WrongFlag as error:
            sys.exit(str(error))

    app.run(main, flags_parser=parse)


def parse_config(arguments: Sequence[str]) -> ConfigDict:
    """The config that a command with these flags of --config gets.

    Raises:
      WrongFlag: they give none.
    """
    values, argv = flags.FlagValues(), ["command", *arguments]
    define_config(values, argv)
    _parse(argv, values)
    return values["config"].value


class WrongFlag(ValueError):
    """A flag of --config that cannot be, in one line."""


def _parse(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
    try:
        left = values(argv)
        config = values["config"].value
        if config is not None:
            _ = config.keys  # a file that could not be opened is an error only when something is asked of it
        return left
    except flags.Error as error:
        # An error inside the config file arrives as its whole traceback.
        raise WrongFlag(f"{str(error).strip().splitlines()[-1]}\n--help explains the flags.") from error
    except OSError as error:
        reason = str(error).strip().splitlines()[-1].rpartition("[Errno")[2].partition("]")[2].strip()
        raise WrongFlag(f"--config: {reason}, wanted a Python file with a get_config") from error
    except (KeyError, AttributeError) as error:
        if wrong := _unknown_field(argv, values):
            raise WrongFlag(wrong) from error
        raise


def _unknown_field(argv: list[str], values: flags.FlagValues) -> str | None:
    """Says which of the overrides has a path that the config does not have."""
    for path in re.findall(r"^--?config\.([\w.]+)", "\n".join(argv), re.MULTILINE):
        fields = values["config"].value
        if fields is None:
            return f"config.{path} is unknown"
        for name in path.split("."):
            if not hasattr(fields, "keys"):
                return f"config.{path} is unknown; what holds {name!r} there is a {type(fields).__name__}"
            if name not in fields:
                return f"config.{path} is unknown; {nearest(name, fields)}"
            fields = fields[name]
    return None
