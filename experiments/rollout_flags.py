"""The flags of the commands that read files of rollouts, and what they say of what could not be read."""

import sys

from absl import flags

from creditjax.interop import files
from creditjax.interop.formats import FORMATS

_READ_AS = flags.DEFINE_enum("read_as", None, list(FORMATS), "Format of the file; by default its content says.")
_ON_ERROR = flags.DEFINE_enum("on_error", "raise", files.ON_ERROR, "Stop at a bad record, or skip and count it.")
_GROUP_FIELD = flags.DEFINE_string("group_field", None, "Field of a record that names its group.")
_OUTCOME_FIELD = flags.DEFINE_string("outcome_field", None, "Field of a record that holds the outcome.")


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
