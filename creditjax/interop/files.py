"""Files of rollouts, read and written as streams: JSON lines and Parquet.

:func:`read` recognises the container by its first bytes and the format by its first record, holds one record (of a
Parquet table: a few) at a time, and says of what it cannot read where it stands and why. Text and numbers are parsed,
nothing in a file is ever executed or unpickled. :func:`write` writes our own schema; the file appears under its name
when it is whole.

JSON lines: one object a line, UTF-8, without NaN (null) and infinities (words). Parquet: one row a rollout, one column
a field, lists as lists; `meta` is JSON text, the name and version of the schema stand in the file's metadata.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import io
import itertools
import json
import math
import os
import pathlib
import re
from typing import IO, Any

import numpy as np

from creditjax.interop import formats, output
from creditjax.interop.formats import FORMATS, Format, Place
from creditjax.interop.rollout import SCHEMA, Message, Rollout, Signal

CONTAINERS = ("jsonl", "parquet")
ON_ERROR = ("raise", "skip")

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_REASONS = 20
# Rows of a Parquet table held at a time, and rollouts of a row group that is written.
_ROWS = 256
_GROUP = 4096
_CHUNK = 1 << 20
_TEXT = 16 << 20
_BUFFER = 1 << 16
_MAGIC = b"PAR1"


class RecordError(ValueError):
    """A record that could not be read.

    Attributes:
      path: the file.
      number: of the line or row, from 1.
      reason: what was found and what was wanted.
    """

    def __init__(self, path: str, unit: str, number: int, reason: str):
        # Names of fields are the file's, and a terminal would obey control characters in them.
        said = f"{path}, {unit} {number}: {reason}"
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in said))
        self.path, self.number, self.reason = path, number, reason


class Reader(Iterator[Rollout]):
    """An iterator over the rollouts of files, and what was met on the way.

    Attributes:
      format: the format of the file being read, None before the first record.
      records: how many lines or rows have been read, those skipped included.
      rollouts: how many rollouts have been given.
      skipped: how many records could not be read, with ``on_error="skip"``.
      reasons: the first of their errors, at most 20.
    """

    def __init__(self, paths: list[pathlib.Path], format: str | None, on_error: str, place: Place, max_bytes: int):
        self.format: Format | None = None
        self.records = self.rollouts = self.skipped = 0
        self.reasons: list[RecordError] = []
        self._forced = formats.named(format) if format is not None else None
        self._skip = on_error == "skip"
        self._place = place
        self._several = len(paths) > 1
        self._max_bytes = max_bytes
        self._stream: Iterator[Rollout] = itertools.chain.from_iterable(map(self._file, paths))

    def __next__(self) -> Rollout:
        return next(self._stream)

    def close(self) -> None:
        """Ends the iteration; the open file is closed."""
        self._stream = iter(())

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _file(self, path: pathlib.Path) -> Iterator[Rollout]:
        self.format = self._forced
        place = self._place._replace(file=path.name if self._several else "")
        with _opened(path) as (container, file):
            unit = "row" if container == "parquet" else "line"
            records = _rows(file) if container == "parquet" else _lines(file, self._max_bytes)
            for number, record in records:
                self.records += 1
                try:
                    made = self._read(record, place._replace(number=number))
                except (ValueError, TypeError, OverflowError, RecursionError) as error:
                    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                    met = RecordError(str(path), unit, number, reason)
                    if not self._skip:
                        raise met from None
                    self.skipped += 1
                    if len(self.reasons) < _REASONS:
                        self.reasons.append(met)
                    continue
                self.rollouts += len(made)
                yield from made

    def _read(self, record: Any, place: Place) -> list[Rollout]:
        if isinstance(record, Exception):
            raise record
        if isinstance(record, Rollout):
            self._expect(FORMATS["creditjax"])
            made = [record]
        else:
            if isinstance(record, bytes):
                record = _parse(record)
            if self.format is None:
                self.format = formats.recognise(record)
            made = list(self.format.read(record, place))
        return made

    def _expect(self, form: Format) -> None:
        if self.format is None:
            self.format = form
        elif self.format is not form:
            raise ValueError(f"format: {form.name}, wanted {self.format.name}")


def read(
    path: str | os.PathLike,
    *,
    format: str | None = None,
    on_error: str = "raise",
    group_field: str | None = None,
    outcome_field: str | None = None,
    max_bytes: int = 64 << 20,
) -> Reader:
    """Reads the rollouts of a file, or of the files of a directory in their natural order (2.jsonl before 10.jsonl).

    Args:
      path: a file of JSON lines or a Parquet table, whatever its name; or a directory with such (by their suffix).
      format: one of `FORMATS`; by default the first record of each file says.
      on_error: "raise" at the first record that cannot be read, or "skip" it: it is counted, and the first reasons are
        kept on the reader.
      group_field: field of a record that names its group, where the format does not say or should not.
      outcome_field: field of a record that holds the outcome.
      max_bytes: longest line; longer ones are errors, and are not held.

    Returns:
      An iterator of rollouts. Memory does not grow with the file.

    Raises:
      FileNotFoundError: there is no such file.
      ImportError: a Parquet table without pyarrow.
      RecordError: while reading; names the file, the line or row, and the reason.
      ValueError: an argument that is not one of the above, a table that is no Parquet.
    """
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error: {on_error!r}, wanted one of {', '.join(ON_ERROR)}")
    if max_bytes < 1:
        raise ValueError(f"max_bytes: {max_bytes}, wanted at least 1")
    return Reader(_paths(pathlib.Path(path)), format, on_error, Place(1, group_field, outcome_field), max_bytes)


def write(path: str | os.PathLike, rollouts: Iterable[Rollout], *, container: str | None = None) -> int:
    """Writes rollouts in our schema, as they come; they read back bit-equal.

    Args:
      path: the file; it is replaced when the last rollout has been written, and left as it is if one cannot be. A pipe
        or device is written to as they come.
      rollouts: any number.
      container: "jsonl" or "parquet"; by default as the suffix says, JSON lines for a pipe or device without one.

    Returns:
      How many were written.

    Raises:
      ImportError: Parquet without pyarrow.
      OSError: a file that cannot be written; before the first rollout is asked for, where it is a directory, say.
      TypeError: something that is no `Rollout`.
      ValueError: no container, by suffix or name; Parquet into a pipe.
    """
    path = pathlib.Path(path)
    if container is None:
        container = _SUFFIXES.get(path.suffix.lower(), "jsonl" if output.is_special(path) else None)
    if container not in CONTAINERS:
        raise ValueError(f"container: {container or path.name!r}, wanted one of {', '.join(CONTAINERS)}")
    checked = map(_checked, rollouts)
    if container == "jsonl":
        with output.whole(path) as file:
            return _write_jsonl(file, checked)
    pa = _pyarrow()
    with output.whole(path, "wb") as file:
        if not file.seekable():
            raise ValueError(
                f"container: parquet into the pipe {path}, wanted a file: its end says where its parts are"
            )
        return _write_parquet(pa, file, checked)


class _Again(io.RawIOBase):
    """A file from its beginning, whose first bytes have been read: a pipe gives them once."""

    def __init__(self, first: bytes, rest: io.RawIOBase):
        self._first, self._rest = first, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if not self._first:
            return self._rest.readinto(buffer)
        count = min(len(buffer), len(self._first))
        buffer[:count], self._first = self._first[:count], self._first[count:]
        return count


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[tuple[str, io.BufferedReader]]:
    """ "parquet" or "jsonl", by the first bytes of a file, and the file from its beginning; opened once."""
    with open(path, "rb", buffering=0) as file:
        first = b""
        # A pipe may give fewer bytes than were asked for.
        while len(first) < len(_MAGIC) and (more := file.read(len(_MAGIC) - len(first))):
            first += more
        if first == _MAGIC and file.seekable():
            file.seek(0)
            yield "parquet", io.BufferedReader(file)
        else:
            yield "parquet" if first == _MAGIC else "jsonl", io.BufferedReader(_Again(first, file), _BUFFER)


def _paths(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        return [path]
    found = [each for each in path.iterdir() if each.suffix.lower() in _SUFFIXES and each.is_file()]
    if not found:
        raise FileNotFoundError(f"{path}: no file that ends in {', '.join(_SUFFIXES)}")
    return sorted(
        found, key=lambda each: [(int(x), "") if x.isdecimal() else (-1, x) for x in re.split(r"(\d+)", each.name)]
    )


def _checked(rollout: Rollout) -> Rollout:
    if not isinstance(rollout, Rollout):
        raise TypeError(f"rollouts: {type(rollout).__name__}, wanted a Rollout")
    return rollout


# --- JSON lines -------------------------------------------------------------------------------------------------------


def _lines(file: io.BufferedReader, max_bytes: int) -> Iterator[tuple[int, bytes | Exception]]:
    """Number and bytes of each line that is not blank; an error in place of one that is too long."""
    for number in itertools.count(1):
        line = file.readline(max_bytes + 1)
        if not line:
            return
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if len(line) > max_bytes and not line.endswith(b"\n"):
            while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
            yield number, ValueError(f"a line of more than {max_bytes} bytes, wanted less (max_bytes says how many)")
        elif line.strip():
            yield number, line


def _parse(line: bytes) -> dict[str, Any]:
    """The object of a line. Keys that come twice are an error: one of the two values would be lost."""
    try:
        record = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {line[error.start]:#04x} at {error.start} is no UTF-8") from None
    except json.JSONDecodeError as error:
        if not line.lstrip().startswith(b"{"):
            raise ValueError(f"{line[:30]!r} is no JSON object, wanted one object a line") from None
        if not line.endswith(b"\n"):
            found = f"{error.msg} at character {error.pos}"
            raise ValueError(f"the file ends inside this record, or it is no JSON: {found}") from None
        raise ValueError(f"no JSON: {error.msg} at character {error.pos}") from None
    if not isinstance(record, dict):
        what = "an array" if isinstance(record, list) else f"{str(record)[:30]!r}"
        raise ValueError(f"{what}, wanted one JSON object a line")
    return record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        twice = _twice(name for name, _ in pairs)
        raise ValueError(f"the key {str(twice)[:60]!r} comes twice in one object")
    return record


def _twice(names: Iterable[str]) -> str | None:
    """The first name that came before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _float(text: str) -> float:
    """A number of a line. What is beyond float64 would be read as an infinity."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:30]}, wanted one that float64 can hold")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float)
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _write_jsonl(file: IO[str], rollouts: Iterable[Rollout]) -> int:
    count = 0
    for rollout in rollouts:
        file.write(_ENCODE(formats.to_record(rollout)) + "\n")
        count += 1
    return count


# --- Parquet ----------------------------------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'creditjax[interop]'") from error
    return pyarrow


_SIGNAL_COLUMNS = {"float32": "float32", "int32": "int32", "bool": "bool"}


def _schema(pa: Any) -> Any:
    text, texts = pa.string(), pa.list_(pa.string())
    floats, ints, bools = pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.bool_())
    signal = pa.struct(
        [("name", text), ("axes", texts), ("shape", ints), ("dtype", text)]
        + [("float32", floats), ("int32", ints), ("bool", bools)]
    )
    columns = [
        ("id", text),
        ("group", text),
        ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
        ("pieces", texts),
        ("tokens", ints),
        ("action_mask", bools),
        ("segment", ints),
        ("roles", texts),
        ("unit", text),
        ("outcome", pa.float32()),
        ("reward", floats),
        ("segment_reward", floats),
        ("logprob", floats),
        ("end", text),
        ("signals", pa.list_(signal)),
        ("meta", text),
    ]
    return pa.schema(columns, metadata={"creditjax.schema": SCHEMA})


def _write_parquet(pa: Any, file: IO[bytes], rollouts: Iterable[Rollout]) -> int:
    schema = _schema(pa)
    count = 0
    stream = iter(rollouts)
    with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while some := _some(stream):
            writer.write_table(pa.Table.from_arrays([_column(pa, field, some) for field in schema], schema=schema))
            count += len(some)
    return count


def _some(stream: Iterator[Rollout]) -> list[Rollout]:
    """The next row group: so many rollouts, or fewer where they are long."""
    some: list[Rollout] = []
    positions = characters = 0
    for rollout in itertools.islice(stream, _GROUP):
        some.append(rollout)
        positions += rollout.length + sum(np.size(signal.values) for signal in rollout.signals.values())
        characters += sum(map(len, rollout.pieces)) + sum(len(message.content) for message in rollout.prompt)
        characters += len(_ENCODE(rollout.meta)) if rollout.meta else 0
        if positions > _CHUNK or characters > _TEXT:
            break
    return some


def _column(pa: Any, field: Any, rollouts: list[Rollout]) -> Any:
    name = field.name
    if name == "meta":
        return pa.array([_ENCODE(rollout.meta) if rollout.meta else None for rollout in rollouts], field.type)
    if name == "prompt":
        return pa.array([[m._asdict() for m in rollout.prompt] for rollout in rollouts], field.type)
    if name == "signals":
        return pa.array([[_signal_row(*item) for item in rollout.signals.items()] for rollout in rollouts], field.type)
    values = [getattr(rollout, name) for rollout in rollouts]
    if name in ("id", "group", "unit", "end"):
        return pa.array(values, field.type)
    if name == "outcome":
        return pa.array(np.array(values, np.float32), field.type, from_pandas=False)
    if name in ("pieces", "roles"):
        flat = pa.array([x for value in values for x in value], field.type.value_type)
        if isinstance(flat, pa.ChunkedArray):
            raise ValueError(f"{name}: more than 2 GiB of text in one rollout, which no column of Parquet holds")
    else:
        there = [value for value in values if value is not None]
        flat = pa.array(np.concatenate(there) if there else [], field.type.value_type, from_pandas=False)
    sizes = np.array([0 if value is None else len(value) for value in values], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    # A row is absent where its offset is.
    absent = np.array([value is None for value in values] + [False])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32(), mask=absent), flat, field.type)


def _signal_row(name: str, signal: Signal) -> dict[str, Any]:
    dtype = str(signal.values.dtype)
    row = {"name": name, "axes": list(signal.axes), "shape": list(signal.values.shape), "dtype": dtype}
    return row | {_SIGNAL_COLUMNS[dtype]: signal.values.reshape(-1)}


def _rows(file: io.BufferedReader) -> Iterator[tuple[int, Any]]:
    """Number and content of each row: a rollout, or an error, where the table is ours, else a dict of its columns."""
    pa = _pyarrow()
    if not file.seekable():
        yield 1, ValueError("a Parquet table in a pipe, wanted a file: it is read from its end")
        return
    number = 0
    try:
        with pa.parquet.ParquetFile(file, pre_buffer=False) as table:
            metadata = table.schema_arrow.metadata or {}
            version = metadata.get(b"creditjax.schema", b"").decode("utf-8", "replace")
            if version and version != SCHEMA:
                yield 1, ValueError(f"schema: {version[:60]!r}, wanted {SCHEMA!r}")
                return
            if version and not table.schema_arrow.equals(_schema(pa)):
                yield 1, ValueError(f"columns: not those of {SCHEMA}")
                return
            if (twice := _twice(table.schema_arrow.names)) is not None:
                yield 1, ValueError(f"the column {twice[:60]!r} comes twice in the table")
                return
            for batch in table.iter_batches(batch_size=_ROWS, use_threads=False):
                for row in _own_rows(batch) if version else _foreign_rows(batch):
                    number += 1
                    yield number, row
    # The last ones: names of columns, times and sizes of which Python can make nothing.
    except (pa.ArrowException, OSError, ValueError, OverflowError, LookupError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        yield number + 1, ValueError(f"no Parquet table, or a damaged one (nothing after it can be read): {reason}")


def _foreign_rows(batch: Any) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of a few rows of another's table, an error in place of one of which Python can make nothing."""
    names = batch.schema.names
    for values in zip(*(_cells(name, batch.column(i)) for i, name in enumerate(names)), strict=True):
        yield next((x for x in values if isinstance(x, ValueError)), None) or dict(zip(names, values, strict=True))


