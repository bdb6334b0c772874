"""Methods for a situation, and the reporting checklist."""

import importlib
import itertools

import pytest

import creditjax as cj
from creditjax import reporting

# The package has the function under the module's name.
recommend = importlib.import_module("creditjax.recommend")

SITUATIONS = [
    {},
    {"tokens": 300},
    {"signals": ("process_reward", "segment"), "critic": True},
    {"signals": ("state_key", "segment"), "tokens": 8000},
    {"signals": ("coalition_value",), "agents": 3},
    {"branch": True, "critic": True},
    {"signals": tuple(n for n in (*cj.SIGNALS, "segment") if n not in ("value", "agent")), "branch": True, "agents": 2},
]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_nothing_is_recommended_that_cannot_run(situation):
    found = cj.recommend(**situation)
    given = {*situation.get("signals", ()), *(["value"] * situation.get("critic", False))}
    own = {"logprob", "logprob_current", "logprob_ref", "accuracy", "running_baseline", "greedy_outcome"}
    own |= {"self_certainty", "chosen_logit", "sum_pi_squared", "entropy", "agent"}
    for made in found:
        assert set(cj.recipe(made.recipe).needs) <= given | own, made
        assert made.path and made.cost
    names = [made.recipe for made in found]
    assert "grpo" in names and len(set(names)) == len(names)
    assert found == cj.recommend(**situation)


@pytest.mark.parametrize(
    ("situation", "first"),
    [
        ({"tokens": 300}, "rloo"),
        ({"signals": ("process_reward", "segment")}, "pure"),
        ({"signals": ("potential", "segment"), "critic": True}, "a2tgpo"),
        ({"branch": True, "critic": True}, "tempo"),
        ({"critic": True}, "ppo"),
        ({"signals": ("state_key", "segment"), "tokens": 8000}, "gigpo"),
        ({"signals": ("coalition_value",), "agents": 3}, "shapley_exact"),
    ],
)
def test_the_tree_is_followed(situation, first):
    assert cj.recommend(**situation)[0].recipe == first


def test_within_a_family_the_known_come_first_then_what_costs_nothing():
    for situation in SITUATIONS:
        for _, found in itertools.groupby(cj.recommend(**situation), lambda made: made.path):
            rest = [made for made in found if made.recipe not in recommend._ORDER]
            keys = [(made.cost != "nothing beyond the rollouts", made.recipe) for made in rest]
            assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ucas", "the policy's logits"),
        ("optimal_token_baseline", "the policy's logits"),
        ("rltt", "a looped policy"),
        ("frpo", "a pass of the reference policy"),
        ("delta", "the signal hidden"),
        ("t_reg", "the signals logprob_better, logprob_worse; pairwise in G"),
        ("grpo", "nothing beyond the rollouts"),
    ],
)
def test_costs_are_told(name, said):
    everything = cj.recommend((*cj.SIGNALS, "segment"), branch=True, critic=True, agents=2)
    assert said in next(made.cost for made in everything if made.recipe == name)


def test_agents_whose_shares_no_signal_tells():
    one, three = cj.recommend(), cj.recommend(agents=3)
    assert [made.recipe for made in three] == [made.recipe for made in one]
    assert {made.path[0] for made in three} == {
        "3 agents share one outcome, but no signal tells what each of them adds"
    }
    told = cj.recommend(["coalition_value"], agents=3)
    assert not any("no signal" in made.path[0] for made in told)


def test_with_everything_at_hand_every_recipe_fits():
    everything = cj.recommend((*cj.SIGNALS, "segment"), branch=True, critic=True, agents=2)
    assert {made.recipe for made in everything} == set(cj.list_recipes())


def test_situations_that_make_no_sense():
    with pytest.raises(KeyError, match="did you mean .*process_reward"):
        cj.recommend(["proces_reward"])
    with pytest.raises(ValueError, match="agents: 0, wanted at least 1"):
        cj.recommend(agents=0)
    with pytest.raises(ValueError, match="tokens: 0"):
        cj.recommend(tokens=0)


def test_the_checklist_is_the_sources():
    items = reporting.ITEMS
    assert len(items) == 14 and sum(item.required for item in items) == 10
    assert len({item.category for item in items}) == 6 and len({item.id for item in items}) == 14


def test_an_audit_counts_what_applies_and_names_what_is_missing():
    everything = {item.id: "reported" for item in reporting.ITEMS}
    whole, nothing = reporting.audit(everything), reporting.audit({})
    assert (whole.required, whole.all, whole.missing) == (1.0, 1.0, ())
    assert (nothing.required, nothing.all) == (0.0, 0.0)
    assert nothing.missing[:10] == tuple(item.id for item in reporting.ITEMS if item.required)
    partly = reporting.audit(
        everything | {"base_model": "not applicable", "compute": "partial", "spread": "missing", "metric": "missing"}
    )
    assert partly.required == pytest.approx(7.5 / 9) and partly.all == pytest.approx(10.5 / 13)
    assert partly.missing == ("metric", "spread") and partly.partial == ("compute",)
    assert reporting.audit(dict.fromkeys(everything, "not applicable")).all == 1.0


def test_what_is_no_item_and_no_state():
    with pytest.raises(KeyError, match="'metrics' is unknown; did you mean metric"):
        reporting.audit({"metrics": "reported"})
    with pytest.raises(ValueError, match="'yes', wanted one of reported"):
        reporting.audit({"metric": "yes"})


def test_one_name_is_no_sequence_and_half_an_agent_no_agent():
    with pytest.raises(TypeError, match=r"signals: 'value', wanted a sequence of names such as \['value'\]"):
        cj.recommend("value")
    with pytest.raises(ValueError, match="agents: 1.5, wanted at least 1"):
        cj.recommend(agents=1.5)
    with pytest.raises(ValueError, match="tokens: nan, wanted at least 1"):
        cj.recommend(tokens=float("nan"))
    with pytest.raises(ValueError, match=r"checklist item 'compute': \['reported'\], wanted one of"):
        reporting.audit({"compute": ["reported"]})
