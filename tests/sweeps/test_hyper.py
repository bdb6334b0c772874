"""Descriptions of sweeps, against itertools and their own promises."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from creditjax import sweeps

NAMES = st.from_regex(r"[a-z]{1,4}(\.[a-z]{1,4})?", fullmatch=True)
VALUES = st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), min_size=1, max_size=3)
GRIDS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=3)


@given(GRIDS)
def test_a_product_has_every_combination_in_order(grid):
    made = sweeps.product(grid)
    assert made == [dict(zip(grid, row, strict=True)) for row in itertools.product(*grid.values())]


@given(GRIDS, st.integers(1, 4))
def test_a_product_takes_descriptions_as_one_factor(grid, count):
    pairs = [{"over.a": i, "over.b": -i} for i in range(count)]
    made = sweeps.product(pairs, grid)
    assert len(made) == count * len(sweeps.product(grid))
    assert all(x["over.a"] == -x["over.b"] for x in made)
    assert made[: len(made) // count] == sweeps.product({"over.a": [0], "over.b": [0]}, grid)


@given(st.lists(st.tuples(st.integers(), st.booleans()), min_size=1, max_size=5))
def test_zipped_goes_through_its_paths_together(rows):
    first, second = zip(*rows, strict=True)
    assert sweeps.zipped({"a": first, "b": second}) == [{"a": a, "b": b} for a, b in rows]


def test_descriptions_are_lists_and_chain_as_such():
    first, second = sweeps.product({"seed": [0, 1]}), sweeps.zipped({"a": [1], "b": [2]})
    assert sweeps.chain(first, second) == first + second == [{"seed": 0}, {"seed": 1}, {"a": 1, "b": 2}]


def test_values_are_pythons_own_so_that_they_are_written_alike():
    made = sweeps.product({"a": np.array([0.1, 0.2]), "b": np.arange(1), "c": [[1, 2]]})
    assert repr(made) == "[{'a': 0.1, 'b': 0, 'c': (1, 2)}, {'a': 0.2, 'b': 0, 'c': (1, 2)}]"


@given(st.integers(0, 20), st.integers(0, 20), st.integers())
def test_a_larger_sample_begins_with_the_smaller_and_paths_do_not_disturb_each_other(n, more, seed):
    rate = sweeps.log_uniform(1e-5, 1e-1)
    alone = sweeps.sample(n, seed, {"a.rate": rate})
    beside = sweeps.sample(n + more, seed, {"b": sweeps.choice(["x", "y", None]), "a.rate": rate})
    assert [{"a.rate": x["a.rate"]} for x in beside[:n]] == alone


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers(0, 99))
def test_draws_stay_within_their_bounds(low, width, seed):
    high = low + width
    kinds = {"u": sweeps.uniform(-high, low), "l": sweeps.log_uniform(low, high), "i": sweeps.integers(-3, 4)}
    for x in sweeps.sample(20, seed, kinds):
        assert -high <= x["u"] <= low and low <= x["l"] <= high and x["i"] in range(-3, 5)
        assert float(f"{x['l']:.6g}") in (x["l"], float(f"{low:.6g}"), float(f"{high:.6g}"))


def test_draws_have_the_distribution_that_they_name():
    n = 4000
    kinds = {
        "u": sweeps.uniform(2.0, 4.0), "l": sweeps.log_uniform(1e-4, 1e-2), "i": sweeps.integers(1, 4),
        "c": sweeps.choice(["grpo", "rloo"]),
    }  # fmt: skip
    made = sweeps.sample(n, 0, kinds)
    assert np.mean([x["u"] for x in made]) == pytest.approx(3.0, abs=4 * 2 / math.sqrt(12 * n))
    # The exponents are uniform from -4 to -2.
    assert np.mean(np.log10([x["l"] for x in made])) == pytest.approx(-3.0, abs=4 * 2 / math.sqrt(12 * n))
    for kind in (1, 2, 3, 4):
        assert np.mean([x["i"] == kind for x in made]) == pytest.approx(0.25, abs=4 * math.sqrt(0.19 / n))
    assert np.mean([x["c"] == "grpo" for x in made]) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(n))
    assert abs(np.corrcoef([x["u"] for x in made], [x["i"] for x in made])[0, 1]) < 4 / math.sqrt(n)


def test_a_sample_is_the_same_on_every_machine():
    kinds = {"optimizer.learning_rate": sweeps.log_uniform(1e-4, 1e-2), "seed": sweeps.integers(0, 99)}
    # Written down once: another value would give every trial of a random sweep another id.
    assert sweeps.sample(1, 7, kinds) == [{"optimizer.learning_rate": 0.00193774, "seed": 7}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sweeps.product({"recipe.name": "grpo"}), "recipe.name: 'grpo', wanted a list of values"),
        (lambda: sweeps.product({"seed": 3}), "seed: 3, wanted a list of values"),
        (lambda: sweeps.product({"seed": []}), "seed: no values"),
        (lambda: sweeps.product({"seed": [0]}, [{"seed": 1}]), "seed: set by two factors"),
        (lambda: sweeps.product({"config seed": [0]}), "'config seed': no path of the config"),
        (lambda: sweeps.product({"recipe": [{"name": "grpo"}]}), "recipe: {'name': 'grpo'}, wanted a number"),
        (lambda: sweeps.product({"a": [math.nan]}), "a: nan, wanted a finite number"),
        (lambda: sweeps.product([]), "empty list"),
        (lambda: sweeps.product(["seed"]), "wanted a list of overrides"),
        (lambda: sweeps.zipped({"a": [1, 2], "b": [3]}), "found 2 of a, 1 of b, wanted as many of each"),
        (lambda: sweeps.chain({"seed": [1]}), "wanted a list of overrides"),
        (lambda: sweeps.sample(2, 0, {"seed": [1, 2]}), r"seed: \[1, 2\], wanted uniform"),
        (lambda: sweeps.sample(-1, 0, {}), "n=-1, wanted at least 0"),
        (lambda: sweeps.uniform(1.0, 1.0), "from 1.0 to 1.0, wanted finite bounds, the lower first"),
        (lambda: sweeps.log_uniform(0.0, 1.0), "wanted finite bounds above 0"),
        (lambda: sweeps.integers(0, 1.5), "wanted integers"),
        (lambda: sweeps.integers(2, 1), "from 2 to 1, wanted the lower bound first"),
        (lambda: sweeps.choice([]), "choice: no values"),
    ],
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
