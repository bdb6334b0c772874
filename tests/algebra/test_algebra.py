"""Composition: levels, combinators, hyperparameters as data, schedules, sharding, looking inside."""

import chex
import jax
from jax import numpy as jnp
import numpy as np
from oracles.batches import random_batch, to_trajectory
import pytest

import creditjax as cj
from creditjax import algebra
from creditjax.algebra import (
    Level,
    branch_td,
    clip,
    discounted_return,
    gae,
    group_center,
    group_normalize,
    identity,
    leave_one_out,
    linear_schedule,
    min_return,
    outcome,
    rewards,
    scale,
    segment_rewards,
    signal,
    signal_is,
    soft_min,
    state_normalize,
    transform,
)
from creditjax.kernels import group as group_kernel


def toy(outcomes=(1.0, 0.0, 1.0), t=4, **more):
    g = len(outcomes)
    base = dict(tokens=np.zeros((1, g, t), int), action_mask=np.ones((1, g, t), bool), outcome=np.array([outcomes]))
    return cj.Trajectory(**{**base, **more})


def value(estimator, batch, **options):
    return np.asarray(cj.estimate(estimator, batch, **options).value)


# -------------------------------------------------------------------------------------------------- levels and chains


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cj.chain(), "no pieces"),
        (lambda: cj.chain(outcome(), soft_min(0.1)), "soft_min takes SEGMENT, outcome gives TRAJECTORY"),
        (lambda: cj.chain(outcome(), outcome()), "outcome is a source and has to come first"),
        (lambda: cj.chain(outcome(), 3.0), "piece 1 is 3.0"),
        (lambda: cj.chain(cj.recipe("grpo"), scale(2.0)), r"chain: piece 0 is Recipe, .*; did you mean \.estimator\?"),
        (lambda: cj.blend((cj.recipe("grpo"), 1.0)), r"blend: part 0 is Recipe, .*; did you mean \.estimator\?"),
        (lambda: cj.gate(cj.recipe("grpo")), r"gate: given Recipe, .*; did you mean \.estimator\?"),
        (lambda: cj.explain(cj.recipe("grpo")), r"estimator: Recipe, .*; did you mean \.estimator\?"),
        (lambda: cj.estimate(cj.recipe("grpo"), toy()), r"estimator: Recipe, .*; did you mean \.estimator\?"),
        (lambda: cj.credit_trace(cj.recipe("grpo"), toy()), r"did you mean \.estimator\?"),
        (lambda: cj.estimate("rloo", toy()), r"did you mean creditjax.recipe\('rloo'\).estimator\?"),
        (lambda: cj.estimate(toy(), outcome()), "estimator: Trajectory, .*; the estimator comes first"),
        (lambda: cj.chain([outcome(), scale(2.0)]), "piece 0 is list, .*; give the pieces one by one"),
        (lambda: cj.chain(outcome), r"the function outcome, .*; did you mean outcome\(\)\?"),
        (lambda: transform(takes="TRAJECTORY", gives=None), "takes or gives 'TRAJECTORY', wanted a Level"),
        (lambda: transform(takes=None, gives=Level.TOKEN, needs="value"), r"wanted a tuple of names, \('value',\)"),
        (lambda: cj.register(len), "wanted a name"),
        (lambda: cj.blend((outcome(), 1.0), (scale(2.0), 1.0)), "sources and transforms mixed"),
        (lambda: cj.blend((outcome(), "1")), "wanted a float or a schedule"),
        (lambda: cj.route((scale(2.0), outcome())), "have to start with a source"),
        (lambda: cj.gate(scale(2.0)), "is no source"),
        (lambda: group_normalize(dof=1), "group_normalize has no hyperparameter 'dof'; did you mean ddof"),
        (lambda: scale(), r"scale\(factor: float\): missing a required argument: 'factor'"),
        (lambda: group_normalize(eps="small"), "wanted a float"),
        (lambda: group_normalize(eps=True), "group_normalize: eps = True, wanted a float"),
        (lambda: discounted_return(causal="False"), "discounted_return: causal = 'False', wanted a bool"),
        (lambda: discounted_return(bootstrap=0), "bootstrap = 0, wanted a bool"),
        (lambda: signal_is("agent", 1.0), "signal_is: value = 1.0, wanted an int"),
        (lambda: signal_is("agent", True), "signal_is: value = True, wanted an int"),
        (lambda: state_normalize(3), "state_normalize: key = 3, wanted a str"),
        (lambda: linear_schedule(0.0, "1", 5), "linear_schedule: stop = '1', wanted a number"),
    ],
)
def test_what_does_not_compose_is_refused_when_it_is_built(make, said):
    with pytest.raises(TypeError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: group_normalize(single="row"), "group_normalize: single = 'row'; did you mean raw"),
        (lambda: group_normalize(per="x"), "per = 'x'; it is one of rollouts, segments, tokens"),
        (lambda: gae(truncation="dorp"), "did you mean drop"),
        (lambda: group_normalize(ddof=2), "group_normalize: ddof = 2; it is one of 0, 1"),
        (lambda: group_normalize(ddof=True), "group_normalize: ddof = True"),
        (lambda: cj.recipe("grpo", ddof=3), "ddof = 3; it is one of 0, 1"),
        (lambda: scale(float("nan")), "scale: factor = nan, wanted a finite number"),
        (lambda: scale(np.float64("inf")), "scale: factor = inf, wanted a finite number"),
        (lambda: scale(1e300), r"scale: factor = 1e\+300, wanted a finite number"),
        (lambda: clip(float("nan"), 1.0), "clip: low = nan, wanted a number or inf"),
        (lambda: cj.blend((outcome(), float("nan"))), r"blend\(weight 0\) = nan"),
        (lambda: linear_schedule(0.0, float("inf"), 5), "linear_schedule: stop = inf"),
        (lambda: cj.recipe("grpo", eps_clip=float("nan")), r"recipe\(.grpo., eps_clip=nan\): .*eps_low = nan"),
        (lambda: state_normalize("agent"), r"signal 'agent' is int32 \[P, G, T\], wanted int32 \[P, G, K\]"),
        (lambda: state_normalize("process_reward"), r"is float32 \[P, G, K\], wanted int32 \[P, G, K\]"),
        (lambda: signal_is("value", 1), r"signal_is: signal 'value' is float32 \[P, G, T\], wanted int32"),
        (lambda: algebra.subtract_signal("accuracy"), r"wanted float32 \[P, G, T\] or \[P\] or \[\]"),
        (lambda: algebra.potential_difference("answer_logprob"), r"wanted float32 \[P, G, K\+1\]"),
        (lambda: algebra.add_potential_shaping("process_reward"), r"wanted float32 \[P, G, K\+1\] or"),
        (lambda: algebra.log_ratio("agent", "logprob"), "log_ratio: signal 'agent' is int32"),
        (lambda: algebra.drop_constant_groups("value"), r"wanted \[P, G\]"),
        (lambda: soft_min(0.0), "soft_min: temperature = 0, wanted > 0.*min_return.*strict_min"),
        (lambda: soft_min(linear_schedule(0.1, -0.1, 5)), "temperature = -0.1, wanted > 0"),
    ],
)
def test_what_is_none_of_the_choices_is_refused_when_it_is_built(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: state_normalize("state_keys"), "did you mean state_key"),
        (lambda: signal_is("agent_id", 0), "called 'agent' here"),
        (lambda: algebra.log_ratio("logprob", "logprob_reff"), "did you mean logprob_ref"),
    ],
)
def test_a_piece_knows_the_signals_when_it_is_built(make, said):
    with pytest.raises(KeyError, match=said):
        make()


