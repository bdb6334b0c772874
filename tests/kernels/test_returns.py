"""Returns and advantages against float64 loops, the fault cases, and the identities of the cards."""

import chex
from hypothesis import given
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest
import stream_reference as reference

from creditjax.kernels import recurrence, returns

# One short stream, one with a carry over blocks that does not fill the last one.
LENGTHS = (9, 150)


def stream(seed: int, length: int, nan_padding: bool = True):
    """A ragged stream: gaps, padding, rewards and flags on and off acted positions, NaN where nothing may be read."""
    rng = np.random.default_rng(seed)
    mask = rng.random(length) < rng.choice([0.3, 0.7, 1.0])
    mask[int(rng.integers(length // 2, length + 1)) :] = False
    arrays = {name: rng.normal(size=length).astype(np.float32) for name in ("reward", "value", "next_value")}
    arrays["terminated"] = rng.random(length) < rng.choice([0.0, 0.05, 0.3])
    arrays["truncated"] = rng.random(length) < rng.choice([0.0, 0.05, 0.3])
    for name in ("value", "next_value"):
        arrays[name][~mask] = np.nan if nan_padding else 0.0
    arrays["reward"][~mask & (rng.random(length) < 0.5)] = np.nan if nan_padding else 0.0
    return mask, arrays


def pick(arrays, *names):
    return {name: arrays[name] for name in names}


OPTIONS = [(), ("next_value",), ("terminated",), ("next_value", "terminated", "truncated"), ("terminated", "truncated")]
gae = jax.jit(returns.gae, static_argnames="truncation")
discounted_return = jax.jit(returns.discounted_return, static_argnames="count_observations")
n_step_return = jax.jit(returns.n_step_return, static_argnames="n")
seeds = st.integers(0, 2**32 - 1)
unit = st.floats(0.0, 1.0, width=32)


def close(actual, wanted, tolerance=2e-5):
    wanted = np.asarray(wanted)
    np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance * max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("length", [1, 2, 64, 129, 150, 4096, 4100, 8193])
@pytest.mark.parametrize("reverse", [True, False])
def test_recurrence_is_the_loop(length, reverse):
    rng = np.random.default_rng(length)
    a = np.where(rng.random(length) < 0.1, 0.0, rng.choice([1.0, 0.97, 0.5], length)).astype(np.float32)
    b = rng.normal(size=length).astype(np.float32)
    carry, wanted = 0.0, np.zeros(length)
    for t in reversed(range(length)) if reverse else range(length):
        wanted[t] = carry
        carry = float(b[t]) + float(a[t]) * carry
    close(jax.jit(recurrence.carry_in, static_argnames="reverse")(a, b, reverse=reverse), wanted, 1e-5)


def test_recurrence_gradient_is_the_solution_of_the_transposed_system():
    rng = np.random.default_rng(0)
    length = 150
    a, b, w = rng.random(length), rng.normal(size=length), rng.normal(size=length)
    system = np.eye(length) - np.diag(a[:-1], 1)
    x = np.linalg.solve(system, b)
    da, db = jax.grad(lambda a, b: jnp.sum(recurrence.reverse_linear_recurrence(a, b) * w), argnums=(0, 1))(
        jnp.float32(a), jnp.float32(b)
    )
    wanted = np.linalg.solve(system.T, w)
    close(db, wanted)
    close(da, wanted * np.append(x[1:], 0.0))


def test_recurrence_refuses_batches_and_unequal_streams():
    with pytest.raises(ValueError, match=r"a, b: float32 \[3\] and float32 \[4\], wanted two streams"):
        recurrence.reverse_linear_recurrence(jnp.ones(3), jnp.ones(4))
    with pytest.raises(ValueError, match="wanted two streams"):
        recurrence.reverse_linear_recurrence(jnp.ones((2, 3)), jnp.ones((2, 3)))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("length", LENGTHS)
def test_gae_is_the_loop(length, options):
    @given(seeds, unit, unit)
    def check(seed, gamma, lam):
        mask, arrays = stream(seed, length)
        flags = pick(arrays, *options)
        args = (arrays["reward"], arrays["value"], mask, gamma, lam)
        advantage, target = gae(*args, **flags)
        wanted = reference.gae(*args, **flags)
        close(advantage, wanted[0])
        close(target, wanted[1])
        assert not np.any(np.asarray(advantage)[~mask]) and not np.any(np.asarray(target)[~mask])

    check()


@given(seeds)
def test_gae_drops_truncated_steps(seed):
    mask, arrays = stream(seed, 150)
    flags = pick(arrays, "next_value", "terminated", "truncated")
    args = (arrays["reward"], arrays["value"], mask, 0.9, 0.8)
    for actual, wanted in zip(
        gae(*args, **flags, truncation="drop"), reference.gae(*args, **flags, truncation="drop"), strict=True
    ):
        close(actual, wanted)


@given(seeds)
def test_gae_reads_gamma_and_lambda_at_acted_positions(seed):
    mask, arrays = stream(seed, 150)
    rng = np.random.default_rng(seed)
    gamma, lam = (np.where(mask, rng.random(150), np.nan).astype(np.float32) for _ in range(2))
    for options in ((), ("next_value", "terminated", "truncated")):
        args = (arrays["reward"], arrays["value"], mask, gamma, lam)
        flags = pick(arrays, *options)
        for actual, wanted in zip(gae(*args, **flags), reference.gae(*args, **flags), strict=True):
            close(actual, wanted)


@pytest.mark.parametrize("count_observations", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_discounted_return_is_the_sum(options, count_observations):
    @given(seeds, unit)
    def check(seed, gamma):
        mask, arrays = stream(seed, 150)
        kept = dict(pick(arrays, *options), count_observations=count_observations)
        close(
            discounted_return(arrays["reward"], mask, gamma, **kept),
            reference.discounted_return(arrays["reward"], mask, gamma, **kept),
        )

    check()


@pytest.mark.parametrize(("options", "n"), [(OPTIONS[0], 3), (OPTIONS[3], 3), (OPTIONS[4], 2)])
def test_n_step_return_is_the_sum(options, n):
    @given(seeds, unit)
    def check(seed, gamma):
        mask, arrays = stream(seed, 150)
        args = (arrays["reward"], arrays["value"], mask, gamma, n)
        flags = pick(arrays, *options)
        close(n_step_return(*args, **flags), reference.n_step_return(*args, **flags))

    check()


@given(seeds, unit)
def test_identities_in_lambda(seed, gamma):
    """lambda = 0 is the TD error, lambda = 1 the bootstrapped return minus the value (C03's oracle)."""
    mask, arrays = stream(seed, 150)
    reward, value = arrays["reward"], arrays["value"]
    flags = pick(arrays, "next_value", "terminated", "truncated")
    close(gae(reward, value, mask, gamma, 0.0, **flags).advantage, td(reward, value, mask, gamma, **flags))
    # The sum telescopes if inside an episode the next value is the value of the next acted position.
    steps = reference.steps_of(reward, mask, arrays["terminated"], arrays["truncated"])
    for here, there in zip(steps, steps[1:], strict=False):
        if not here.truncated:
            flags["next_value"][here.t] = value[there.t]
    monte_carlo = discounted_return(reward, mask, gamma, **flags)
    close(gae(reward, value, mask, gamma, 1.0, **flags).value_target, monte_carlo)


td = jax.jit(returns.td_error)


@given(seeds)
def test_inserting_positions_changes_no_acted_output(seed):
    """Expansion invariance: the stream of acted steps alone, and the same with gaps in it."""
    mask, arrays = stream(seed, 150, nan_padding=False)
    steps = reference.steps_of(arrays["reward"], mask, arrays["terminated"], arrays["truncated"])
    where = [s.t for s in steps]
    dense = {name: np.zeros(150, arrays[name].dtype) for name in arrays}
    acted = np.arange(150) < len(steps)
    for i, s in enumerate(steps):
        dense["reward"][i], dense["terminated"][i], dense["truncated"][i] = s.reward, s.terminated, s.truncated
        dense["value"][i], dense["next_value"][i] = arrays["value"][s.t], arrays["next_value"][s.t]
    with_gaps = gae(mask=mask, gamma=0.97, lam=0.9, **arrays).advantage
    without = gae(mask=acted, gamma=0.97, lam=0.9, **dense).advantage
    close(np.asarray(with_gaps)[where], np.asarray(without)[: len(where)])


@given(seeds, unit)
def test_sums_minima_and_moves(seed, decay):
    mask, arrays = stream(seed, 150)
    x = np.where(mask, arrays["reward"], np.nan).astype(np.float32)
    acted = np.flatnonzero(mask)
    total, lowest, following = np.zeros(150), np.zeros(150), np.zeros(150)
    for i, t in enumerate(acted):
        total[t] = sum(decay**d * float(x[u]) for d, u in enumerate(acted[i:]))
        lowest[t] = min(x[u] for u in acted[i:])
    for t in range(150):
        later = acted[acted > t]
        following[t] = x[later[0]] if later.size else 0.0
    close(jax.jit(returns.future_sum)(x, mask, decay), total)
    close(jax.jit(returns.min_return)(x, mask), lowest)
    close(jax.jit(returns.next_acted)(x, mask), following)
    gathered = np.zeros(150)
    for s in reference.steps_of(arrays["reward"], mask):
        gathered[s.t] = s.reward
    close(jax.jit(returns.gather_rewards)(arrays["reward"], mask), gathered)


def test_softmin_weights():
    x, mask = jnp.array([0.2, jnp.nan, -0.3, 0.9]), jnp.array([True, False, True, True])
    exponentials = np.exp(-np.array([0.2, -0.3, 0.9]) / 0.1)
    wanted = np.zeros(4)
    wanted[[0, 2, 3]] = exponentials / exponentials.sum()
    close(returns.softmin_weights(x, mask, 0.1), wanted)
    assert not np.any(returns.softmin_weights(x, jnp.zeros(4, bool)))
    # Far apart scores must neither overflow nor give NaN gradients.
    gradient = jax.grad(lambda x: jnp.sum(returns.softmin_weights(x, mask, 1e-3) * jnp.where(mask, x, 0.0)))(100.0 * x)
    assert np.all(np.isfinite(gradient)) and gradient[1] == 0


FULL = np.ones(4, bool)


def test_c01_truncation_under_auto_reset():
    reward, value, next_value = np.ones(4), np.array([1.0, 2, 3, 4]), np.array([2.0, 5, 4, 6])
    truncated = np.array([False, True, False, False])
    result = gae(reward, value, FULL, 0.9, 0.8, next_value=next_value, truncated=truncated)
    close(result.advantage, [4.32, 3.5, 3.328, 2.4])
    dropped = gae(reward, value, FULL, 0.9, 0.8, next_value=next_value, truncated=truncated, truncation="drop")
    close(dropped.value_target, [2.8, 2, 6.328, 6.4])
    assert dropped.advantage[1] == 0
    with pytest.raises(ValueError, match="truncation: 'ignore', wanted one of"):
        returns.gae(reward, value, FULL, 0.9, 0.8, truncation="ignore")


def test_c02_no_trace_between_episodes():
    both = np.ones(2, bool)
    result = gae(np.array([0.0, 10.0]), np.zeros(2), both, 1.0, 1.0, next_value=np.zeros(2), truncated=both)
    close(result.advantage, [0, 10])


def test_c03_bootstrap_counts_once():
    both = np.ones(2, bool)
    result = gae(np.ones(2), np.full(2, 0.5), both, 0.9, 1.0, next_value=np.array([0.5, 2.0]))
    close(result.advantage, [3.02, 2.3])


def test_c04_an_episode_ends_after_its_flag():
    mask, terminated = np.ones(3, bool), np.array([False, True, False])
    next_value = np.array([0.0, 0.0, 5.0])
    result = gae(np.ones(3), np.zeros(3), mask, 1.0, 1.0, next_value=next_value, terminated=terminated)
    close(result.advantage, [2, 1, 6])
    close(discounted_return(np.ones(3), mask, 1.0, terminated=terminated, next_value=next_value), [2, 1, 6])


@pytest.mark.parametrize("padding", [9.0, np.nan, np.inf])
def test_c05_padding_bootstraps_nothing(padding):
    mask = np.array([True, True, False])
    reward, value = np.array([0.0, 1.0, 0.0]), np.array([0.2, 0.4, padding])

    def total(reward, value):
        return jnp.sum(gae(reward, value, mask, 1.0, 1.0).advantage)

    close(gae(reward, value, mask, 1.0, 1.0).advantage, [0.8, 0.6, 0])
    close(jax.grad(total, argnums=1)(reward, value), [-1, -1, 0])
    nan_reward = np.where(mask, reward, np.nan)
    assert np.all(np.isfinite(jax.grad(total)(nan_reward, value)))
    assert total(nan_reward, value) == total(reward, value)


def test_c06_gaps_are_transparent():
    mask, reward = np.array([True, False, False, True]), np.array([0.0, 0, 0, 2])
    close(discounted_return(reward, mask, 0.5), [1, 0, 0, 2])
    close(discounted_return(reward, mask, 0.5, count_observations=True), [0.25, 0, 0, 2])


def test_c07_outcome_at_the_last_acted_position():
    mask = np.array([True, True, True, False, False])
    reward = returns.place_outcome(1.0, mask)
    close(reward, [0, 0, 1, 0, 0])
    close(discounted_return(reward, mask, 0.9), [0.81, 0.9, 1, 0, 0])
    close(returns.place_outcome(1.0, np.ones(3, bool)), [0, 0, 1])
    assert not np.any(returns.place_outcome(1.0, np.zeros(3, bool)))


def test_c08_lambda_zero_next_to_a_terminal_step():
    both, value = np.ones(2, bool), np.array([0.2, 0.6])
    terminated = np.array([False, True])
    target = returns.lambda_return(np.array([0.0, 1.0]), value, both, 1.0, 0.0, terminated=terminated)
    close(target, [0.6, 1])


def test_c09_potential_shaping_telescopes():
    both, gamma, potential = np.ones(2, bool), 0.9, np.array([1.0, 2.0])
    # The potential of the terminal state is 5, but termination makes it worth nothing.
    shaping = td(np.array([0.0, 1.0]), potential, both, gamma, terminated=np.array([False, True]))
    close(shaping, [0.8, -1])
    close(discounted_return(shaping, both, gamma)[0], 0.9 - 1)


def test_c33_policy_and_value_lambda():
    mask, args = np.ones(3, bool), (np.ones(3), np.array([0.0, 1, 2]))
    next_value = np.array([1.0, 2, 3])
    close(gae(*args, mask, 0.9, 0.5, next_value=next_value).advantage, [3.05425, 2.565, 1.7])
    close(returns.lambda_return(*args, mask, 0.9, 1.0, next_value=next_value), [4.897, 4.33, 3.7])
    close(gae(*args, mask, 0.9, 0.5, next_value=next_value).value_target, [3.05425, 3.565, 3.7])


def test_c39_new_values_do_not_retrace():
    traced = jax.jit(chex.assert_max_traces(lambda r, m, g, lam: returns.gae(r, r, m, g, lam), n=1))
    for gamma, lam in ((0.9, 0.5), (0.99, 0.95)):
        traced(np.ones(3), np.ones(3, bool), gamma, lam)
    over_gamma = jax.vmap(returns.discounted_return, in_axes=(None, None, 0))
    close(over_gamma(np.ones(3), jnp.ones(3, bool), jnp.array([0, 0.5, 1]))[:, 0], [1, 1.75, 3])


def test_a_flag_or_reward_off_the_policy_belongs_to_the_step_before():
    mask = np.array([False, True, False, False, True, False])
    flag = np.array([True, False, False, True, False, False])
    reward = np.array([7.0, 1, 2, 4, 8, 16])
    close(returns.gather_rewards(reward, mask), [0, 7, 0, 0, 24, 0])
    # The episode ends after position 1, whose rewards up to position 3 all count; the reward at 0 has no owner.
    close(discounted_return(reward, mask, 1.0, terminated=flag), [0, 7, 0, 0, 24, 0])
    close(gae(reward, np.zeros(6), mask, 1.0, 1.0, terminated=flag).advantage, [0, 7, 0, 0, 24, 0])


def test_a_stream_without_actions_is_zero():
    nothing, nan = np.zeros(150, bool), np.full(150, np.nan, np.float32)
    assert not np.any(gae(nan, nan, nothing, 0.9, 0.9)) and not np.any(discounted_return(nan, nothing, 0.9))
    assert not np.any(jax.jit(returns.future_sum)(nan, nothing)) and not np.any(returns.min_return(nan, nothing))


def test_gradients_reach_rewards_and_values_and_stay_finite():
    mask, arrays = stream(3, 150)
    flags = pick(arrays, "terminated", "truncated")

    def total(reward, value, next_value):
        return jnp.sum(jnp.square(gae(reward, value, mask, 0.97, 0.9, next_value=next_value, **flags).advantage))

    gradients = jax.grad(total, argnums=(0, 1, 2))(arrays["reward"], arrays["value"], arrays["next_value"])
    for gradient in gradients:
        assert np.all(np.isfinite(gradient)) and np.any(gradient)
    assert not np.any(np.asarray(gradients[1])[~mask])
    # Central differences in float64 of the reference, at one reward and one value.
    t = int(np.flatnonzero(mask)[3])
    for which, name in enumerate(("reward", "value")):
        ends = []
        for step in (1e-4, -1e-4):
            moved = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in arrays.items()}
            moved[name][t] += step
            ends.append(np.sum(reference.gae(mask=mask, gamma=0.97, lam=0.9, **moved)[0] ** 2))
        close(gradients[which][t], (ends[0] - ends[1]) / 2e-4, 1e-3)


def test_rows_of_a_batch_on_a_mesh_stay_where_they_are():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    streams = [stream(seed, 300) for seed in range(16)]
    mask = np.stack([m for m, _ in streams])
    arrays = {name: np.stack([a[name] for _, a in streams]) for name in streams[0][1]}

    def batched(mask, arrays):
        return jax.vmap(lambda m, a: returns.gae(mask=m, gamma=0.97, lam=0.9, **a).advantage)(mask, arrays)

    compiled = jax.jit(batched, in_shardings=rows, out_shardings=rows).lower(mask, arrays).compile()
    assert not any(
        word in compiled.as_text() for word in ("all-gather", "all-to-all", "collective-permute", "all-reduce")
    )
    close(compiled(*jax.device_put((mask, arrays), rows)), jax.jit(batched)(mask, arrays))
    mapped = jax.shard_map(batched, mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P("data"))
    close(jax.jit(mapped)(mask, arrays), jax.jit(batched)(mask, arrays))


def test_a_million_positions_need_few_temporaries():
    shape = (8, 1_000_000)
    arrays = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name in ("reward", "value", "next_value")}
    arrays |= {name: jax.ShapeDtypeStruct(shape, jnp.bool_) for name in ("mask", "terminated", "truncated")}
    compiled = jax.jit(jax.vmap(lambda a: returns.gae(gamma=0.99, lam=0.95, **a))).lower(arrays).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 8 * 4 * shape[0] * shape[1]


@pytest.mark.parametrize("name", ["reward", "value", "terminated"])
def test_bad_shapes_are_named(name):
    arrays = {"reward": jnp.ones(4), "value": jnp.ones(4), "terminated": jnp.zeros(4, bool)}
    arrays[name] = arrays[name][:3]
    with pytest.raises(ValueError, match=rf"{name}: shape \[3\], wanted \[4\] as mask"):
        returns.gae(mask=jnp.ones(4, bool), gamma=1.0, lam=1.0, **arrays)
    with pytest.raises(ValueError, match=r"mask: bool of shape \[2, 4\], wanted bool \[T\]"):
        returns.gather_rewards(jnp.ones((2, 4)), jnp.ones((2, 4), bool))
