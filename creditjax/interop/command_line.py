"""What the commands for files of rollouts share: the flags of the reader, what it says, and how a command is run.

The flags join absl's global ones only in the process of a command, so importing this defines none for others.
"""

from collections.abc import Callable
import pathlib
import sys

from absl import app, flags

from creditjax.interop import files
from creditjax.interop.formats import FORMATS

_READING = flags.FlagValues()
_READ_AS = flags.DEFINE_enum(
    "read_as", None, list(FORMATS), "Format of the file; by default its content says.", flag_values=_READING
)
_ON_ERROR = flags.DEFINE_enum(
    "on_error", "raise", files.ON_ERROR, "Stop at a bad record, or skip and count it.", flag_values=_READING
)
_GROUP_FIELD = flags.DEFINE_string("group_field", None, "Field of a record that names its group.", flag_values=_READING)
_OUTCOME_FIELD = flags.DEFINE_string(
    "outcome_field", None, "Field of a record that holds the outcome.", flag_values=_READING
)


def run(main: Callable[[list[str]], None], help_text: str | None, *own: flags.FlagValues) -> None:
    """`app.run` for a command that reads rollouts: the flags above and `own`, explained by `--help` after a text."""

    def parse(argv: list[str]) -> list[str]:
        join(_READING, *own)
        try:
            return flags.FLAGS(argv)
        except flags.Error as error:
            sys.exit(f"{error}\n--help explains the flags.")

    # absl explains the main module, which for an installed command is a few generated lines.
    sys.modules["__main__"].__doc__ = help_text
    app.run(main, flags_parser=parse)


def join(*own: flags.FlagValues) -> None:
    """Makes flags that a command defined apart global ones of this process, which `--help` explains."""
    for values in own:
        flags.FLAGS.append_flag_values(values)
        for name in values:
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], values[name])
        # The flags are the same objects as the global ones, which are parsed next.
        values.mark_as_parsed()


def check_target(source: str, target: str) -> None:
    """Ends the process with one line if the target is the file to read, or is there in the directory to read."""
    read, written = pathlib.Path(source), pathlib.Path(target)
    if read.exists() and written.exists() and (written.samefile(read) or written.parent.samefile(read)):
        sys.exit(f"{target}: is read from, wanted another file to write")


def reader(path: str) -> files.Reader:
    """The rollouts of a file or directory, read as the flags say; ends the process with one line if there is none."""
    try:
        return files.read(
            path,
            format=_READ_AS.value,
            on_error=_ON_ERROR.value,
            group_field=_GROUP_FIELD.value,
            outcome_field=_OUTCOME_FIELD.value,
        )
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def summary(reader: files.Reader) -> str:
    """What was read, and the first reasons of what was not."""
    lines = [
        f"{reader.rollouts} rollouts of {reader.records} records ({reader.format.title if reader.format else '?'})"
    ]
    if reader.skipped:
        lines.append(f"{reader.skipped} records skipped, the first of them:")
        lines += [f"  {reason}" for reason in reader.reasons[:5]]
    return "\n".join(lines)