def test_a_piece_takes_any_signal_of_the_right_kind():
    assert algebra.log_ratio("logprob", "logprob_ref").needs == ("logprob", "logprob_ref")
    assert algebra.drop_constant_groups("outcome").needs == ()  # every batch has outcomes
    assert algebra.drop_constant_groups("accuracy").needs == ("accuracy",)
    for name in ("value", "greedy_outcome", "running_baseline"):
        assert algebra.subtract_signal(name).needs == (name,)
    for name in ("potential", "answer_logprob"):
        assert algebra.add_potential_shaping(name).needs == (name, "segment")


def test_chains_flatten_and_know_their_needs():
    inner = cj.chain(segment_rewards(), discounted_return(0.9))
    outer = cj.chain(inner, state_normalize("state_key"))
    assert [piece.name for piece in outer.children] == ["segment_rewards", "discounted_return", "state_normalize"]
    assert outer.is_source and outer.gives is cj.Level.SEGMENT
    assert set(outer.needs) == {"segment", "state_key"}


def test_what_is_no_estimator_or_no_batch_is_refused():
    with pytest.raises(TypeError, match="wanted a source"):
        cj.estimate(group_normalize(), toy())
    with pytest.raises(TypeError, match="wanted a Trajectory"):
        cj.estimate(outcome(), {"outcome": 1})
    one_group = jax.tree.map(lambda x: x[0], toy())
    with pytest.raises(ValueError, match=r"wanted \[P, G, T\]"):
        cj.estimate(outcome(), one_group)
    for empty in (jax.tree.map(lambda x: x[:0], toy()), jax.tree.map(lambda x: x[:, :0], toy()), toy(t=0)):
        with pytest.raises(ValueError, match="tokens: shape .*, wanted at least one prompt, rollout and position"):
            cj.estimate(outcome(), empty)


