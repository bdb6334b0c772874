"""Files of rollouts: written ones read back bit-equal, bad ones are refused by line and reason, none costs memory."""

import json
import math
import os
import pathlib
import sys
import threading
import time
import tracemalloc

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from creditjax.interop import SCHEMA, Message, Rollout, Signal, files, formats

DATA = pathlib.Path(__file__).parents[1] / "data"
EXCERPT = DATA / "gsm8k_solutions_excerpt.jsonl"
CONTAINERS = ("jsonl", "parquet")

FLOATS = st.floats(width=32)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
INTS = st.integers(-(2**31), 2**31 - 1)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def rollouts(draw):
    """Any rollout that the schema allows, its empty, infinite and missing corners included."""
    length, count, extra = draw(st.integers(0, 5)), draw(st.integers(0, 3)), draw(st.integers(0, 2))

    def array(elements, *shape, dtype=np.float32):
        size = math.prod(shape)
        return np.array(draw(st.lists(elements, min_size=size, max_size=size)), dtype).reshape(shape)

    def maybe(value):
        return value if draw(st.booleans()) else None

    signals = {}
    sizes = {"T": length, "K": count, "K+1": count + 1, "F": extra}
    for name in draw(st.lists(TEXT, max_size=2, unique=True)):
        axes = tuple(draw(st.lists(st.sampled_from(list(sizes)), max_size=2)))
        elements, dtype = draw(st.sampled_from([(FLOATS, np.float32), (INTS, np.int32), (st.booleans(), bool)]))
        signals[name] = Signal(axes, array(elements, *(sizes[axis] for axis in axes), dtype=dtype))
    mask = array(st.booleans(), length, dtype=bool)
    logprob = array(FLOATS, length)
    return Rollout(
        id=draw(TEXT),
        group=draw(TEXT),
        pieces=tuple(draw(st.lists(TEXT, min_size=length, max_size=length))),
        outcome=draw(FINITE | st.just(math.nan)),
        prompt=tuple(Message(*pair) for pair in draw(st.lists(st.tuples(TEXT, TEXT), max_size=2))),
        action_mask=mask,
        segment=np.sort(array(st.integers(-1, count - 1), length, dtype=np.int32)),
        roles=tuple(draw(st.lists(TEXT, min_size=count, max_size=count))),
        unit=draw(st.sampled_from(["turn", "step"])),
        tokens=maybe(array(INTS, length, dtype=np.int32)),
        reward=maybe(array(FINITE, length)),
        segment_reward=maybe(array(FINITE | st.just(math.nan), count)),
        logprob=maybe(np.where(mask, -np.abs(np.nan_to_num(logprob)), logprob)),
        end=draw(st.sampled_from(["unknown", "terminated", "truncated"])),
        signals=signals,
        meta=draw(st.dictionaries(TEXT, JSON, max_size=2)),
    )