def _cells(name: str, column: Any) -> list:
    """The values of a column, an error in place of each of which Python can make nothing."""
    # What is raised depends on the type and its values: text that is no UTF-8, times that are no date, an unknown time
    # zone, two fields of one name.
    try:
        return column.to_pylist()
    except Exception:
        cells: list[Any] = []
        for cell in column:
            try:
                cells.append(cell.as_py())
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                cells.append(ValueError(f"{name[:60]}: a value of which Python can make nothing, {reason[:200]}"))
        return cells


def _own_rows(batch: Any) -> Iterator[Rollout | Exception]:
    """The rollouts of a few rows of our own table, an error in place of one that is none."""
    columns = {field.name: batch.column(i) for i, field in enumerate(batch.schema)}
    rows = len(batch)
    lists = {name: _slices(columns[name]) for name in ("tokens", "action_mask", "segment", "reward", "segment_reward")}
    lists["logprob"] = _slices(columns["logprob"])
    names = ("id", "group", "pieces", "roles", "unit", "end", "meta", "prompt", "signals", "outcome")
    plain = {name: _cells(name, columns[name]) for name in names}
    for i in range(rows):
        try:
            fields: dict[str, Any] = {name: values[i] for name, values in (*plain.items(), *lists.items())}
            if unreadable := next((x for x in fields.values() if isinstance(x, ValueError)), None):
                raise unreadable
            fields["meta"] = {} if fields["meta"] is None else _DECODER.decode(fields["meta"])
            fields["prompt"] = tuple(Message(m["role"], m["content"]) for m in fields["prompt"] or ())
            fields["signals"] = _row_signals(fields["signals"] or ())
            yield Rollout(**fields)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            yield ValueError("nested too deeply" if isinstance(error, RecursionError) else str(error))