@pytest.mark.parametrize("step", [1.5, True, np.float32(1.0), "1", np.arange(2)])
def test_a_step_is_an_integer(step):
    with pytest.raises(TypeError, match="step: .*, wanted an integer"):
        cj.estimate(outcome(), toy(), step=step)


def test_a_mesh_comes_with_the_axes_to_split_over():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with pytest.raises(ValueError, match=r"mesh_axes: \(\), wanted the axes to split prompts over"):
        cj.estimate(outcome(), toy(), mesh=mesh)
    with pytest.raises(ValueError, match=r"mesh_axes: \('date',\), wanted .*'data'"):
        cj.estimate(outcome(), toy(), mesh=mesh, mesh_axes=("date",))


def test_a_mesh_with_explicit_axes_is_refused():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with pytest.raises(ValueError, match="mesh: axes data are Explicit, wanted jax.sharding.AxisType.Auto"):
        cj.estimate(outcome(), toy(), mesh=mesh, mesh_axes=("data",))


# -------------------------------------------------------------------------------------------------------- combinators


def test_blend_is_the_weighted_sum_and_nests():
    batch = toy()
    a, b = cj.chain(outcome(), group_center()), cj.chain(outcome(), leave_one_out())
    want = 0.5 * value(a, batch) - 2.0 * value(b, batch)
    np.testing.assert_allclose(value(cj.blend((a, 0.5), (b, -2.0)), batch), want, rtol=1e-6)
    inside = cj.chain(outcome(), cj.blend((group_center(), 0.5), (leave_one_out(), -2.0)))
    assert inside.gives is cj.Level.TRAJECTORY
    np.testing.assert_allclose(value(inside, batch), want, rtol=1e-6)


def test_blend_lifts_parts_of_different_levels():
    piece = cj.chain(outcome(), group_center(), cj.blend((identity(), 1.0), (branch_td(), 0.0)))
    assert piece.gives is cj.Level.TOKEN
    np.testing.assert_allclose(value(piece, toy()), value(cj.chain(outcome(), group_center()), toy()), rtol=1e-6)


def test_blend_assigns_where_any_part_does():
    scores = np.full((1, 3, 2), np.nan)
    scores[0, 0, 0] = 0.5
    segment = np.array([[[0, 0, 1, 1]] * 3])
    batch = toy(segment=segment, num_segments=2, signals={"process_reward": scores})
    both = cj.estimate(cj.blend((signal("process_reward"), 1.0), (outcome(), 1.0)), batch)
    assert both.valid.all() and np.isfinite(both.value).all()
    alone = cj.estimate(signal("process_reward"), batch)
    assert alone.valid.tolist() == [[[True, True, False, False], [False] * 4, [False] * 4]]


def test_route_keeps_channels_apart():
    agent = np.array([[[0, 1, 0, -1]] * 3])
    batch = toy(signals={"agent": agent})
    routed = cj.route((signal_is("agent", 0), cj.chain(outcome(), group_center())), (signal_is("agent", 1), outcome()))
    result = cj.estimate(routed, batch)
    np.testing.assert_allclose(result.value[0, 0], [1 / 3, 1.0, 1 / 3, 0.0], rtol=1e-6)
    assert result.valid[0, 0].tolist() == [True, True, True, False]


def test_where_gate_and_modulate():
    agent = np.array([[[0, 1, 0, 1]] * 3])
    batch = toy(signals={"agent": agent, "entropy": np.full((1, 3, 4), 0.5)})
    first = signal_is("agent", 0)
    either = cj.where(first, outcome(), cj.chain(outcome(), scale(3.0)))
    np.testing.assert_allclose(value(either, batch)[0, 0], [1, 3, 1, 3])
    gated = cj.estimate(cj.chain(outcome(), cj.gate(first)), batch)
    np.testing.assert_allclose(gated.value[0, 0], [1, 0, 1, 0])
    assert gated.valid.all()
    np.testing.assert_allclose(value(cj.chain(outcome(), cj.modulate(signal("entropy"))), batch)[0, 0], [0.5] * 4)


