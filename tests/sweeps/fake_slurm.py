"""Stands for sbatch, srun, sacct and scancel: `fake_slurm.py COMMAND ARGUMENTS…`, on processes of this machine.

Jobs are directories of SLURM_FAKE: `script` with what was submitted, `state`, and `pid` of the process group. With a
file `hold` there, jobs wait.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil

ROOT = pathlib.Path(os.environ.get("SLURM_FAKE", "."))


def option(script, name, default):
    found = re.search(rf"^#SBATCH --{name}=(\S+)", script, re.MULTILINE)
    return found.group(1).strip("'\"") if found else default


def sbatch(script):
    text = pathlib.Path(script).read_text()
    if option(text, "partition", "") == "closed":
        sys.exit("sbatch: error: invalid partition specified: closed")
    number = str(len(list(ROOT.glob("[0-9]*"))) + 1)
    job = ROOT / number
    job.mkdir()
    (job / "state").write_text("PENDING")
    (job / "script").write_text(text)
    # The job's life, in a process that outlives this command.
    life = [sys.executable, "-I", __file__, "life", number]
    # Whoever reads what this command says would wait for the job.
    subprocess.Popen(life, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"Submitted batch job {number}")


def life(number):
    job = ROOT / number
    while (ROOT / "hold").exists() and (job / "state").read_text() == "PENDING":
        time.sleep(0.02)
    if (job / "state").read_text() != "PENDING":
        return
    tasks = int(option((job / "script").read_text(), "ntasks-per-node", 1))
    environment = {**os.environ, "SLURM_JOB_ID": number, "SLURM_NTASKS": str(tasks), "SLURM_JOB_NUM_NODES": "1"}
    process = subprocess.Popen(["/bin/bash", str(job / "script")], env=environment, start_new_session=True)
    (job / "pid").write_text(str(process.pid))
    (job / "state").write_text("RUNNING")
    code = process.wait()
    if (job / "state").read_text() == "RUNNING":
        (job / "state").write_text("COMPLETED" if code == 0 else "FAILED")


def srun(*arguments):
    """Starts the command once a task, as its options say; they are those that submitit writes."""
    place = next(i for i, word in enumerate(arguments) if "python" in word)
    output = arguments[arguments.index("--output") + 1]
    tasks = []
    for rank in range(int(os.environ["SLURM_NTASKS"])):
        name = output.replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", str(rank))
        with open(name, "ab") as log:
            environment = {**os.environ, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"}
            tasks.append(subprocess.Popen(arguments[place:], env=environment, stdout=log, stderr=log))
    (ROOT / os.environ["SLURM_JOB_ID"] / "tasks").write_text(" ".join(str(task.pid) for task in tasks))
    sys.exit(max(task.wait() for task in tasks))


def sacct(*arguments):
    print("JobID|State|NodeList")
    for flag, number in zip(arguments, arguments[1:], strict=False):
        if flag == "-j" and (ROOT / number).exists():
            print(f"{number}|{(ROOT / number / 'state').read_text()}|here")


def scancel(*arguments):
    job = ROOT / arguments[-1]
    if "--signal=TERM" in arguments:
        for pid in (job / "tasks").read_text().split():
            os.kill(int(pid), signal.SIGTERM)
    else:
        (job / "state").write_text("CANCELLED")
        if (job / "pid").exists():
            kill(job)


def kill(job):
    """All that runs in the job, as the end of its node would."""
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(int((job / "pid").read_text()))
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