def _slices(column: Any) -> list[np.ndarray | None]:
    """The rows of a column of lists, as views of one array; None where absent."""
    if column.values.null_count:
        return [None if row is None else np.array(row) for row in column.to_pylist()]
    flat = column.values.to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_numpy()
    there = column.is_valid().to_numpy(zero_copy_only=False)
    return [flat[a:b] if ok else None for a, b, ok in zip(offsets[:-1], offsets[1:], there, strict=True)]


def _row_signals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Signal]:
    signals = {row["name"]: _row_signal(row) for row in rows}
    if (twice := _twice(row["name"] for row in rows)) is not None:
        raise ValueError(f"signals: {twice[:60]!r} comes twice, wanted one of a name")
    return signals


def _row_signal(row: Mapping[str, Any]) -> Signal:
    dtype, shape = row["dtype"], row["shape"]
    label = f"signals[{row['name']!r}]"
    if dtype not in _SIGNAL_COLUMNS or row[dtype] is None or shape is None:
        raise ValueError(f"{label}: without dtype, shape or values, wanted float32, int32 or bool values")
    with contextlib.suppress(ValueError):
        return Signal(tuple(row["axes"]), np.array(row[dtype], dtype).reshape(shape))
    raise ValueError(f"{label}: {len(row[dtype])} values, wanted shape {shape[:8]}")
