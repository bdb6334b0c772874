"""Token credit of methods that reshape a rollout's credit over its tokens, in float64 NumPy, from their cards."""

import math

import numpy as np

from oracles.credit import (
    Batch,
    acted,
    acting_rows,
    all_equal,
    cells,
    grpo,
    normalized,
    outcomes,
    segments,
    sizes,
    vote_weights,
    voters,
    voting_rows,
    weighted_mean,
    zeros,
)


def z_scores(x: dict, eps: float = 1e-6) -> dict:
    """(x - mean) / (std + eps) of the values of a dict, Bessel-corrected; 0 for one value and for equal ones."""
    return normalized(x, dict.fromkeys(x, 1.0), eps=eps)


def frpo(d: Batch, beta: float = 1e-3, divergence: str = "reverse_kl", per_token: bool = False) -> np.ndarray:
    derivative = {
        "reverse_kl": lambda x: math.log(x) + 1,
        "forward_kl": lambda x: -1 / x,
        "chi_square": lambda x: 2 * (x - 1),
    }[divergence]
    f = {
        "reverse_kl": lambda x: x * math.log(x),
        "forward_kl": lambda x: -math.log(x),
        "chi_square": lambda x: (x - 1) ** 2,
    }[divergence]
    c = grpo(d)
    for p, g in acting_rows(d):
        positions = acted(d, p, g)
        ratio = {t: math.exp(float(d["logprob"][p, g, t]) - float(d["logprob_ref"][p, g, t])) for t in positions}
        for t in positions:
            cost = derivative(ratio[t]) - derivative(1.0) + sum(f(ratio[u]) / ratio[u] for u in positions if u > t)
            c[p, g, t] -= beta * cost / (len(positions) if per_token else 1)
    return c


def aem(d: Batch, lam: float = 0.5, z_max: float = 3.0, scope: str = "group", proxy: str = "entropy") -> np.ndarray:
    source = d["entropy"] if proxy == "entropy" else -d["logprob"]
    base, c = grpo(d), zeros(d)
    uncertainty: dict = {}
    for p, g in voting_rows(d):
        for k, positions in segments(d, p, g).items():
            uncertainty[p, g, k] = sum(float(source[p, g, t]) for t in positions) / len(positions)
    scopes = [[x for x in uncertainty if scope == "batch" or x[0] == p] for p in range(sizes(d)[0])]
    for members in scopes[:1] if scope == "batch" else scopes:
        z = z_scores({x: uncertainty[x] for x in members})
        a = {x: math.exp(-lam * min(max(z[x], -z_max), z_max)) for x in members}
        for p, g, k in members:
            for t in segments(d, p, g)[k]:
                c[p, g, t] = base[p, g, t] * a[p, g, k] / (sum(a.values()) / len(a))
    return c


def tas(d: Batch, lam: float = 0.3, mean_preserving: bool = False, base: np.ndarray | None = None) -> np.ndarray:
    base, c = grpo(d) if base is None else base, zeros(d)
    for p, g in acting_rows(d):
        positions = acted(d, p, g)
        for j, t in enumerate(positions):
            w = 1 + lam * (2 * j / max(len(positions) - 1, 1) - 1) ** 2
            c[p, g, t] = base[p, g, t] * w / (1 + lam / 3 if mean_preserving else 1)
    return c


def avatar(d: Batch, lam: float = 0.3) -> np.ndarray:
    base = zeros(d)
    for p in range(sizes(d)[0]):
        r, w = outcomes(d, p), vote_weights(d, p)
        rows: dict[int, float] = {}
        on = {g: w[g] for g in voters(d, p) if not d["is_offpolicy"][p, g]}
        rows |= normalized(r, on)
        off = [g for g in voters(d, p) if d["is_offpolicy"][p, g]]
        if len(off) < 2 or all_equal(r[g] for g in off):
            rows |= dict.fromkeys(off, 0.0)
        else:
            std = float(np.std([r[g] for g in off], ddof=1))
            rows |= {g: (r[g] - float(d["prompt_mean"][p])) / (std + 1e-6) for g in off}
        for g, value in rows.items():
            base[p, g, acted(d, p, g)] = value
    return tas(d, lam, base=base)


def taco_tail(d: Batch, alpha: float = 0.01, lam: float = 0.9) -> np.ndarray:
    c = grpo(d)
    for p, g in acting_rows(d):
        for t in acted(d, p, g):
            risk = -float(d["logprob"][p, g, t]) - float(d["entropy"][p, g, t]) + math.log(alpha)
            if risk > 0 and c[p, g, t] > 0:
                c[p, g, t] *= 1 - lam * (1 - math.exp(-risk))
    return c


def hicra(d: Batch, alpha: float = 0.2) -> np.ndarray:
    c = grpo(d)
    for p, g in cells(d):
        for t in acted(d, p, g):
            c[p, g, t] += alpha * abs(c[p, g, t]) * float(d["planning_mask"][p, g, t])
    return c


def miner(
    d: Batch,
    gamma: float = 1.0,
    right_scale: float = 1.0,
    wrong_scale: float = 0.0,
    clip_high: float = 0.0,
    clip_low: float = 0.0,
    budget: float = 0.0015,
    scope: str = "group",
) -> np.ndarray:
    c = grpo(d)
    likely, kind = {}, {}
    for p in range(sizes(d)[0]):
        r = outcomes(d, p)
        for g in voters(d, p):
            positions = acted(d, p, g)
            likely[p, g] = sum(float(d["logprob"][p, g, t]) for t in positions) / max(len(positions), 1)
            kind[p, g] = ("right" if r[g] > 0.5 else "wrong") if all_equal(r.values()) else "mixed"
    intrinsic = set()
    for p, g in likely:
        if kind[p, g] == "mixed":
            continue
        peers = [x for x in likely if kind[x] == kind[p, g] and (scope == "batch" or x[0] == p)]
        values = dict(enumerate(likely[x] for x in peers))
        gap = weighted_mean(values, dict.fromkeys(values, 1.0)) - likely[p, g]
        u = max(0.0, gap) if kind[p, g] == "right" else min(0.0, gap)
        if u == 0 or (scope == "group" and all_equal(values.values())):
            continue
        intrinsic.add((p, g))
        positions = acted(d, p, g)
        row = {t: u * (1 - math.exp(float(d["logprob"][p, g, t]))) ** gamma for t in positions}
        if kind[p, g] == "right":
            row = {t: right_scale * x for t, x in row.items()}
            if clip_high > 0 and max(row.values()) > clip_high:
                row = {t: x * clip_high / max(row.values()) for t, x in row.items()}
        else:
            row = {t: wrong_scale * (max(x, -clip_low) if clip_low > 0 else x) for t, x in row.items()}
        for t, x in row.items():
            c[p, g, t] = x
    if budget > 0:
        own = [abs(c[p, g, t]) for p, g in intrinsic for t in acted(d, p, g) if c[p, g, t] != 0]
        rest = [abs(c[p, g, t]) for p, g in set(likely) - intrinsic for t in acted(d, p, g) if c[p, g, t] != 0]
        if own:
            share = budget * sum(rest) / sum(own)
            if clip_high > 0:
                share = (sum(rest) / len(rest) if rest else 0.0) / (sum(own) / len(own))
            for p, g in intrinsic:
                c[p, g] *= min(1.0, share)
    return c


ORACLES = {
    "frpo": frpo,
    "fipo": grpo,  # its weight is the objective's
    "aem": aem,
    "tas": tas,
    "avatar": avatar,
    "taco_tail": taco_tail,
    "miner": miner,
    "hicra": hicra,
}
