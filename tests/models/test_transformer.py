"""The transformer policy and the sampling distribution."""

import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.models import Sampling, TransformerConfig, TransformerPolicy, filter_logits, token_statistics
from creditjax.models.transformer import PARAMETER_AXES
from creditjax.trajectory import Trajectory

VOCAB, LENGTH = 11, 9
GQA = TransformerConfig(VOCAB, width=16, depth=2, heads=4, kv_heads=2, mlp_width=24, value_head=True)


def parameters(config, seed=0):
    """Random everywhere, the value head and the norms included, so that nothing is hidden by an initial 0 or 1."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(TransformerPolicy(config).init, jax.random.key(0))
    return jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape) * 0.3 + (x.shape[-1] == x.size)), shapes)


def example(seed=0, rows=4, length=LENGTH, holes=True):
    """Rows of a two-token prompt and acted tokens, with padding in odd places."""
    rng = np.random.default_rng(seed)
    token_mask = np.ones((rows, length), bool)
    if holes:
        token_mask[0, 0] = token_mask[1, 4] = token_mask[1, 5] = token_mask[2, 7:] = False
    acted = token_mask & (np.arange(length) >= 2)
    terminated = acted & (np.arange(length) == length - 1)
    return Trajectory(
        tokens=rng.integers(0, VOCAB, (rows, length)),
        action_mask=acted,
        outcome=np.zeros(rows),
        terminated=terminated,
        signals={"token_mask": token_mask},
    )


FAST = {"xla_backend_optimization_level": 0}  # the tests compile far longer than they run


@functools.partial(jax.jit, static_argnums=(0, 3, 4), compiler_options=FAST)
def evaluate(policy, params, batch, sampling=Sampling(), statistics=()):
    return policy.evaluate(params, batch, sampling, statistics)


def reference_logits(params, config, tokens):
    """Plain numpy forward pass of one unpadded row, written from the papers: logits and values after each token."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_epsilon) * scale

    def rope(x):  # complex form: pair (i, i + half) is one complex number turned by position * theta^(-2i/d)
        half = config.head_size // 2
        angle = np.arange(len(x))[:, None] * config.rope_theta ** (-2 * np.arange(half) / config.head_size)
        turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
        return np.concatenate([turned.real, turned.imag], -1)

    x = p["embed"]["embedding"][tokens]
    size, share = config.head_size, config.heads // config.kv_heads
    for layer in range(config.depth):
        w = jax.tree.map(lambda a: a[layer], p["layers"])  # noqa: B023
        y = norm(x, w["attention_norm"]["scale"])
        q, k, v = (y @ w["attention"][name]["kernel"] for name in ("query", "key", "value"))
        heads = []
        for head in range(config.heads):
            mine, shared = (slice(i * size, (i + 1) * size) for i in (head, head // share))
            scores = rope(q[:, mine]) @ rope(k[:, shared]).T / np.sqrt(size)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            weight = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weight / weight.sum(-1, keepdims=True) @ v[:, shared])
        x = x + np.concatenate(heads, -1) @ w["attention"]["output"]["kernel"]
        y = norm(x, w["mlp_norm"]["scale"])
        gate = y @ w["mlp"]["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["mlp"]["up"]["kernel"])) @ w["mlp"]["down"]["kernel"]
    x = norm(x, p["norm"]["scale"])
    head = p["embed"]["embedding"].T if config.tied else p["unembed"]["kernel"]
    value = (x @ p["value"]["kernel"] + p["value"]["bias"])[:, 0] if config.value_head else None
    return x @ head, value


@pytest.mark.parametrize(
    "config", [GQA, TransformerConfig(VOCAB, width=12, depth=1, heads=3, kv_heads=1, head_size=6, tied=True)]
)
def test_forward_pass_equals_the_papers(config):
    params, batch = parameters(config), example(holes=False)
    out = evaluate(TransformerPolicy(config), params, batch)
    for row in range(2):
        logits, value = reference_logits(params, config, batch.tokens[row])
        logpi = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        wanted = logpi[np.arange(1, LENGTH - 1), batch.tokens[row, 2:]]
        np.testing.assert_allclose(out.logprob[row, 2:], wanted, atol=2e-4)
        np.testing.assert_array_equal(out.logprob[row, :2], 0)
        if value is not None:
            np.testing.assert_allclose(out.value[row, 2:], value[1:-1], atol=2e-4)
            np.testing.assert_allclose(out.next_value[row, 2:-1], value[2:-1], atol=2e-4)
            assert out.next_value[row, -1] == 0  # terminated


def test_padding_anywhere_changes_nothing():
    policy, params, batch = TransformerPolicy(GQA), parameters(GQA), example()
    out = evaluate(policy, params, batch, Sampling(), ("sum_pi_squared",))
    for row in range(4):
        real = batch.signals["token_mask"][row]
        packed = jax.tree.map(lambda x: x[row : row + 1], batch)  # noqa: B023
        squeeze = lambda x: np.pad(x[:, real], ((0, 0), (0, LENGTH - real.sum())))  # noqa: B023, E731
        packed = Trajectory(
            tokens=squeeze(packed.tokens),
            action_mask=squeeze(packed.action_mask),
            outcome=packed.outcome,
            terminated=squeeze(packed.terminated),
            signals={"token_mask": squeeze(packed.signals["token_mask"])},
        )
        alone = evaluate(policy, params, packed, Sampling(), ("sum_pi_squared",))
        pairs = zip(jax.tree.leaves(alone), jax.tree.leaves(out), strict=True)
        for short, long in pairs:
            np.testing.assert_allclose(short[0, : real.sum()], long[row][real], atol=1e-5)
    junk = jnp.where(batch.signals["token_mask"], batch.tokens, 10_000)  # out of the vocabulary
    other = evaluate(policy, params, batch.replace(tokens=junk), Sampling(), ("sum_pi_squared",))
    jax.tree.map(np.testing.assert_array_equal, other, out)


def test_next_value_skips_observations_and_bootstraps_truncation():
    policy, params, batch = TransformerPolicy(GQA), parameters(GQA), example()
    acted = np.array(batch.action_mask)
    acted[3, 5:7] = acted[2, 5:] = False  # environment tokens in between, and at the end
    batch = batch.replace(action_mask=acted, terminated=None)
    out = evaluate(policy, params, batch)
    np.testing.assert_allclose(out.next_value[3, 4], out.value[3, 7], atol=1e-5)
    values = [reference_logits(params, GQA, batch.tokens[row][batch.signals["token_mask"][row]])[1] for row in (2, 3)]
    np.testing.assert_allclose(out.next_value[2, 4], values[0][-1], atol=2e-4)  # after the last observation
    np.testing.assert_allclose(out.next_value[3, 8], values[1][-1], atol=2e-4)
    assert (np.asarray(out.next_value)[~acted] == 0).all()


def test_leading_axes_chunks_and_remat_agree():
    params, flat = parameters(GQA), example(seed=3)
    names = ("self_certainty", "chosen_logit", "sum_pi_squared")
    shaped = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), flat)
    config = TransformerConfig(**{**GQA.__dict__, "logit_chunk": 4, "remat": True})

    def loss(params, config, batch):
        out = TransformerPolicy(config).evaluate(params, batch, Sampling(0.7, top_p=0.9), names)
        return jnp.sum(out.logprob + 0.1 * out.entropy + out.value), out

    gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1, compiler_options=FAST)
    (plain, wanted), (chunked, found) = gradient(params, GQA, flat), gradient(params, config, shaped)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x.reshape(y.shape), y, atol=1e-5), found, wanted)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-4), plain, chunked)
    assert all(jnp.isfinite(x).all() and jnp.any(x != 0) for x in jax.tree.leaves(plain))


