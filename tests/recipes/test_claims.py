"""Every registered recipe keeps what it promises and claims, and breaks what it opts out of: no line here a recipe.

How a recipe states both is told at `creditjax.register`.
"""

import dataclasses

import jax
import pytest

import creditjax as cj
from creditjax import testing

# After so many recipes their programs are forgotten: what recipes share is compiled anew, but a process stays small.
FORGET_EVERY = 48
RECIPES = cj.list_recipes()


@pytest.mark.parametrize("name", RECIPES)
def test_keeps_its_promises_and_claims_and_breaks_what_it_is_exempt_from(name):
    recipe = cj.recipe(name)
    kept, exempt = testing.stated(recipe)
    broken = []
    for law, options in kept.items():
        try:
            testing.PROPERTIES[law](recipe.estimator, **options)
        except AssertionError as error:
            broken.append(str(error))
    # An exemption that nothing needs any more would hide the next fault.
    for law, verdict in testing.check_all(recipe.estimator, list(exempt)).items():
        if not verdict.startswith("does not hold"):
            broken.append(f"{law}: exempt because {exempt[law]}, but: {verdict}")
    assert not broken, "\n\n".join([f"recipe {name!r}:", *broken])
    if RECIPES.index(name) % FORGET_EVERY == FORGET_EVERY - 1:
        jax.clear_caches()


def changed(name: str, **stated) -> cj.Recipe:
    return dataclasses.replace(cj.recipe(name), **stated)


def test_what_a_recipe_states_is_what_is_asked():
    kept, exempt = testing.stated(changed("rloo", claims={"unbiased": {}, "bounded": {"bound": 2.0}}))
    assert set(kept) == {*testing.PROMISES, "unbiased", "unbiased_up_to_scale", "bounded"} and not exempt
    assert kept["bounded"] == {"bound": 2.0}
    kept, exempt = testing.stated(changed("gae", exempt={"finite": "it divides by 0"}, cost="quadratic in T"))
    assert set(exempt) == {"finite", "prompt_independent", "micro_batches_agree", "linear_cost"}
    assert not set(kept) & set(exempt) and set(kept) | set(exempt) == set(testing.PROMISES)
    # A promise that would lapse may be claimed.
    kept, exempt = testing.stated(changed("gae", claims={"prompt_independent": {}}))
    assert "prompt_independent" in kept and list(exempt) == ["micro_batches_agree"]


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"claims": {"unbaised": {}}}, "claims 'unbaised', wanted one of .*unbiased"),
        ({"exempt": {"unbiased": "why not"}}, "exempt 'unbiased', wanted .* one of zero_outside_mask"),
        ({"exempt": {"finite": ""}}, "exempt 'finite', wanted a reason"),
        ({"exempt": {"finite": "it overflows"}, "claims": {"finite": {}}}, "exempt 'finite', wanted"),
    ],
)
def test_statements_that_mean_nothing_are_refused(stated, words):
    with pytest.raises(ValueError, match=f"recipe 'rloo': {words}"):
        testing.stated(changed("rloo", **stated))


def test_claims_are_given_by_name_or_with_arguments():
    assert cj.recipe("rloo").claims["unbiased"] == {}
    made = cj.register("claims_with_arguments", claims={"bounded": {"bound": 1.0}}, card=cj.recipe("rloo").card)
    try:
        made(lambda: cj.recipes.registry.Parts(cj.recipe("rloo").estimator, cj.recipe("rloo").objective))
        assert cj.recipe("claims_with_arguments").claims == {"bounded": {"bound": 1.0}}
    finally:
        cj.recipes.registry._REGISTRY.pop("claims_with_arguments")
