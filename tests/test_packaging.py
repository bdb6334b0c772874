"""What installs together: pins fit the declared requirements, the light core stays light, `make` does what it says."""

import pathlib
import re
import runpy
import shutil
import subprocess
import sys

from packaging.requirements import Requirement
import pytest
import setuptools

import creditjax

ROOT = pathlib.Path(creditjax.__file__).parent.parent


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
    heavy = {
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
    assert "creditjax" in loaded and heavy & set(loaded) == set()


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
