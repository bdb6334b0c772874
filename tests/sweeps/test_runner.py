"""Sweeps of real processes, with a stand-in for the trainer: kills, retries, Ctrl-C, and what is shown of them."""

import io
import json
import os
import random
import re
import signal
import sys
import time

import pytest
from sweep_cases import results, said, start, sweep, trials

from creditjax.sweeps import local, runner, table
from creditjax.sweeps.store import Busy, Store

LIMIT = 60.0


def wait_for(what, process=None):
    """Until something holds."""
    end = time.monotonic() + LIMIT
    while not (found := what()):
        assert time.monotonic() < end and (process is None or process.is_alive()), what
        time.sleep(0.01)
    return found


def finished(root):
    return len(list(root.glob("trials/*/result.json")))


def wrongs(root):
    return [path.read_text() for path in root.glob("trials/*/wrong")]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The results of twelve trials that nothing disturbed."""
    root = tmp_path_factory.mktemp("unbroken")
    states = sweep(root, trials(12), parallel=3)
    assert set(states.values()) == {"finished"} and not wrongs(root)
    return results(root)


@pytest.mark.parametrize("seed", range(6))
def test_a_sweep_killed_twice_ends_with_the_results_of_an_unbroken_one(tmp_path, unbroken, seed):
    chance = random.Random(seed)
    for kill in range(2):
        # The sweep kills itself, at any line of its code that starts something or writes something down.
        process = start(tmp_path, 12, 3, "--delay=0.03", die_at=chance.randrange(1, 200))
        process.join(LIMIT)
        assert process.exitcode == -signal.SIGKILL
        # One time its trials live on, another they die with it, as when a machine does.
        if (kill + seed) % 2:
            for path in tmp_path.glob("trials/*/"):
                if (pid := local._holder(path)) is not None:
                    os.killpg(pid, signal.SIGKILL)
        assert finished(tmp_path) < 12
    process = start(tmp_path, 12, 3, "--delay=0.03")
    process.join(LIMIT)
    assert process.exitcode == 0 and "12 of 12 finished" in said(tmp_path)
    assert results(tmp_path) == unbroken
    assert len(results(tmp_path).splitlines()) == 12 and not wrongs(tmp_path)


def test_processes_of_a_killed_sweep_are_waited_for(tmp_path, unbroken):
    process = start(tmp_path, 12, 3, "--delay=0.2")
    wait_for(lambda: len(list(tmp_path.glob("trials/*/metrics.jsonl"))) == 3, process)
    process.kill()
    process.join(LIMIT)
    stream = io.StringIO()
    states = sweep(tmp_path, trials(12), parallel=3, stream=stream)
    assert stream.getvalue().count("its process is left from before, waited for") == 3
    assert set(states.values()) == {"finished"} and results(tmp_path) == unbroken and not wrongs(tmp_path)
    starts = [path.read_text().count('"started"') for path in tmp_path.glob("trials/*/attempts.jsonl")]
    assert starts == [1] * 12


def test_ctrl_c_lets_trials_save_and_the_same_command_goes_on(tmp_path, unbroken):
    process = start(tmp_path, 12, 3, "--delay=0.1")
    wait_for(lambda: finished(tmp_path) >= 1 and len(list(tmp_path.glob("trials/*/metrics.jsonl"))) > 3, process)
    os.kill(process.pid, signal.SIGINT)
    process.join(LIMIT)
    assert process.exitcode == 0 and "stopping" in said(tmp_path)
    assert re.search(r"[1-9] waiting", said(tmp_path).splitlines()[-1])
    assert all(local._holder(path) is None for path in tmp_path.glob("trials/*/"))
    # Whoever was stopped saved its last step, which only that makes an odd one.
    events = [json.loads(line) for path in tmp_path.glob("trials/*/attempts.jsonl") for line in path.open()]
    assert any(event["event"] == "stopped" and event["code"] == 143 for event in events)
    assert not any(event["event"] == "failed" for event in events)
    states = sweep(tmp_path, trials(12), parallel=3)
    assert set(states.values()) == {"finished"} and results(tmp_path) == unbroken and not wrongs(tmp_path)


def test_a_second_ctrl_c_ends_trials_that_do_not_listen(tmp_path):
    process = start(tmp_path, 1, 1, "--deaf", "--delay=60")
    wait_for(lambda: list(tmp_path.glob("trials/*/alone")), process)
    os.kill(process.pid, signal.SIGTERM)
    wait_for(lambda: "stopping" in said(tmp_path), process)
    time.sleep(0.2)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    process.join(LIMIT)
    assert process.exitcode == 0 and "ending 1 running" in said(tmp_path)
    assert said(tmp_path).splitlines()[-1] == "0 of 1 finished, 1 waiting"


def test_the_processes_of_a_killed_sweep_can_be_stopped(tmp_path):
    process = start(tmp_path, 1, 1, "--delay=0.2")
    wait_for(lambda: list(tmp_path.glob("trials/*/metrics.jsonl")), process)
    process.kill()
    process.join(LIMIT)
    stop = runner.Stop()
    stop.times = 1
    states = sweep(tmp_path, trials(1), stop=stop)
    assert set(states.values()) == {"waiting"} and finished(tmp_path) == 0
    assert json.loads((tmp_path / "trials/fake-s1/state.json").read_text())[0] < 6
    assert local._holder(tmp_path / "trials/fake-s1") is None


def test_a_failed_trial_is_retried_and_resumes(tmp_path, unbroken):
    stream = io.StringIO()
    states = sweep(tmp_path, trials(12), "--failures=1", parallel=3, retries=1, stream=stream)
    assert set(states.values()) == {"finished"} and results(tmp_path) == unbroken and not wrongs(tmp_path)
    assert stream.getvalue().count("exit code 3: RuntimeError: out of luck") == 12
    assert "at step 2 " in (tmp_path / "trials/fake-s1/log.txt").read_text()


def test_a_trial_that_fails_too_often_is_reported_and_tried_again_when_more_is_allowed(tmp_path):
    chosen = trials(2)
    for retries, failures in ((1, 2), (1, 2), (2, 3)):
        states = sweep(tmp_path, chosen, "--failures=3", retries=retries)
        assert set(states.values()) == {"failed"}
        assert [Store(tmp_path).failures(trial) for trial in chosen] == [failures] * 2
    text = "\n".join(table.results(chosen, states, Store(tmp_path)))
    assert "failed 3 times: 1 fake-s1  seed=1" in text
    assert re.search(r"exit code 3; \S*trials/fake-s1/log.txt ends: RuntimeError: out of luck", text)
    assert results(tmp_path) == b""
    states = sweep(tmp_path, chosen, "--failures=3", retries=3)
    assert set(states.values()) == {"finished"} and not wrongs(tmp_path)


def test_a_program_that_ends_without_a_result_has_failed(tmp_path):
    store, stream = Store(tmp_path), io.StringIO()
    with store.alone():
        view = table.Table(trials(1), store, stream)
        states = runner.run(
            trials(1), store, local.Local(), lambda trial: [sys.executable, "-c", ""], view, retries=0, interval=0.02
        )
    assert states == {"fake-s1": "failed"} and "it ended without a result" in stream.getvalue()


def test_more_steps_go_on_with_finished_trials(tmp_path):
    sweep(tmp_path, trials(2))
    (tmp_path / "trials/fake-s1/result.json").rename(tmp_path / "trials/fake-s1/first.json")
    states = sweep(tmp_path, trials(1, steps=8))
    assert states == {"fake-s1": "finished"}
    assert json.loads(results(tmp_path))["step"] == 8
    longer = trials(2, steps=8)[1]
    assert runner.state(Store(tmp_path), longer, 1) == "waiting"  # its result is that of six steps


def test_two_sweeps_do_not_share_a_directory(tmp_path):
    with Store(tmp_path).alone(), pytest.raises(Busy, match="another sweep runs in this directory"):
        sweep(tmp_path, trials(1))


def test_no_two_processes_run_in_a_directory(tmp_path):
    job = local.Job("a", (sys.executable, "-c", "import time; time.sleep(60)"), tmp_path)
    first, second = local.Local(), local.Local()
    assert not first.adopt(job)
    first.submit(job)
    with pytest.raises(RuntimeError, match="another process runs here"):
        second.submit(job)
    assert second.adopt(job) and second.poll() == {}
    wait_for(lambda: local._holder(tmp_path) is not None)
    assert second.cancel("a", force=True)
    assert wait_for(second.poll) == {"a": None}
    assert wait_for(first.poll) == {"a": -signal.SIGKILL}


def test_a_process_id_that_went_to_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "pid").write_text(str(os.getpid()))
    (tmp_path / "lock").touch()
    assert local._holder(tmp_path) is None


def test_a_torn_line_of_the_attempts_spoils_nothing(tmp_path):
    store, (trial,) = Store(tmp_path), trials(1)
    store.directory(trial).mkdir(parents=True)
    store.started(trial, ["program"])
    with (store.directory(trial) / "attempts.jsonl").open("a") as file:
        file.write('{"attempt": 1, "event": "fai')
    assert store.failures(trial) == 0
    store.ended(trial, "failed", 5)
    assert store.failures(trial) == 1 and store.last_failure(trial) == 5
    assert [row["event"] for row in store._attempts(trial)] == ["started", "failed"]


def test_versions_that_changed_are_named(tmp_path):
    store = Store(tmp_path)
    assert store.begin(["--config=a.py"], trials(2), {"jax": "1", "numpy": "2"}) == []
    assert store.begin(["--config=a.py"], trials(2), {"jax": "3", "numpy": "2"}) == ["jax: 1 -> 3"]
    described = json.loads((tmp_path / "sweep.json").read_text())
    assert described["trials"][1] == {"id": "fake-s2", "overrides": {"seed": 2}}


@pytest.mark.parametrize("parallel", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("gpus", [0, 1, 2, 5])
def test_places_are_equal_and_share_what_they_have_to(parallel, gpus):
    names, cores = [f"gpu{i}" for i in range(gpus)], [0, 2, 4, 6]
    made = local.shares(parallel, cores, names)
    assert len(made) == parallel and len({len(share.cores) for share in made}) == 1
    used = [core for share in made for core in share.cores]
    assert set(used) <= set(cores) and (len(used) == len(set(used)) or parallel > len(cores))
    visible = [share.environment["CUDA_VISIBLE_DEVICES"].split(",") for share in made if gpus]
    for name in names:
        sharers = [share for share, seen in zip(made, visible, strict=True) if name in seen]
        assert sum(float(x.environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION", 0.9)) for x in sharers) <= 0.91


def test_processes_run_on_their_cores(tmp_path):
    before = os.sched_getaffinity(0)
    sweep(tmp_path, trials(4), "--delay=0.02", parallel=2)
    assert os.sched_getaffinity(0) == before
    wanted = {str(list(share.cores)) for share in local.shares(2, sorted(before), [])}
    logs = [path.read_text() for path in tmp_path.glob("trials/*/log.txt")]
    assert {re.search(r"on (\[.*\])", log).group(1) for log in logs} == wanted


def test_accelerators_are_those_that_the_process_would_see():
    assert local.accelerators({"CUDA_VISIBLE_DEVICES": "3,GPU-7f"}) == ["3", "GPU-7f"]
    assert local.accelerators({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert local.accelerators({"CUDA_VISIBLE_DEVICES": "0", "JAX_PLATFORMS": "cpu"}) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_a_table_that_is_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_REDRAW", 0.0)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "24")
    stream = Terminal()
    sweep(tmp_path, trials(2), "--delay=0.1", stream=stream)
    screen = replay(stream.getvalue())
    assert [line[10:].split("  ")[0] for line in screen if "fake" in line] == ["started", "finished"] * 2
    assert screen[-1] == "2 of 2 finished"
    assert re.search(r"1  fake-s1  [1-5]/6 +reward 0\.\d+ +seed=1", stream.getvalue())
    assert "min left" in stream.getvalue()


def replay(text):
    """What a terminal shows in the end."""
    screen = []
    for part in re.split(r"(\x1b\[\d+F\x1b\[J)", text):
        if up := re.fullmatch(r"\x1b\[(\d+)F\x1b\[J", part):
            del screen[-int(up.group(1)) :]
        else:
            screen += part.splitlines()
    return screen


def test_the_best_trial_is_first_and_one_without_its_metric_last(tmp_path):
    store, chosen = Store(tmp_path), trials(4)
    for trial, reward in zip(chosen, (0.5, None, 2.0, 0.5), strict=True):
        store.directory(trial).mkdir(parents=True)
        found = {"step": 6, "metrics": {"reward": reward}}
        (store.directory(trial) / "result.json").write_text(json.dumps(found))
    states = dict.fromkeys((trial.id for trial in chosen), "finished")
    lines = table.results(chosen, states, store)
    assert lines[0].split() == ["trial", "step", "reward", "overrides"]
    assert [line.split()[0] for line in lines[1:]] == ["3", "1", "4", "2"]