def test_bfloat16_keeps_float32_parameters_and_outputs():
    config = TransformerConfig(**{**GQA.__dict__, "dtype": "bfloat16"})
    params = parameters(config)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    low, high = (evaluate(TransformerPolicy(c), params, example()) for c in (config, GQA))
    assert low.logprob.dtype == low.value.dtype == jnp.float32
    np.testing.assert_allclose(low.logprob, high.logprob, atol=0.3)


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_axes_name_every_parameter(tied):
    config = TransformerConfig(VOCAB, width=16, kv_heads=2, tied=tied, value_head=True, loops=2)
    shapes = jax.eval_shape(TransformerPolicy(config).init, jax.random.key(0))
    paths = {"/".join(k.key for k in path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(shapes)}
    assert paths.keys() == PARAMETER_AXES.keys() - ({"unembed/kernel"} if tied else set())
    sizes = {"layer": 2, "vocab": VOCAB, "embed": 16, "norm": 16, "heads": 16, "kv_heads": 8, "mlp": 64, "one": 1}
    for path, shape in paths.items():
        assert shape == tuple(sizes[axis] for axis in PARAMETER_AXES[path]), path


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(vocab_size=0), "vocab_size: 0, wanted at least 1"),
        (dict(width=10), "width: 10, wanted a multiple of heads=4"),
        (dict(kv_heads=3), "kv_heads: 3, wanted a divisor of heads=4"),
        (dict(head_size=3), "head_size: 3, wanted an even number"),
    ],
)
def test_config_errors_name_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**{"vocab_size": VOCAB, **changes})


