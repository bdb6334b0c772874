"""All assertions by name, which of them hold for an estimator, and which of them a recipe states."""

from collections.abc import Callable, Iterable, Mapping
import inspect
from typing import Any, NamedTuple

from creditjax.recipes import Recipe
from creditjax.testing import invariance, laws, program, shapley, truth
from creditjax.testing.check import Estimator, NotTraced, reads

PROPERTIES: dict[str, Callable[..., None]] = {
    name.removeprefix("assert_"): assertion
    for module in (invariance, laws, shapley, truth, program)
    for name, assertion in vars(module).items()
    if name.startswith("assert_")
}
"""Every assertion, by its name without ``assert_``."""

PROMISES = (
    "zero_outside_mask",
    "finite",
    "padding_invariant",
    "permutation_equivariant",
    "expansion_invariant",
    "prompt_independent",
    "micro_batches_agree",
    "jit_vmap_agree",
    "sharding_agrees",
    "dtype_stable",
    "gradient_stopped",
    "no_recompilation",
    "linear_cost",
)
"""What every recipe promises unless it says otherwise."""

# What a law that holds says about others.
_IMPLIED = {"unbiased": "unbiased_up_to_scale"}

# What cannot be asked without a number or another estimator.
_ASKED = ("bounded", "sums_preserved", "variance_at_most")
_OF_COALITIONS = ("efficient", "symmetric", "null_player")


class Stated(NamedTuple):
    """What a recipe says of itself.

    Attributes:
      kept: promises and claims, each with the arguments of its assertion.
      exempt: promises that it does not keep, each with the reason.
    """

    kept: dict[str, Mapping[str, Any]]
    exempt: dict[str, str]


def stated(recipe: Recipe) -> Stated:
    """What a recipe promises, claims and opts out of; how to state it is told at `creditjax.register`.

    Raises:
      ValueError: a claim that is no property, an exemption that is no promise or has no reason, or a property that is
        both claimed and exempt.
    """
    lapsed: dict[str, str] = {}
    if recipe.batch_statistics:
        lapsed |= dict.fromkeys(("prompt_independent", "micro_batches_agree"), "it takes statistics over the batch")
    if recipe.cost.startswith("quadratic in T"):
        lapsed["linear_cost"] = f"its cost is {recipe.cost}"
    for name in recipe.claims:
        if name not in PROPERTIES:
            raise ValueError(f"recipe {recipe.name!r}: claims {name!r}, wanted one of {', '.join(PROPERTIES)}")
    for name, reason in recipe.exempt.items():
        if name not in PROMISES or name in recipe.claims or not reason:
            raise ValueError(
                f"recipe {recipe.name!r}: exempt {name!r}, wanted a reason for one of {', '.join(PROMISES)}"
            )
    exempt = {name: why for name, why in {**lapsed, **recipe.exempt}.items() if name not in recipe.claims}
    kept: dict[str, Mapping[str, Any]] = {name: {} for name in PROMISES if name not in exempt}
    kept |= {_IMPLIED[name]: {} for name in recipe.claims if name in _IMPLIED}
    return Stated(kept | dict(recipe.claims), exempt)


def check_all(
    estimator: Estimator, claims: Iterable[str] | Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, str]:
    """Which properties an estimator has.

    Args:
      estimator: a `Transform` or a function.
      claims: names of properties, or a mapping from names to the arguments of their assertions, as in
        ``{"bounded": {"bound": 2.0}}``. All that need no argument by default; those about coalitions only if the
        estimator reads their values.

    Returns:
      By property "holds", "does not hold: …" with a counterexample in one line, or "not checked: …" with the reason
      why the question could not be put, as one about programs to a function that JAX cannot trace. The smallest
      counterexample is what the assertion itself shows.

    Raises:
      KeyError: a property that there is not.
    """
    if claims is None:
        left_out = {*_ASKED, *(() if "coalition_value" in reads(estimator) else _OF_COALITIONS)}
        claims = [name for name in PROPERTIES if name not in left_out]
    given = claims if isinstance(claims, Mapping) else dict.fromkeys(claims, {})
    if unknown := [name for name in given if name not in PROPERTIES]:
        raise KeyError(f"claims: {unknown[0]!r}, wanted some of {', '.join(PROPERTIES)}")
    return {name: _verdict(PROPERTIES[name], estimator, options) for name, options in given.items()}


def _verdict(assertion: Callable[..., None], estimator: Estimator, options: Mapping[str, Any]) -> str:
    try:
        assertion(estimator, **{**_quick(assertion), **options})
    except NotTraced as error:
        # Whether it can be transformed is what this one asks, and the others take for granted.
        kind = "does not hold" if assertion is program.assert_jit_vmap_agree else "not checked"
        return f"{kind}: {_first_line(error).removeprefix(f'{assertion.__name__}: ')}"
    except AssertionError as error:
        return f"does not hold: {_first_line(error).removeprefix(f'{assertion.__name__}: ')}"
    except Exception as error:  # whatever an estimator raises is a reason, and the other questions are still to be put
        return f"not checked: {_first_line(error)}"
    return "holds"


def _first_line(error: BaseException) -> str:
    said = str(error.args[0]) if error.args else ""
    return next(iter(said.splitlines()), type(error).__name__)


def _quick(assertion: Callable[..., None]) -> dict[str, Any]:
    # The search for the smallest batch compiles a program a shape, which one line does not need.
    kinds = [parameter.kind for parameter in inspect.signature(assertion).parameters.values()]
    return {"shrink": False} if inspect.Parameter.VAR_KEYWORD in kinds else {}