def test_two_parts_may_not_set_the_same_extra():
    batch = toy(signals={"value": np.zeros((1, 3, 4))})
    advantage = cj.chain(rewards(), cj.algebra.gae(gamma=0.9))
    with pytest.raises(ValueError, match="both set the extra 'value_target'"):
        cj.estimate(cj.blend((advantage, 1.0), (advantage, 1.0)), batch)


# ------------------------------------------------------------------------------------------- hyperparameters are data


def test_new_values_do_not_retrace_whatever_their_python_type():
    batch = toy()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(estimator, batch):
        return cj.estimate(estimator, batch).value

    for gamma in (1, 0.9, 0.99, np.float64(0.5), jnp.float32(0.1)):
        run(cj.chain(rewards(), discounted_return(gamma)), batch)


def test_vmap_over_a_hyperparameter():
    batch = toy((1.0,), 3, reward=np.ones((1, 1, 3)))
    sweep = cj.chain(rewards(), discounted_return(jnp.array([0.0, 0.5, 1.0])))
    axes = jax.tree.map(lambda x: 0 if jnp.ndim(x) else None, sweep)
    got = jax.vmap(lambda e: cj.estimate(e, batch).value, in_axes=(axes,))(sweep)
    np.testing.assert_allclose(got[:, 0, 0, 0], [1.0, 1.75, 3.0])


@pytest.mark.parametrize("estimator", [outcome(), cj.chain(outcome(), scale(2.0))])
def test_a_vector_is_no_hyperparameter_unless_it_is_mapped_over(estimator):
    batch = toy()
    with pytest.raises(ValueError, match=r"scale: factor has shape \[4\], wanted a scalar \(vmap over it\)"):
        cj.estimate(cj.chain(estimator, scale(jnp.arange(4.0))), batch)
    with pytest.raises(ValueError, match=r"blend: weight_0 has shape \[3\], wanted a scalar"):
        cj.estimate(cj.blend((estimator, np.ones(3))), batch)


def test_a_limit_may_be_infinite():
    low = cj.chain(outcome(), scale(2.0), clip(-float("inf"), 1.0))
    np.testing.assert_allclose(value(low, toy((-3.0, 0.0, 1.0)))[0, :, 0], [-6.0, 0.0, 1.0])
    assert cj.recipe("dapo", dual_clip=float("inf")).hyperparameters["dual_clip"] == np.inf


def test_fewer_voters_than_a_spread_takes_get_no_credit():
    x, ones = jnp.array([1.0, 0.0]), jnp.ones(2)
    for ddof in (2, 3):
        assert group_kernel.normalize(x, ones, ddof=ddof).tolist() == [0.0, 0.0]
        assert group_kernel.top_margin(x, ones, ddof=ddof, divide=True).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(group_kernel.normalize(x, ones, ddof=1, eps=0.0), [0.5**0.5, -(0.5**0.5)], rtol=1e-6)
    np.testing.assert_allclose(group_kernel.normalize(x, ones, ddof=0, eps=0.0), [1.0, -1.0], rtol=1e-6)


def test_a_schedule_is_a_value():
    batch = toy()
    piece = cj.chain(outcome(), scale(linear_schedule(0.0, 2.0, length=10, begin=5)))
    for step, factor in [(0, 0.0), (5, 0.0), (10, 1.0), (15, 2.0), (99, 2.0)]:
        np.testing.assert_allclose(value(piece, batch, step=step)[0, 0], factor)


def test_a_transform_of_your_own():
    @cj.transform(takes=cj.Level.TRAJECTORY, gives=cj.Level.TRAJECTORY)
    def shifted(credit, batch, *, by: float):
        """Adds a constant."""
        return credit.with_value(credit.value + by)

    np.testing.assert_allclose(value(cj.chain(outcome(), shifted(2.0)), toy())[0, 1], 2.0)
    assert repr(shifted(2.0)) == "shifted(by=2)"


# ---------------------------------------------------------------------------------------------------------- sharding


