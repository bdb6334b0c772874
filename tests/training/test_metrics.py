import io
import json
import math

from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.training import metrics


def test_means_divide_once_and_leave_out_what_counted_nothing():
    found = metrics.means({"a": (jnp.float32(3), jnp.float32(4)), "none": (jnp.float32(0), jnp.float32(0))})
    assert found == {"a": 0.75}


def test_jsonl_writes_one_valid_object_a_line(tmp_path):
    writer = metrics.JsonlWriter(tmp_path / "m.jsonl")
    writer.write_scalars(3, {"a": 0.5, "bad": math.nan, "n": np.float32(2)})
    lines = (tmp_path / "m.jsonl").read_text().splitlines()  # on disk before the writer is closed
    writer.close()
    assert [json.loads(line) for line in lines] == [{"step": 3, "a": 0.5, "bad": None, "n": 2.0}]


def test_truncate_removes_later_rows_and_a_half_written_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a": 3}\n{"step": 4, "a"')
    metrics.truncate(path, 2)
    assert path.read_text() == '{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n'
    metrics.truncate(tmp_path / "absent.jsonl", 2)


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\nnot json\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        metrics.read_rows(path)


def test_console_prints_plain_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    console = metrics.Console(10, shown=("reward", "absent"), stream=stream)
    console.write_scalars(4, {"reward": 0.25, "other": 1.0})
    console.advance(4)
    console.say("done")
    assert stream.getvalue() == "step 4/10  reward 0.25\ndone\n"


def test_console_shows_a_bar_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    console = metrics.Console(10, start=2, shown=("reward",), stream=stream)
    console.write_scalars(4, {"reward": 0.25})
    console.advance(4)
    console.close()
    assert "4/10" in stream.getvalue()
    assert "reward 0.25" in stream.getvalue()


def test_tensorboard_files_hold_the_scalars(tmp_path):
    writer = metrics.TensorBoardWriter(tmp_path)
    writer.write_scalars(1, {"reward": 0.5})
    writer.close()
    (events,) = tmp_path.iterdir()
    assert b"reward" in events.read_bytes()
