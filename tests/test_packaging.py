"""What installs together: pins fit the declared requirements, the light core stays light, `make` does what it says."""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

from packaging.requirements import Requirement
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import setuptools

import creditjax
from creditjax.report import inspect_command

ROOT = pathlib.Path(creditjax.__file__).parent.parent
# Top-level modules of packages that only extras bring, none of them `interop`.
HEAVY = {
    "flax",
    "optax",
    "orbax",
    "gymnax",
    "reasoning_gym",
    "tensorflow_datasets",
    "ml_collections",
    "clu",
    "matplotlib",
}


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(*files):
    lines = [line for file in files for line in (ROOT / "requirements" / file).read_text().splitlines()]
    return {canonical(r.name): r for r in (Requirement(line) for line in lines if line and line[0] != "#")}


@pytest.fixture(scope="module")
def declared():
    """The arguments that setup.py gives to setuptools."""
    given = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", given.update)
        # setup.py finds packages relative to where it is run.
        patch.chdir(ROOT)
        runpy.run_path(str(ROOT / "setup.py"))
    return given


@pytest.mark.parametrize(("file", "extras"), [("quickstart.txt", ["quickstart"]), ("test.txt", ["train", "test"])])
def test_pins_fit_what_is_declared(declared, file, extras):
    pinned = pins(file)
    wanted = [*declared["install_requires"], *(r for extra in extras for r in declared["extras_require"][extra])]
    for requirement in map(Requirement, wanted):
        pin = pinned[canonical(requirement.name)]
        version = str(pin.specifier).removeprefix("==")
        assert requirement.specifier.contains(version), f"{pin} does not fit {requirement}"


def test_environments_agree():
    """`make quickstart` and `make test` share one environment."""
    quickstart, test = pins("quickstart.txt"), pins("test.txt")
    assert {name: str(pin) for name, pin in quickstart.items()}.items() <= {n: str(p) for n, p in test.items()}.items()


def test_all_brings_every_extra(declared):
    extras = declared["extras_require"]
    assert set(extras["all"]) == {requirement for group in extras.values() for requirement in group}


def test_data_files_are_packaged(declared):
    packaged = {
        path
        for package, patterns in declared["package_data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    suffixes = (".json", ".css", ".js", ".typed")
    assert packaged == {
        path for path in (ROOT / "creditjax").rglob("*") if path.suffix in suffixes or path.name == "py.typed"
    }


def test_import_is_light():
    code = "import sys, creditjax; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "creditjax" in loaded and HEAVY & set(loaded) == set()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Runs a command of the package as it is installed, in a folder and without the modules that are named."""
    folder = tmp_path_factory.mktemp("installed")
    install = ["install", "--single-version-externally-managed", "--no-compile", f"--record={folder}/record"]
    # Not pip: it would fetch the build's own requirements.
    subprocess.run(
        [
            *[sys.executable, "setup.py", "--quiet", "build", f"--build-base={folder}/build"],
            *["egg_info", f"--egg-base={folder}"],
            *[*install, f"--install-lib={folder}/lib", f"--install-scripts={folder}/bin"],
        ],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )

    def run(name, *arguments, cwd, absent=()):
        for module in absent:
            path = folder / "absent" / "-".join(sorted(absent)) / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"raise ModuleNotFoundError('No module named {module}', name='{module}')\n")
        paths = [*([str(path.parent)] if absent else []), f"{folder}/lib"]
        # The scripts find the package on this path alone: their own folder is the first entry, not the current one.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.run(
            [folder / "bin" / name, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
        )

    return run


QUESTION = "What is 2 + 2?"
SAID = [("It is 4.", 1.0), ("It is\n5.", 0.0)]


def test_an_installed_package_inspects_a_verl_dump(installed, tmp_path):
    """From an empty folder, with neither the repository nor anything that JSON lines do not need."""
    records = [{"input": QUESTION, "output": text, "gts": "4", "score": score, "step": 3} for text, score in SAID]
    (tmp_path / "3.jsonl").write_text("\n".join(map(json.dumps, records)))
    done = installed("creditjax-inspect", "3.jsonl", "--recipe=grpo", cwd=tmp_path, absent={*HEAVY, "pyarrow"})
    assert done.returncode == 0, done.stderr
    assert "2 rollouts of 2 records (verl rollout dumps)" in done.stdout
    assert "page: report.html, 2 of 2 rollouts to look at" in done.stdout
    assert '"It"' in (tmp_path / "report.html").read_text()


def test_an_installed_package_inspects_and_converts_a_trl_table(installed, tmp_path):
    def message(role, text):
        return [{"role": role, "content": text}]

    table = {
        "step": [3, 3],
        "prompt": [message("user", QUESTION)] * 2,
        "completion": [message("assistant", text) for text, _ in SAID],
        "right_reward": [reward for _, reward in SAID],
        "advantage": [0.7, -0.7],
    }
    pq.write_table(pa.table(table), tmp_path / "completions_00003.parquet")
    command = "completions_00003.parquet", "--recipe=grpo", "--out=a.html"
    done = installed("creditjax-inspect", *command, cwd=tmp_path, absent=HEAVY)
    assert done.returncode == 0, done.stderr
    assert "2 rollouts of 2 records (TRL's completions tables)" in done.stdout
    assert '"It"' in (tmp_path / "a.html").read_text()
    done = installed("creditjax-convert", "completions_00003.parquet", "a.jsonl", cwd=tmp_path, absent=HEAVY)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert ["".join(line["pieces"]) for line in lines] == [text for text, _ in SAID]


def test_help_of_an_installed_command_explains_its_flags(installed, tmp_path):
    """absl explains the flags of the main module, which is a generated one here."""
    said = installed("creditjax-inspect", "--help", cwd=tmp_path).stdout
    assert inspect_command.__doc__.strip() in said
    flags = (
        "group_field",
        "json",
        "limit",
        "on_error",
        "out",
        "outcome_field",
        "[no]pages",
        "read_as",
        "recipe",
        "window",
    )
    assert re.findall(r"^  --(\S+):", said, re.MULTILINE) == list(flags)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_quickstart_says_where_the_report_lies(tmp_path):
    command = [
        "make",
        "--dry-run",
        "quickstart",
        "WORKDIR=runs/other",
        f"VENV={tmp_path}/venv",
        f"PYTHON={sys.executable}",
    ]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    steps = [
        f"{sys.executable} -m venv {tmp_path}/venv",
        "-r requirements/quickstart.txt",
        f"touch {tmp_path}/venv/quickstart.stamp",
        "-m experiments.train --config=configs/quickstart.py --workdir=runs/other",
        f"{ROOT}/runs/other/report.html",
    ]
    found = [said.find(step) for step in steps]
    assert -1 not in found and found == sorted(found)
