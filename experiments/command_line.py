"""The --config flag, and what is wrong with it in one line instead of a traceback."""

from collections.abc import Callable
import re
import sys
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from creditjax.naming import nearest


def define_config() -> flags.FlagHolder:
    """Defines --config=FILE[:arg], whose fields --config.path=value overrides."""
    return config_flags.DEFINE_config_file(
        "config", None, "A config file, FILE[:arg].", lock_config=False, accept_new_attributes=True
    )


def run(main: Callable[[list[str]], Any]) -> None:
    """`app.run` for a command with :func:`define_config`."""
    app.run(main, flags_parser=_parse)


def _parse(argv: list[str]) -> list[str]:
    try:
        left = flags.FLAGS(argv)
        config = flags.FLAGS["config"].value
        if config is not None:
            _ = config.keys  # a file that could not be opened is an error only when something is asked of it
        return left
    except flags.Error as error:
        # An error inside the config file arrives as its whole traceback.
        sys.exit(f"{str(error).strip().splitlines()[-1]}\n--help explains the flags.")
    except OSError as error:
        reason = str(error).strip().splitlines()[-1].rpartition("[Errno")[2].partition("]")[2].strip()
        sys.exit(f"--config: {reason}, wanted a Python file with a get_config")
    except (KeyError, AttributeError):
        if wrong := _unknown_field(argv):
            sys.exit(wrong)
        raise


def _unknown_field(argv: list[str]) -> str | None:
    """Says which of the overrides has a path that the config does not have."""
    for path in re.findall(r"^--?config\.([\w.]+)", "\n".join(argv), re.MULTILINE):
        fields = flags.FLAGS["config"].value
        if fields is None:
            return f"config.{path} is unknown"
        for name in path.split("."):
            if not hasattr(fields, "keys"):
                return f"config.{path} is unknown; what holds {name!r} there is a {type(fields).__name__}"
            if name not in fields:
                return f"config.{path} is unknown; {nearest(name, fields)}"
            fields = fields[name]
    return None
