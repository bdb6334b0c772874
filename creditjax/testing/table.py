"""All assertions by name, and which of them hold for an estimator."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from creditjax.testing import invariance, laws, program, shapley, truth
from creditjax.testing.check import Estimator, reads

PROPERTIES: dict[str, Callable[..., None]] = {
    name.removeprefix("assert_"): assertion
    for module in (invariance, laws, shapley, truth, program)
    for name, assertion in vars(module).items()
    if name.startswith("assert_")
}
"""Every assertion, by its name without ``assert_``."""

# What cannot be asked without a number or another estimator.
_ASKED = ("bounded", "sums_preserved", "variance_at_most")
_OF_COALITIONS = ("efficient", "symmetric", "null_player")


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
      By property "holds", "does not hold: …" with the first line of the counterexample, or "not checked: …" with the
      reason why the question could not be put.

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
        assertion(estimator, **options)
    except AssertionError as error:
        counterexample = str(error).splitlines()[0].removeprefix(f"{assertion.__name__}: ")
        return f"does not hold: {counterexample}"
    except (KeyError, TypeError, ValueError) as error:
        return f"not checked: {str(error.args[0] if error.args else error).splitlines()[0]}"
    return "holds"
