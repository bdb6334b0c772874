"""Ragged random batches, and every loss once more in float64 NumPy, written from the method cards.

A reference maps ``(lp, frozen, w)`` to token losses: `lp` are the new log-probabilities, `frozen` the same numbers
where the formula stops the gradient. Central differences in `lp` alone are then the gradient that the loss must have.
"""

import dataclasses

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import Trajectory
from creditjax.models.base import PolicyOutput
from creditjax.objectives import total

P, G, T, K = 3, 2, 7, 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Credit:
    """All that objectives ask of a credit."""

    value: jax.Array
    valid: jax.Array
    extras: dict = dataclasses.field(default_factory=dict)

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)

    def with_extras(self, **extras):
        return self.replace(extras={**self.extras, **extras})


@jax.jit
def loss_and_gradient(objective, new, credit, batch, counts=None):
    """The loss, its gradient in the new log-probabilities, and its terms."""

    def loss(logprob):
        terms = objective(new._replace(logprob=logprob), credit, batch)
        return total(terms, counts), terms

    (value, terms), gradient = jax.value_and_grad(loss, has_aux=True)(new.logprob)
    return value, gradient, terms


@jax.jit
def prepare(objective, new, credit, batch):
    return objective.prepare(new, credit, batch)


@dataclasses.dataclass
class World:
    """One batch in float64. `mask` has gaps, a row without actions, and rows of different lengths."""

    mask: np.ndarray
    valid: np.ndarray
    credit: np.ndarray
    new: np.ndarray
    old: np.ndarray
    reference: np.ndarray
    entropy: np.ndarray
    value: np.ndarray
    old_value: np.ndarray
    target: np.ndarray
    segment: np.ndarray
    clip_scale: np.ndarray
    loss_weight: np.ndarray
    tokens: np.ndarray

    def inputs(self, poison: float = np.nan, **extras):
        """Policy output, credit and batch, with `poison` under the mask of every float."""

        def f(x, mask=self.mask):
            return jnp.asarray(np.where(mask, x, poison), jnp.float32)

        batch = Trajectory(
            tokens=jnp.asarray(self.tokens, jnp.int32),
            action_mask=jnp.asarray(self.mask),
            outcome=jnp.zeros((P, G)),
            logprob=f(self.old),
            segment=jnp.asarray(self.segment, jnp.int32),
            num_segments=K,
            signals={"logprob_ref": f(self.reference), "value": f(self.old_value)},
        )
        given = {"value_target": f(self.target), **{k: f(v) for k, v in extras.items()}}
        credit = Credit(f(self.credit, self.mask & self.valid), jnp.asarray(self.mask & self.valid), given)
        return PolicyOutput(f(self.new), f(self.entropy), f(self.value), f(self.value)), credit, batch


def world(seed: int, spread: float = 0.4) -> World:
    rng = np.random.default_rng(seed)
    shape = (P, G, T)
    mask = rng.random(shape) < 0.7
    mask[..., 0] = False
    mask[1, 0] = False
    mask[0, 0, 1:] = True
    old = -rng.gamma(2.0, 1.0, shape) - 0.05
    return World(
        mask=mask,
        valid=rng.random(shape) < 0.9,
        credit=rng.normal(size=shape),
        new=old + spread * rng.normal(size=shape),
        old=old,
        reference=old + spread * rng.normal(size=shape),
        entropy=rng.random(shape),
        value=rng.normal(size=shape),
        old_value=rng.normal(size=shape),
        target=rng.normal(size=shape),
        segment=np.sort(rng.integers(0, K, shape), axis=-1) - (rng.random(shape) < 0.1) * K,
        clip_scale=rng.uniform(0.7, 1.3, shape),
        loss_weight=rng.uniform(0.0, 2.0, shape),
        tokens=rng.integers(0, 50, shape),
    )


def advantage(w: World) -> np.ndarray:
    return np.where(w.mask & w.valid, w.credit, 0.0)