@pytest.mark.parametrize(
    "name", ["grpo", "reinforce_plus_plus", "gpg", "ucas", "prime", "skillgate", "reinforce_baseline"]
)
def test_shard_map_and_sharded_jit_equal_one_device(name):
    options = {"baseline": "batch"} if name == "reinforce_baseline" else {}
    recipe = cj.recipe(name, **options)
    batch = to_trajectory(random_batch(np.random.default_rng(3), 8, 3, 10, 4), recipe.needs + recipe.estimator.uses)
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    want = value(recipe.estimator, batch)
    mapped = cj.estimate(recipe.estimator, batch, mesh=mesh, mesh_axes=("data", "fsdp")).value
    np.testing.assert_allclose(mapped, want, rtol=1e-4, atol=1e-5)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = jax.tree.map(lambda x: jax.device_put(x, split if jnp.ndim(x) else whole), batch)
    program = jax.jit(lambda e, b: cj.estimate(e, b).value, out_shardings=split)
    np.testing.assert_allclose(program(recipe.estimator, placed), want, rtol=1e-4, atol=1e-5)
    assert "all-gather" not in program.lower(recipe.estimator, placed).compile().as_text()


# ------------------------------------------------------------------------------------------------------ looking inside


def test_explain_and_trace():
    estimator = cj.recipe("gigpo").estimator
    said = cj.explain(estimator)
    assert "state_normalize" in said and "needs state_key" in said and "SEGMENT[K]" in said
    written = cj.chain(signal("value"), cj.modulate(signal("entropy")))
    assert repr(written) == "chain(signal('value'), modulate(signal('entropy')))"
    assert "signal('value')" in cj.explain(written) and "join" not in cj.explain(written)
    assert repr(signal_is("agent", 0)) == "signal_is('agent', value=0)"
    trace = cj.credit_trace(cj.recipe("grpo").estimator, toy())
    assert [credit.level for _, credit in trace] == [cj.Level.TRAJECTORY] * 2
    np.testing.assert_allclose(trace[0][1].value, [[1.0, 0.0, 1.0]])


def test_a_missing_signal_is_named_with_axes_and_producer():
    with pytest.raises(
        ValueError, match=r"signal 'state_key': absent, wanted int32 \[P, G, K\].*made by creditjax.tasks.lookup"
    ):
        cj.estimate(cj.recipe("gigpo").estimator, toy(segment=np.zeros((1, 3, 4), int), num_segments=1))


# --------------------------------------------------------------------------------------------------------- the registry


def test_the_registry_says_what_is_near():
    with pytest.raises(KeyError, match="did you mean .*grpo"):
        cj.recipe("gpro")
    with pytest.raises(TypeError, match="did you mean eps_clip"):
        cj.recipe("grpo", epsclip=0.1)
    with pytest.raises(ValueError, match="registered already"):
        cj.register("grpo")


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("grpo", dict(eps_clip="x"), "recipe 'grpo': eps_clip = 'x', wanted a float"),
        ("grpo", dict(eps_clip=True), "recipe 'grpo': eps_clip = True, wanted a float"),
        ("grpo", dict(single=1), "recipe 'grpo': single = 1, wanted a str"),
        ("reinforce", dict(causal="False"), "recipe 'reinforce': causal = 'False', wanted a bool"),
        ("dr_grpo", dict(max_length=8.0), "recipe 'dr_grpo': max_length = 8.0, wanted an int"),
        ("dr_grpo", dict(max_length=None), "recipe 'dr_grpo': max_length = None, wanted an int"),
        ("ppo", dict(dual_clip="3"), "recipe 'ppo': dual_clip = '3', wanted a float or None"),
        ("gdpo", dict(weights=1.0), "recipe 'gdpo': weights = 1.0, wanted a tuple"),
    ],
)
def test_a_constant_of_another_type_is_refused_by_the_recipe(name, overrides, said):
    with pytest.raises(TypeError, match=said):
        cj.recipe(name, **overrides)


def test_a_recipe_takes_ints_schedules_and_none_where_it_says_so():
    assert cj.recipe("grpo", eps_clip=1, eps=linear_schedule(1e-3, 1e-6, 5)).hyperparameters["eps_clip"] == 1
    assert cj.recipe("ppo", dual_clip=None).hyperparameters["dual_clip"] is None


def test_every_recipe_has_a_card_and_a_docstring():
    for name in cj.list_recipes():
        recipe = cj.recipe(name)
        assert recipe.card.id == name and recipe.card.granularity
        assert recipe.objective.needs is not None