def test_evaluate_errors():
    policy, params, batch = TransformerPolicy(GQA), parameters(GQA), example()
    with pytest.raises(ValueError, match=r"token_mask \['P', 'G', 'T'\] is absent"):
        policy.evaluate(params, batch.replace(signals={}))
    with pytest.raises(ValueError, match="statistics: surprise"):
        policy.evaluate(params, batch, Sampling(), ("surprise",))


class TestSampling:
    logits = jnp.log(jnp.array([0.5, 0.3, 0.2]))

    def test_truncated_sampler_against_full_softmax(self):  # case C24
        sampler = token_statistics(self.logits, jnp.array(1), Sampling(top_p=0.8))["logprob"]
        full = token_statistics(self.logits, jnp.array(0), Sampling())["logprob"]
        nucleus = token_statistics(self.logits, jnp.array(0), Sampling(top_p=0.8))["logprob"]
        np.testing.assert_allclose(nucleus, -0.470004, atol=1e-5)
        np.testing.assert_allclose(full, -0.693147, atol=1e-5)
        np.testing.assert_allclose(full - nucleus, -0.223144, atol=1e-5)
        np.testing.assert_allclose(sampler, np.log(0.3 / 0.8), atol=1e-5)
        same = jax.nn.log_softmax(filter_logits(self.logits, Sampling(top_p=0.8)))[0]
        np.testing.assert_allclose(nucleus - same, 0, atol=1e-6)  # on the same support the ratio is 1

    @pytest.mark.parametrize(
        "sampling, kept",
        [
            (Sampling(), [0, 1, 2, 3]),
            (Sampling(top_k=2), [1, 3]),
            (Sampling(top_k=9), [0, 1, 2, 3]),
            (Sampling(top_p=0.41), [1, 3]),
            (Sampling(top_p=0.39), [3]),
            (Sampling(top_k=3, top_p=0.9), [1, 2, 3]),
            (Sampling(top_k=3, top_p=0.75), [1, 3]),  # masses 4/9, 3/9, 2/9 after top-k
            (Sampling(temperature=0.0), [3]),
        ],
    )
    def test_support(self, sampling, kept):
        logits = jnp.log(jnp.array([0.1, 0.3, 0.2, 0.4]))
        assert np.flatnonzero(np.isfinite(filter_logits(logits, sampling))).tolist() == kept

    def test_ties_keep_exactly_k(self):
        assert np.flatnonzero(np.isfinite(filter_logits(jnp.zeros(6), Sampling(top_k=2)))).tolist() == [0, 1]
        assert np.isfinite(filter_logits(jnp.zeros(6), Sampling(top_p=0.5))).sum() == 3

    def test_temperature_divides(self):
        found = jax.nn.softmax(filter_logits(self.logits, Sampling(temperature=0.5)))
        np.testing.assert_allclose(found, np.array([0.25, 0.09, 0.04]) / 0.38, rtol=1e-5)

    def test_off_policy_token_is_finite(self):
        for sampling in (Sampling(top_k=1), Sampling(top_p=0.1), Sampling(temperature=0.0)):
            out = token_statistics(self.logits, jnp.array(2), sampling)
            np.testing.assert_allclose(out["logprob"], np.log(0.2 / 0.7), rtol=1e-5)
            gradient = jax.grad(lambda x: sum(token_statistics(x, jnp.array(2), sampling).values()))(self.logits)  # noqa: B023
            assert jnp.isfinite(gradient).all() and gradient[1] == 0

    def test_statistics(self):
        p = np.array([0.5, 0.3, 0.2])
        names = ("self_certainty", "chosen_logit", "sum_pi_squared")
        out = token_statistics(self.logits + 3, jnp.array(1), Sampling(), names)
        np.testing.assert_allclose(out["entropy"], -(p * np.log(p)).sum(), rtol=1e-5)
        np.testing.assert_allclose(out["sum_pi_squared"], (p**2).sum(), rtol=1e-5)
        np.testing.assert_allclose(out["chosen_logit"], np.log(0.3) + 3, rtol=1e-5)
        np.testing.assert_allclose(out["self_certainty"], (np.log(1 / 3 / p) / 3).sum(), rtol=1e-4)
        greedy = token_statistics(self.logits, jnp.array(0), Sampling(temperature=0.0))
        assert greedy["logprob"] == 0 and greedy["entropy"] == 0

    @pytest.mark.parametrize(
        "sampling, field",
        [(Sampling(temperature=-1.0), "temperature"), (Sampling(top_k=-1), "top_k"), (Sampling(top_p=0.0), "top_p")],
    )
    def test_errors_name_the_field(self, sampling, field):
        with pytest.raises(ValueError, match=f"sampling.{field}"):
            filter_logits(self.logits, sampling)
