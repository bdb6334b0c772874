"""Features of a step's text: each from what stands before it, and counted by hand."""

import math

from creditjax.process.features import RELATIONS, step_texts, tokenize


def test_relations_are_those_counted_by_hand():
    steps = ["We add 2 and 3.", "So 2 + 3 = 7."]
    first, second = (dict(zip(RELATIONS, x.relations, strict=True)) for x in step_texts("What is 2 + 3?", steps))
    # we add 2 and 3 . | of them 2 and 3 are asked for
    assert first["of_problem"] == first["of_previous"] == 2 / 6 and first["repeated"] == 0
    assert first["new_numbers"] == 0 and first["new_words"] == math.log1p(4)
    # so 2 + 3 = 7 . | new: so, =, 7
    assert second["new_numbers"] == math.log1p(1) and second["new_number_share"] == 1 / 3
    assert second["new_words"] == math.log1p(3) and second["equalities"] == math.log1p(1)
    assert second["of_previous"] == 3 / 7 and second["index"] == math.log1p(1)


def test_a_step_is_described_alike_whatever_follows():
    steps = ["Let $x = 4$.", "Then $x^2 = 16$.", "Done."]
    whole = step_texts("Find x^2.", steps)
    for count in (1, 2, 3):
        assert step_texts("Find x^2.", steps[:count]) == whole[:count]
    assert step_texts("Find x^2.", []) == []


def test_numbers_are_no_words():
    (one,), (other,) = step_texts("p", ["a 1 b"]), step_texts("p", ["a 2 b"])
    # The first two tokens are told apart, which holds the number at second place; no bag of numbers is kept.
    assert len(set(one.words) ^ set(other.words)) == 2
    assert tokenize("") == [] and step_texts("", [""])[0].words == ()
    assert all(math.isfinite(x) for x in step_texts("", [""])[0].relations)