def plain(i: int, **changes) -> Rollout:
    return Rollout(**{"id": str(i), "group": str(i // 4), "pieces": ("a", " b"), "outcome": i % 2, **changes})


@pytest.mark.parametrize("container", CONTAINERS)
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(written=st.lists(rollouts(), max_size=3))
def test_what_is_written_reads_back_bit_equal(container, written, tmp_path):
    path = tmp_path / "rollouts"
    assert files.write(path, written, container=container) == len(written)
    with files.read(path) as reader:
        assert list(reader) == written
    assert (reader.rollouts, reader.skipped) == (len(written), 0)


@pytest.mark.parametrize("container", CONTAINERS)
def test_more_than_a_row_group_keeps_its_order(tmp_path, container):
    written = [plain(i) if i % 3 else plain(i, pieces=(), tokens=[], reward=[]) for i in range(files._GROUP + 300)]
    path = tmp_path / "many"
    files.write(path, iter(written), container=container)
    assert list(files.read(path)) == written


def test_json_lines_are_strict_json_with_the_version_in_each(tmp_path):
    path = tmp_path / "a.jsonl"
    files.write(path, [plain(0, outcome=math.nan, logprob=[-0.1, -1], signals={"x": Signal(("T",), [math.inf, 0.1])})])

    def forbidden(word):
        raise AssertionError(word)

    record = json.loads(path.read_text(), parse_constant=forbidden)
    assert record["schema"] == SCHEMA and record["outcome"] is None
    assert record["signals"]["x"]["values"] == ["Infinity", float(np.float32(0.1))]


def test_a_parquet_table_is_readable_by_others(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    files.write(path, [plain(0, tokens=[5, 6]), plain(1)])
    table = parquet.read_table(path)
    assert table.schema.metadata[b"creditjax.schema"] == SCHEMA.encode()
    assert table.column("tokens").to_pylist() == [[5, 6], None]
    assert table.column("pieces").to_pylist() == [["a", " b"]] * 2


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.jsonl"
    files.write(path, [plain(0)])
    with pytest.raises(TypeError, match="rollouts: int, wanted a Rollout"):
        files.write(path, [plain(1), 3])
    assert list(files.read(path)) == [plain(0)] and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="container: 'a.txt', wanted one of jsonl, parquet"):
        files.write(tmp_path / "a.txt", [])


GOOD = json.dumps(formats.to_record(plain(7)))


def changed(**fields) -> str:
    return json.dumps({**formats.to_record(plain(7)), **fields})


BAD = {
    "no JSON": ("{nonsense}", "no JSON: Expecting property name"),
    "no object": ("[1, 2]", "an array, wanted one JSON object a line"),
    "a number": ("3", "'3', wanted one JSON object a line"),
    "text": ("MIT License", "is no JSON object, wanted one object a line"),
    "no UTF-8": (b'{"schema": "\xff"}', "byte 0xff at 12 is no UTF-8"),
    "a key twice": (GOOD[:-1] + ', "outcome": 1}', "the key 'outcome' comes twice"),
    "another version": (changed(schema="creditjax.rollout/2"), "schema: 'creditjax.rollout/2', wanted 'creditjax"),
    "another format": ('{"input": "a", "output": "b", "score": 1}', "schema: absent or null, wanted 'creditjax"),
    "an unknown field": (changed(rewards=[1, 2]), "'rewards': unknown, wanted the fields of"),
    "a field short": (json.dumps({"schema": SCHEMA, "id": "a", "group": "g"}), "pieces: absent"),
    "deep nesting": ('{"schema":' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    "a huge integer": ('{"schema": ' + "9" * 10_000 + "}", "Exceeds the limit"),
    "a huge token": (changed(tokens=[1, 10**30]), "tokens: a number of more than 64 bits, wanted int32"),
    "a token beyond int32": (changed(tokens=[1, 2**40]), "tokens: 1099511627776, wanted int32"),
    "a huge reward": (changed(reward=[0, 1e300]), "reward: 1e.300 at 1, wanted numbers that float32 can hold"),
    "a huge outcome": (changed(outcome=10**400), "outcome: 1000"),
    "numbers as text": (changed(reward=["1", "2"]), "reward: '1', wanted float32"),
    "flags as numbers": (changed(action_mask=[1, 0]), r"action_mask\[0\]: 1, wanted bool"),
    "numbers as flags": (changed(tokens=[True, False]), r"tokens\[0\]: True, wanted int32"),
    "a number beyond float64": (
        GOOD[:-1] + ',"signals":{"x":{"axes":["T"],"shape":[2],"dtype":"float32","values":[1e400,0]}}}',
        "the number 1e400, wanted one that float64 can hold",
    ),
    "NaN as a number": (changed(logprob=[-1.0, math.nan]), r"logprob\[1\]: nan as a number, wanted null for NaN"),
    "an infinity as a number": (
        changed(signals={"x": {"axes": ["T"], "shape": [2], "dtype": "float32", "values": [0, -math.inf]}}),
        r"values\[1\]: -inf as a number, wanted null for NaN, a string for an infinity",
    ),
    "an outcome of NaN": (changed(outcome=math.nan), "outcome: nan, wanted a number, or null for unscored"),
    "a key twice among many": (
        "{" + ",".join(f'"k{i}":1' for i in range(50_000)) + ',"k49999":2}',
        "the key 'k49999' comes twice",
    ),
    "outcome as text": (changed(outcome="NaN"), "outcome: 'NaN', wanted a number"),
    "an object for a list": (changed(pieces={"a": 1}), "pieces: dict, wanted a list"),
    "another length": (changed(reward=[1]), r"reward: shape \[1\], wanted \[T=2\]"),
    "half a surrogate pair": (changed(pieces=["\ud800", "b"]), r"pieces\[0\]: the lone surrogate"),
    "a signal of a huge shape": (
        changed(signals={"x": {"axes": ["T"], "shape": [2**30, 2**30], "dtype": "float32", "values": []}}),
        "values: 0 of them, wanted 1152921504606846976",
    ),
    "a signal of objects": (
        changed(signals={"x": {"axes": ["T"], "shape": [2], "dtype": "object", "values": [1, 2]}}),
        "dtype: 'object', wanted float32, int32 or bool",
    ),
    "a message without text": (changed(prompt=[{"role": "user"}]), r"prompt\[0\].content: absent or null"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_refused_or_skipped_by_number_and_reason(tmp_path, kind):
    bad, reason = BAD[kind]
    path = tmp_path / "a.jsonl"
    good = GOOD.encode()
    path.write_bytes(b"\n".join([good, b"", bad if isinstance(bad, bytes) else bad.encode(), good, b""]))
    with pytest.raises(files.RecordError, match=rf"a\.jsonl, line 3: .*{reason}") as error:
        list(files.read(path))
    assert error.value.number == 3 and len(str(error.value)) < 1000
    reader = files.read(path, on_error="skip")
    assert list(reader) == [plain(7)] * 2
    assert (reader.records, reader.rollouts, reader.skipped) == (3, 2, 1)
    assert [met.number for met in reader.reasons] == [3]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_bytes_bring_the_reader_down(data, tmp_path):
    whole = bytearray((GOOD + "\n" + EXCERPT.read_text().splitlines()[1]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(whole)))
        whole[start : start + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8))
    path = tmp_path / "fuzzed"
    path.write_bytes(bytes(whole))
    reader = files.read(path, on_error="skip")
    assert len(list(reader)) == reader.rollouts <= 5 and len(reader.reasons) == min(reader.skipped, 20)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_no_bytes_bring_the_reader_of_tables_down(data, tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    files.write(path, [plain(i, reward=[0, i]) for i in range(3)])
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(4, len(whole) - 1))
        whole[start : start + data.draw(st.integers(0, 12))] = data.draw(st.binary(max_size=8))
    path.write_bytes(bytes(whole))
    reader = files.read(path, on_error="skip")
    assert len(list(reader)) == reader.rollouts


def test_a_file_that_was_cut_off_anywhere_says_so(tmp_path):
    path = tmp_path / "a.jsonl"
    for end in range(1, len(GOOD)):
        path.write_text(GOOD + "\n" + GOOD[:end])
        reader = files.read(path, on_error="skip")
        assert list(reader) == [plain(7)]
        assert "line 2: the file ends inside this record" in str(reader.reasons[0])


def test_a_table_that_was_cut_off_or_is_of_another_version_says_so(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    files.write(path, [plain(0)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(files.RecordError, match="row 1: no Parquet table, or a damaged one"):
        list(files.read(path))
    assert list(files.read(path, on_error="skip")) == []
    for version, columns, reason in [
        ("creditjax.rollout/9", {"id": ["a"]}, "schema: 'creditjax.rollout/9', wanted"),
        (SCHEMA, {"id": ["a"]}, "columns: not those of"),
    ]:
        table = pa.table(columns).replace_schema_metadata({"creditjax.schema": version})
        pyarrow.parquet.write_table(table, path)
        with pytest.raises(files.RecordError, match=f"row 1: {reason}"):
            list(files.read(path))


def damaged_text(pa):
    """Two strings, of which the first is no UTF-8."""
    offsets, text = np.array([0, 1, 3], np.int32), b"\xffok"
    return pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(text)])


CELLS = {
    "text that is no UTF-8": (damaged_text, "UnicodeDecodeError", 1),
    "a time beyond the calendar": (lambda pa: pa.array([2**62, 1], pa.timestamp("us")), "OverflowError", 1),
    "a date beyond the calendar": (lambda pa: pa.array([2**30, 1], pa.date32()), "OverflowError", 1),
    "a duration beyond the largest": (lambda pa: pa.array([2**62, 1], pa.duration("s")), "OverflowError", 1),
    "a time zone that is none": (lambda pa: pa.array([1, 1], pa.timestamp("us", tz="Nowhere/City")), "", 0),
    "two fields of one name": (
        lambda pa: pa.StructArray.from_arrays([pa.array([1, 2])] * 2, names=["a", "a"]),
        "ValueError",
        0,
    ),
}


@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_of_a_table_that_is_no_value_is_a_bad_record(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    column, said, good = CELLS[kind]
    path = tmp_path / "a.parquet"
    table = {"input": ["q"] * 2, "output": ["a", "b"], "score": [1.0, 0.5], "x": column(pa)}
    pyarrow.parquet.write_table(pa.table(table), path)
    with pytest.raises(files.RecordError, match=f"row 1: x: a value of which Python can make nothing, .*{said}"):
        list(files.read(path))
    reader = files.read(path, on_error="skip")
    assert [rollout.outcome for rollout in reader] == [0.5][:good] and reader.skipped == 2 - good


def test_text_of_our_own_table_that_is_no_unicode_is_a_bad_record(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    files.write(path, [plain(0), plain(1)])
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.set_column(0, table.schema.field(0), damaged_text(pa)), path)
    reader = files.read(path, on_error="skip")
    assert [rollout.id for rollout in reader] == ["ok"]
    assert "row 1: id: a value of which Python can make nothing, UnicodeDecodeError" in str(reader.reasons[0])


def test_a_table_with_a_column_twice_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    columns = [pa.array(["q"]), pa.array(["a"]), pa.array([1.0]), pa.array([5.0])]
    pyarrow.parquet.write_table(pa.Table.from_arrays(columns, names=["input", "output", "score", "score"]), path)
    with pytest.raises(files.RecordError, match="row 1: the column 'score' comes twice in the table"):
        list(files.read(path))


@pytest.mark.parametrize("first", [0, 1, 3, 4, 100])
def test_a_pipe_is_read_from_its_first_byte(tmp_path, first):
    content = "".join(json.dumps(formats.to_record(plain(i))) + "\n" for i in range(500)).encode()
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def fill():
        with open(path, "wb", buffering=0) as file:
            # A pipe may bring less than the reader asks for.
            file.write(content[:first])
            time.sleep(0.05)
            file.write(content[first:])

    writer = threading.Thread(target=fill)
    writer.start()
    assert list(files.read(path)) == [plain(i) for i in range(500)]
    writer.join()


def test_a_table_in_a_pipe_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    path, pipe = tmp_path / "a.parquet", tmp_path / "pipe"
    files.write(path, [plain(0)])
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    with pytest.raises(files.RecordError, match="a Parquet table in a pipe, wanted a file"):
        list(files.read(pipe))
    writer.join()


def test_a_row_of_a_table_that_does_not_fit_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    files.write(path, [plain(i) for i in range(3)])
    table = pyarrow.parquet.read_table(path)
    names = table.schema.names
    for name, values, reason in [
        ("outcome", [0.0, math.inf, 1.0], "outcome: inf, wanted"),
        ("meta", [None, "{", None], "Expecting property name"),
        ("meta", [None, '{"a": 1, "a": 2}', None], "the key 'a' comes twice"),
        ("segment", [[0, 0], [0, None], [0, 0]], "segment"),
        ("pieces", [["a", "b"], None, ["a", "b"]], "pieces: None, wanted a list"),
    ]:
        at = names.index(name)
        pyarrow.parquet.write_table(
            table.set_column(at, table.schema.field(at), pa.array(values, table.schema[at].type)), path
        )
        with pytest.raises(files.RecordError, match=f"row 2: .*{reason}"):
            list(files.read(path))
        assert [rollout.id for rollout in files.read(path, on_error="skip")] == ["0", "2"]


def test_a_line_that_is_too_long_is_not_held(tmp_path):
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as file:
        file.write(GOOD.encode() + b"\n" + b'{"input": "')
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n' + GOOD.encode())
    tracemalloc.start()
    reader = files.read(path, on_error="skip", max_bytes=1 << 20)
    assert list(reader) == [plain(7)] * 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "line 2: a line of more than 1048576 bytes" in str(reader.reasons[0])
    assert peak < 8 << 20


@pytest.mark.parametrize("container", CONTAINERS)
def test_memory_does_not_grow_with_the_file(tmp_path, container):
    def peak(count: int) -> int:
        path = tmp_path / f"{count}"
        files.write(path, map(plain, range(count)), container=container)
        tracemalloc.start()
        assert sum(1 for _ in files.read(path)) == count
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small = peak(600)
    assert peak(6000) < 1.5 * small + (64 << 10)


def test_the_format_is_recognised_from_the_content_and_can_be_said(tmp_path):
    path = tmp_path / "a.parquet"  # the name does not matter
    path.write_text("\ufeff" + '{"messages": [{"role": "assistant", "content": "a"}], "score": 1}\r\n')
    reader = files.read(path)
    assert [rollout.text for rollout in reader] == ["a"] and reader.format.name == "messages"
    with pytest.raises(files.RecordError, match="input: absent or null, wanted a string"):
        list(files.read(path, format="verl"))
    with pytest.raises(ValueError, match="format: 'message', did you mean messages"):
        files.read(path, format="message")
    path.write_text('{"foo": 1, "bar": 2}\n')
    with pytest.raises(files.RecordError, match="format: unknown, with the fields foo, bar; wanted one of creditjax,"):
        list(files.read(path))


def test_the_first_readable_record_says_the_format_where_bad_ones_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"foo": 1}\n' + GOOD)
    reader = files.read(path, on_error="skip")
    assert len(list(reader)) == 1 and reader.format.name == "creditjax" and reader.skipped == 1


def test_a_mark_of_byte_order_is_no_record(tmp_path):
    path = tmp_path / "a.jsonl"
    for content, count in (("", 0), ("\n", 0), ("\n" + GOOD, 1), (GOOD, 1)):
        path.write_text("\ufeff" + content)
        assert list(files.read(path)) == [plain(7)] * count


def test_errors_have_no_control_characters(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"\x1b[2J\u202e": 1}))
    with pytest.raises(files.RecordError, match=r"with the fields \\x1b\[2J\\u202e; wanted") as error:
        list(files.read(path))
    assert str(error.value).isprintable()


def test_a_row_group_of_long_texts_is_short(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    text = "x" * (files._TEXT // 2)
    for long in ({"pieces": (text, "")}, {"prompt": (Message("user", text),)}, {"meta": {"info": [text]}}):
        written = [plain(i, **long) for i in range(5)]
        files.write(path, written)
        metadata = parquet.ParquetFile(path).metadata
        assert max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)) <= 3
        assert [rollout.id for rollout in files.read(path)] == ["0", "1", "2", "3", "4"]


def test_a_directory_is_read_in_natural_order(tmp_path):
    for step in (10, 2, 1):
        record = {"input": "q", "output": "a", "score": 1.0, "step": step}
        (tmp_path / f"{step}.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "notes.txt").write_text("not a rollout")
    assert [rollout.meta["step"] for rollout in files.read(tmp_path)] == [1, 2, 10]
    (tmp_path / "2.jsonl").write_text("{\n")
    with pytest.raises(files.RecordError, match=r"2\.jsonl, line 1"):
        list(files.read(tmp_path))


def test_arguments_and_absent_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.jsonl: no such file"):
        files.read(tmp_path / "nothing.jsonl")
    with pytest.raises(FileNotFoundError, match="no file that ends in .jsonl"):
        files.read(tmp_path)
    with pytest.raises(ValueError, match="on_error: 'ignore', wanted one of raise, skip"):
        files.read(EXCERPT, on_error="ignore")
    with pytest.raises(ValueError, match="max_bytes: 0, wanted at least 1"):
        files.read(EXCERPT, max_bytes=0)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'creditjax\[interop\]'"):
        files.write(tmp_path / "a.parquet", [plain(0)])
    assert list(tmp_path.iterdir()) == []