@pytest.mark.parametrize(
    ("gives", "scope", "body", "said"),
    [
        (Level.TOKEN, "group", lambda x, b: x, r"made: returned level TRAJECTORY\[\], declared TOKEN\[T\]"),
        (None, "group", lambda x, b: x.value, "made: returned .*, wanted a Credit"),
        (
            None,
            "group",
            lambda x, b: x.replace(value=b.tokens * 1.0),
            r"made: returned value of shape \[3, 4\], wanted \[3\] for level TRAJECTORY",
        ),
        (None, "batch", lambda x, b: x.replace(valid=x.valid[0]), r"returned valid of shape \[3\], wanted \[1, 3\]"),
    ],
)
def test_what_a_piece_returns_is_held_against_what_it_declares(gives, scope, body, said):
    if scope == "group":

        @transform(takes=Level.TRAJECTORY, gives=gives)
        def made(credit, batch):
            return body(credit, batch)

    else:

        @transform(takes=Level.TRAJECTORY, gives=gives, scope="batch")
        def made(credit, batch, context):
            return body(credit, batch)

    with pytest.raises((TypeError, ValueError), match=said):
        cj.estimate(cj.chain(outcome(), made()), toy())


def test_a_missing_field_names_the_innermost_piece_that_needs_it():
    signals = {"state_key": np.zeros((1, 3, 2), np.int32)}
    with pytest.raises(
        ValueError, match=r"segment: absent, but segment_rewards needs this field, wanted int32 \[..., T\]"
    ):
        cj.estimate(cj.recipe("gigpo").estimator, toy().replace(num_segments=2, signals=signals))


def test_a_recipe_of_ones_own_brings_its_card():
    card = cj.recipes.Card("mine", "Mine", "A note", "unpublished", "trajectory", "monte-carlo")
    registry = cj.recipes.registry
    try:
        cj.register("mine", card=card)(lambda: cj.recipes.Parts(outcome(), cj.recipe("grpo").objective))
        cj.register("cardless")(lambda: cj.recipes.Parts(outcome(), cj.recipe("grpo").objective))
        cj.register("partless", card=card)(lambda: outcome())
        assert cj.recipe("mine").card is card
        with pytest.raises(ValueError, match="'cardless' has no card"):
            cj.recipe("cardless")
        with pytest.raises(TypeError, match="'partless': its function returned Transform, wanted Parts"):
            cj.recipe("partless")
    finally:
        for name in ("mine", "cardless", "partless"):
            registry._REGISTRY.pop(name, None)


def test_two_channels_have_their_mass_whatever_their_lengths():
    """SkillGate: N / N_task for a task token, weight N / M for all the tokens that name one read skill together."""
    call = np.array([[[-1, 0, 0, 0, -1, 1, 1, -1], [-1, -1, 0, 0, 0, -1, -1, -1]]] * 2)
    named = np.array([[[0, 0, 1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0, 0]]] * 2, bool)
    mask = np.ones((2, 2, 8), bool)
    mask[..., -1] = False
    # Nobody in the second group read the helpful skill: its reads have no credit, and no mass.
    helpful = np.array([[[1, 0], [1, 0]], [[0, 0], [0, 0]]], bool)
    read = np.array([[[1, 1], [1, 0]]] * 2, bool)
    batch = cj.Trajectory(
        tokens=np.zeros((2, 2, 8), int),
        action_mask=mask,
        outcome=np.array([[1.0, 0.0]] * 2),
        signals=dict(read_call=call, read_identity=named, read_is_oracle=helpful, read_mask=read),
    )
    weight = 0.3
    found = cj.estimate(cj.chain(algebra.read_choice(), algebra.balance_loss_mass(weight)), batch)
    task = mask & (call < 0)
    live = named & mask & (np.asarray(found.value) != 0)
    actions = {(p, g, call[p, g, t]) for p, g, t in np.argwhere(live)}
    want = np.where(task, mask.sum() / task.sum(), 0.0)
    for p, g, k in actions:
        own = named[p, g] & mask[p, g] & (call[p, g] == k)
        want[p, g, own] = weight * mask.sum() / len(actions) / own.sum()
    assert len(actions) == 3 and not live[1].any()
    np.testing.assert_allclose(found.extras["loss_weight"], want, rtol=1e-6)
    np.testing.assert_allclose(want[live].sum(), weight * mask.sum())
    np.testing.assert_allclose(want[task].sum(), mask.sum())


def test_a_step_that_was_never_scored_is_not_the_worst():
    batch = toy((1.0,), t=3, segment=np.arange(3)[None, None], num_segments=3,
                signals={"process_reward": np.array([[[0.5, np.nan, 0.7]]], np.float32)})  # fmt: skip
    worst = value(cj.chain(signal("process_reward"), min_return()), batch)
    np.testing.assert_allclose(worst, [[[0.5, 0.7, 0.7]]])
