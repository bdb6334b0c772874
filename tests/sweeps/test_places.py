"""Backends by name, and what they are told."""

import sys

import pytest

from creditjax.sweeps import places


def test_options_are_numbers_where_they_look_like_some():
    assert places.parse_options(["a=1", "b=0.5", "c=x=y", "d=1e3"]) == {"a": 1, "b": 0.5, "c": "x=y", "d": 1000.0}


@pytest.mark.parametrize("wrong", [["a"], ["a="], ["=1"], [""], ["a=1", "a=2"]])
def test_options_that_say_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="options: "):
        places.parse_options(wrong)


def test_this_machine_has_no_options():
    made = places.local(2, {})
    assert made.backend.capacity == 2 and made.processes == 1
    with pytest.raises(ValueError, match="options: 'CPU', there is none"):
        places.local(1, {"CPU": 1})


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_package_that_is_absent_is_named_with_what_installs_it(monkeypatch, name, package):
    for module in {package, *(name for name in sys.modules if name.startswith(f"{package}."))}:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"creditjax.sweeps.{name}", raising=False)
    with pytest.raises(ValueError, match=rf"{package} is not installed: pip install 'creditjax\[{name}\]'"):
        places.BACKENDS[name](1, {})


def test_needed_options_are_asked_for():
    with pytest.raises(ValueError, match="options: image is absent, wanted image=VALUE"):
        places.check_names({"slice": "v5e:2x2"}, ("slice", "image"), ("slice", "image"))
    with pytest.raises(ValueError, match="options: 'slcie', did you mean slice"):
        places.check_names({"slcie": "v5e:2x2"}, ("slice", "image"))
