"""Token credit of methods that read the model's own computation, in float64 NumPy, from their cards."""

import math

import numpy as np

from oracles.credit import (
    Batch,
    acted,
    acting_rows,
    all_equal,
    broadcast,
    cells,
    gae,
    grpo,
    normalized,
    sizes,
    vote_weights,
    votes,
    voting_rows,
    whiten,
    zeros,
)


def row(d: Batch, name: str, p: int, g: int, *index: int) -> dict[int, float]:
    """A signal at the acted positions of a row."""
    return {t: float(d[name][(p, g, t, *index)]) for t in acted(d, p, g)}


def top(x: dict[int, float], share: float) -> set[int]:
    """The ceil(share n) largest entries, ties to the earlier position."""
    kept = math.ceil(share * len(x) - 1e-6)
    return set(sorted(x, key=lambda t: (-x[t], t))[:kept])


def unit_mean(x: dict[int, float]) -> dict[int, float]:
    """Weights >= 0 with mean 1; all 0 become 1."""
    total = sum(x.values())
    return {t: v * len(x) / total if total > 0 else 1.0 for t, v in x.items()}


def weighted(d: Batch, base: np.ndarray, weight) -> np.ndarray:
    """``base`` times ``weight(p, g)``, a dict over the row's acted positions."""
    c = zeros(d)
    for p, g in acting_rows(d):
        for t, w in weight(p, g).items():
            c[p, g, t] = base[p, g, t] * w
    return c


def delta(d: Batch, refinements: int = 1, lam_min: float = 0.8, lam_max: float = 1.2) -> np.ndarray:
    base = grpo(d)
    entries = [(p, g, t) for p, g in acting_rows(d) for t in acted(d, p, g)]
    if not entries:
        return base
    a = {e: base[e] for e in entries}
    v = {e: (1 - math.exp(float(d["logprob"][e]))) * d["hidden"][e].astype(float) for e in entries}

    def centroid(side: int, p: dict) -> np.ndarray:
        mass = {e: max(side * a[e], 0.0) * p[e] for e in entries}
        return sum(mass[e] * v[e] for e in entries) / max(sum(mass.values()), 1e-8)

    def gate(plus: np.ndarray, minus: np.ndarray) -> dict:
        p = dict.fromkeys(entries, 0.0)
        for side in (1, -1):
            own = [e for e in entries if side * a[e] > 0]
            margin = {e: side * (np.sum((v[e] - minus) ** 2) - np.sum((v[e] - plus) ** 2)) for e in own}
            if own:
                s = math.sqrt(max(float(np.var(list(margin.values()))), 1e-8))
                p |= {e: 1 / (1 + math.exp(-margin[e] / s)) for e in own}
        return p

    ones = dict.fromkeys(entries, 1.0)
    plus, minus = centroid(1, ones), centroid(-1, ones)
    for _ in range(refinements):
        p = gate(plus, minus)
        plus, minus = centroid(1, p), centroid(-1, p)
    p = gate(plus, minus)
    w = {e: lam_min + (lam_max - lam_min) * p[e] if a[e] != 0 else lam_min for e in entries}
    c = zeros(d)
    for e in entries:
        c[e] = a[e] * w[e] * len(entries) / max(sum(w.values()), 1e-8)
    return c


def gcpo_guidance(
    d: Batch, top_frac: float = 0.4, top_mass: float = 0.8, normalise: str = "hist", tau: float = 1.0
) -> np.ndarray:
    kappa = math.log(1 - top_mass) / math.log(1 - top_frac) - 1

    def weight(p: int, g: int) -> dict:
        x = {t: float(d["logprob_negative"][p, g, t]) - float(d["logprob"][p, g, t]) for t in acted(d, p, g)}
        x = {t: min(max(value, -20.0), 20.0) for t, value in x.items()}
        kl = {t: min(math.exp(value) - value - 1, 10.0) for t, value in x.items()}
        if normalise == "none":
            return kl
        if normalise == "softmax":
            return unit_mean({t: math.exp((value - max(kl.values())) / tau) for t, value in kl.items()})
        less = {t: sum(other < value for other in kl.values()) for t, value in kl.items()}
        same = {t: sum(other == value for other in kl.values()) for t, value in kl.items()}
        return unit_mean({t: ((less[t] + (same[t] + 1) / 2) / len(kl)) ** kappa for t in kl})

    return weighted(d, grpo(d), weight)


def cort_replay(
    d: Batch, kappa: float = 0.5, tau: float = 1.0, w_min: float = 0.5, w_max: float = 2.0, mode: str = "signed"
) -> np.ndarray:
    def weight(p: int, g: int) -> dict:
        x = {t: float(d["logprob_rubric"][p, g, t]) - float(d["logprob_plain"][p, g, t]) for t in acted(d, p, g)}
        x = {t: abs(value) for t, value in x.items()} if mode == "magnitude" else x
        mean, std = np.mean(list(x.values())), np.std(list(x.values()))
        z = {t: 0.0 if all_equal(x.values()) else (value - mean) / (std + 1e-6) for t, value in x.items()}
        return unit_mean({t: min(max(1 + kappa * math.tanh(z[t] / tau), w_min), w_max) for t in x})

    return weighted(d, grpo(d), weight)


