"""Files that are written whole: the old one stays until the new one is, and what is no file is not replaced."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import threading

import pytest

from creditjax.interop import Rollout, files, output
from creditjax.report import inspect
from creditjax.report.shell import write_whole

ROOT = pathlib.Path(__file__).parents[2]
ROLLOUTS = [Rollout(id=str(i), group="g", pieces=("a", " b"), outcome=float(i % 2)) for i in range(4)]


def rollouts_file(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "rollouts.jsonl"
    files.write(path, ROLLOUTS)
    return path


@pytest.mark.parametrize("name", ["a.txt", "x" * 255, "\u4e2d" * 85])
def test_a_file_is_replaced_when_the_block_ends_well_and_stays_when_not(tmp_path, name):
    path = tmp_path / "folder" / name
    with output.whole(path) as file:
        file.write("first")
        assert not path.exists()
    with pytest.raises(RuntimeError), output.whole(path) as file:
        file.write("second")
        raise RuntimeError
    assert path.read_text() == "first"
    with output.whole(path, "wb") as file:
        file.write(b"\xff\n")
        assert path.read_text() == "first"
    assert path.read_bytes() == b"\xff\n" and list(path.parent.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    real, link = tmp_path / "real" / "a.html", tmp_path / "a.html"
    link.symlink_to(real)  # the file may not be there yet
    for text in ("one", "two"):
        assert write_whole(link, text) == link
        assert link.is_symlink() and real.read_text() == text
    assert list(real.parent.iterdir()) == [real]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    for write in (lambda: files.write(path, ROLLOUTS), lambda: write_whole(path, "page")):
        reader = threading.Thread(target=lambda: read.append(path.read_text()))
        reader.start()
        write()
        reader.join()
    assert [json.loads(line)["id"] for line in read[0].splitlines()] == ["0", "1", "2", "3"] and read[1] == "page"
    assert stat.S_ISFIFO(path.stat().st_mode) and list(tmp_path.iterdir()) == [path]


def test_a_table_does_not_go_into_a_pipe(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "pipe.parquet"
    os.mkfifo(path)
    reader = threading.Thread(target=path.read_bytes)
    reader.start()
    with pytest.raises(ValueError, match="container: parquet into the pipe .*, wanted a file"):
        files.write(path, ROLLOUTS)
    reader.join()


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    # A terminal of our own: nobody can replace it, so a failure of this test harms nothing.
    master, slave = os.openpty()
    link = tmp_path / "device"
    link.symlink_to(os.ttyname(slave))
    write_whole(link, "page")
    assert os.read(master, 100) == b"page"
    assert files.write(link, ROLLOUTS[:1]) == 1
    assert json.loads(os.read(master, 1000))["id"] == "0"
    assert link.is_symlink() and stat.S_ISCHR(link.stat().st_mode) and list(tmp_path.iterdir()) == [link]
    os.close(master)
    os.close(slave)


def test_what_is_printed_to_is_written_in_its_place(tmp_path):
    code = (
        "import sys; from creditjax.interop import output\n"
        "print('before', flush=True)\n"
        "with output.whole('/dev/stdout') as file: file.write('between\\n')\n"
        "print('after')"
    )
    log = tmp_path / "log"
    with open(log, "w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, cwd=ROOT)
    assert log.read_text() == "before\nbetween\nafter\n"


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path):
    kept = tmp_path / "kept.html"
    kept.write_text("old")
    code = (
        "import resource, signal, sys; from creditjax.report.shell import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
        "write_whole(sys.argv[1], 'x' * 5000)"
    )
    made = subprocess.run([sys.executable, "-c", code, kept], capture_output=True, text=True, cwd=ROOT)
    assert made.returncode == 1 and "File too large" in made.stderr and ".partial" not in made.stderr
    assert kept.read_text() == "old" and list(tmp_path.iterdir()) == [kept]


def test_what_cannot_be_written_is_refused_before_a_rollout_is_asked_for(tmp_path):
    def never():
        raise AssertionError("asked for")
        yield

    (tmp_path / "file").write_text("")
    (tmp_path / "folder.jsonl").mkdir()
    for target, error, said in [
        ("folder.jsonl", IsADirectoryError, "folder.jsonl: a directory, wanted a file to write"),
        ("file/a.jsonl", NotADirectoryError, "a.jsonl: .*file is no directory, wanted one to write in"),
    ]:
        with pytest.raises(error, match=said):
            files.write(tmp_path / target, never())
        for flag in ("out", "json"):
            with pytest.raises(error, match=said):
                inspect.inspect(never(), ("grpo",), **{flag: tmp_path / target})
    with pytest.raises(ValueError, match="out and json: both .*same, wanted two files"):
        inspect.inspect(never(), ("grpo",), out=tmp_path / "same", json=tmp_path / "folder.jsonl" / ".." / "same")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.jsonl"]


def test_credit_of_each_rollout_goes_into_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    inspect.inspect(rollouts_file(tmp_path), ("grpo",), json=path)
    reader.join()
    assert [json.loads(line)["id"] for line in read[0].splitlines()] == ["0", "1", "2", "3"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_only_names_of_recipes_are_errors_of_the_flag(tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    command = [sys.executable, "-m", "creditjax.report.inspect_command", bad, f"--out={tmp_path / 'a.html'}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    for flags, said in (([], "line 1: format: unknown"), (["--recipe=nothing"], "--recipe: ")):
        made = subprocess.run([*command, *flags], capture_output=True, text=True, cwd=ROOT, env=environment)
        assert made.returncode == 1 and said in made.stderr and ("--recipe" in made.stderr) == bool(flags)