def aggregated(loss: np.ndarray, mask: np.ndarray, mode: str, length: int | None = None) -> float:
    rows = [(row[keep].sum(), keep.sum()) for row, keep in zip(loss.reshape(-1, T), mask.reshape(-1, T), strict=True)]
    rows = [(s, n) for s, n in rows if n > 0]
    if mode == "token_mean":
        return sum(s for s, _ in rows) / sum(n for _, n in rows)
    if mode == "seq_mean_token_mean":
        return sum(s / n for s, n in rows) / len(rows)
    total = sum(s for s, _ in rows) / len(rows)
    return total / (length or T) if mode == "seq_mean_token_sum_norm" else total


def per_unit(x: np.ndarray, w: World, by_segment: bool, mean: bool) -> np.ndarray:
    """Sum or mean of `x` over the acted positions of each row or segment, at each of its positions."""
    out = x.copy()
    for p in range(P):
        for g in range(G):
            for k in range(K) if by_segment else [None]:
                own = w.mask[p, g] & (w.segment[p, g] == k if by_segment else True)
                if own.any():
                    out[p, g, own] = x[p, g, own].mean() if mean else x[p, g, own].sum()
    return out


def clipped(ratio, a, low, high, dual=np.inf):
    loss = np.maximum(-a * ratio, -a * np.clip(ratio, 1 - low, 1 + high))
    return np.where(a < 0, np.minimum(loss, dual * np.where(a < 0, -a, 1.0)), loss)


def ppo(low=0.2, high=0.2, dual=np.inf, scaled=False):
    def loss(lp, frozen, w):
        c = w.clip_scale if scaled else 1.0
        return clipped(np.exp(lp - w.old), advantage(w), low * c, high * c, dual)

    return loss


def shared(by_segment: bool, product: bool, low=0.2, high=0.2):
    def loss(lp, frozen, w):
        if product:
            ratio = np.exp(per_unit(lp - w.old, w, by_segment, mean=False))
        else:
            ratio = np.exp(per_unit(frozen - w.old, w, by_segment, mean=True)) * np.exp(lp - frozen)
        return clipped(ratio, advantage(w), low, high)

    return loss


def gradient_only(lp, frozen, w):
    return -advantage(w) * lp


def cispo(low=1.0, high=0.28):
    return lambda lp, frozen, w: -np.clip(np.exp(frozen - w.old), 1 - low, 1 + high) * advantage(w) * lp


def sapo(positive=1.0, negative=1.05):
    def loss(lp, frozen, w):
        a = advantage(w)
        tau = np.where(a > 0, positive, negative)
        return -a * 4.0 / tau / (1.0 + np.exp(-tau * (np.exp(lp - w.old) - 1.0)))

    return loss


def geometric_mean(low=0.4, high=0.4):
    def loss(lp, frozen, w):
        a = per_unit(advantage(w), w, by_segment=False, mean=True)
        step = np.sign(a) * np.minimum(np.sign(a) * (lp - w.old), np.sign(a) * np.clip(lp - w.old, -low, high))
        return -a * np.exp(per_unit(step, w, by_segment=False, mean=True))

    return loss


def kl(kind):
    def loss(lp, frozen, w):
        d, d0 = lp - w.reference, frozen - w.reference
        k2 = 0.5 * (d**2 - d0**2)
        return {
            "k1": d,
            "abs": np.abs(d),
            "k2": 0.5 * d**2,
            "k3": np.exp(-d) + d - 1,
            "k1+": d0 + k2,
            "k3+": np.exp(-d0) + d0 - 1 + k2,
        }[kind]

    return loss


def numeric_gradient(f, x: np.ndarray, mask: np.ndarray, h: float = 1e-5) -> np.ndarray:
    out = np.zeros_like(x)
    for index in zip(*np.nonzero(mask), strict=True):
        up, down = x.copy(), x.copy()
        up[index] += h
        down[index] -= h
        out[index] = (f(up) - f(down)) / (2 * h)
    return out