def flowtracer(d: Batch, rho: float = 0.4, kappa: float = 0.5, mode: str = "top") -> np.ndarray:
    def weight(p: int, g: int) -> dict:
        f = row(d, "attention_flow", p, g)
        if mode == "top":
            return {t: 1 + kappa * (t in top(f, rho) and f[t] > 0) for t in f}
        mean, width = sum(f.values()) / len(f), max(f.values()) - min(f.values())
        return {t: 1 + kappa * (f[t] - mean) / (width + 1e-8) for t in f}

    return weighted(d, grpo(d), weight)


def preplan_anchor(
    d: Batch, mode: str = "coupled", q: float = 0.4, g_amp: float = 1.5, alpha: float = 0.5, k: int = 3
) -> np.ndarray:
    base, c = grpo(d), zeros(d)
    for p, g in acting_rows(d):
        waad, fai = row(d, "attention_distance", p, g), row(d, "future_influence", p, g)
        positions = list(waad)
        delta = {t: abs(waad[t] - waad[u]) for t, u in zip(positions, positions[1:], strict=False)}
        delta[positions[-1]] = 0.0
        local, far = top(delta, q), top(fai, q)
        dominated, introducers = set(), set()
        for j, t in enumerate(positions):
            window = positions[max(0, j - k) : j]
            if t in far and window and waad[t] <= np.median(list(waad.values())):
                best = max(window, key=lambda u: (delta[u], -u))
                if delta[best] >= np.median(list(delta.values())):
                    dominated.add(t)
                    introducers.add(best)
        for t in positions:
            bonus = {
                "local": float(t in local),
                "global": float(t in far),
                "coupled": (t in far - dominated) + (1 - alpha) * (t in dominated) + alpha * (t in introducers),
            }[mode]
            c[p, g, t] = base[p, g, t] * (1 + (g_amp - 1) * bonus if base[p, g, t] >= 0 else 1)
    return c


def grad2reward(d: Batch, weights: tuple = (), mode: str = "abs", credit: str = "redistribute") -> np.ndarray:
    criteria = d["judge_verdict"].shape[-1]
    w = weights or (1 / criteria,) * criteria
    reward = {
        (p, g): sum(w[c] * float(d["judge_verdict"][p, g, c]) for c in range(criteria)) for p, g in voting_rows(d)
    }
    share = {}
    for p, g in acting_rows(d):
        a = {t: sum(w[c] * float(d["judge_grad_dot_emb"][p, g, t, c]) for c in range(criteria)) for t in acted(d, p, g)}
        size = {t: abs(x) if mode == "abs" else math.log1p(math.exp(x)) for t, x in a.items()}
        share[p, g] = {t: x / len(size) for t, x in unit_mean(size).items()}
    if credit == "redistribute":
        rows = {}
        for p in range(sizes(d)[0]):
            r = {g: reward[p, g] for g in vote_weights(d, p)}
            rows |= {(p, g): value for g, value in normalized(r, vote_weights(d, p)).items()}
        return weighted(d, broadcast(d, rows), lambda p, g: {t: s * len(share[p, g]) for t, s in share[p, g].items()})
    c = zeros(d)
    for p in range(sizes(d)[0]):
        to_go = {
            (g, t): reward[p, g] * sum(s for u, s in share[p, g].items() if u >= t)
            for g in range(sizes(d)[1])
            if (p, g) in share
            for t in share[p, g]
        }
        for (g, t), value in normalized(to_go, dict.fromkeys(to_go, 1.0)).items():
            c[p, g, t] = value
    return c


def shaped_rewards(d: Batch, weights: tuple) -> np.ndarray:
    """The reward of each token under a mixture of explainers, the sparse reward last."""
    r = zeros(d)
    for p, g in acting_rows(d):
        positions = acted(d, p, g)
        for t in positions:
            dense = sum(w * float(d["attributions"][p, g, t, s]) for s, w in enumerate(weights[:-1]))
            r[p, g, t] = float(d["outcome"][p, g]) * (dense + weights[-1] * (t == positions[-1]))
    return r


def explainable_shaping(
    d: Batch,
    weights: tuple = (0.25, 0.25, 0.25, 0.25),
    inner: str = "reinforce_plus_plus",
    gamma: float = 1.0,
    lam: float = 1.0,
) -> np.ndarray:
    shaped, rewards = shaped_rewards(d, weights), zeros(d)
    for p, g in cells(d):
        for t in acted(d, p, g):
            rewards[p, g, t] = shaped[p, g, t] if votes(d, p, g) else 0.0
    given = {**d, "reward": rewards}
    if inner == "gae":
        return gae(given, gamma, lam)
    c = zeros(d)
    for p, g in acting_rows(d):
        to_go = 0.0
        for t in reversed(acted(d, p, g)):
            ended = bool(d["terminated"][p, g, t]) or bool(d["truncated"][p, g, t])
            to_go = rewards[p, g, t] + (0.0 if ended else gamma * to_go)
            c[p, g, t] = to_go
    return whiten(d, c, acting_rows(d))


ORACLES = {
    "delta": delta,
    "gcpo_guidance": gcpo_guidance,
    "cort_replay": cort_replay,
    "flowtracer": flowtracer,
    "preplan_anchor": preplan_anchor,
    "grad2reward": grad2reward,
    "explainable_shaping": explainable_shaping,
}
