"""Token credit of the methods that credit progress, in float64 NumPy, one explicit loop at a time.

Written from the method cards; `oracles.credit` has the rules shared by all. A step is a segment that owns an acted
position; positions of no step get what a formula says beside the step's part.
"""

from collections.abc import Callable
import math

import numpy as np

from oracles.credit import (
    Batch,
    acted,
    acting_rows,
    centred,
    flag,
    group_credit,
    leave_one_out,
    next_value,
    normalized,
    raw_gae,
    reward_stream,
    segments,
    sizes,
    step_returns,
    vote_weights,
    voters,
    weighted_mean,
    whiten,
    zeros,
)


def add_steps(d: Batch, out: np.ndarray, p: int, g: int, by_step: dict[int, float]) -> None:
    """Adds each step's credit to its tokens."""
    for k, positions in segments(d, p, g).items():
        for t in positions:
            out[p, g, t] += by_step.get(k, 0.0)


def mean_outcome(d: Batch, p: int) -> float:
    """Mean outcome of a group's voters."""
    weights = vote_weights(d, p)
    return weighted_mean({g: float(d["outcome"][p, g]) for g in weights}, weights)


def pooled(by_row: dict[int, dict[int, float]], eps: float) -> dict[int, dict[int, float]]:
    """One population mean and std over all steps of a group."""
    values = [x for steps in by_row.values() for x in steps.values()]
    if len(values) < 2 or max(values) - min(values) <= 1e-6 * max(map(abs, values)):
        return {g: dict.fromkeys(steps, 0.0) for g, steps in by_row.items()}
    return {g: {k: (x - np.mean(values)) / (np.std(values) + eps) for k, x in s.items()} for g, s in by_row.items()}


def token_credit(d: Batch) -> np.ndarray:
    """Reward plus the value of what follows minus the value before."""
    out = zeros(d)
    for p, g in acting_rows(d):
        stream = reward_stream(d, p, g)
        for t in acted(d, p, g):
            after = 0.0 if flag(d, "terminated", p, g, t) else next_value(d, p, g, t)
            out[p, g, t] = stream[t] + after - float(d["value"][p, g, t])
    return out


def pact_critic(d: Batch) -> np.ndarray:
    """The actor's credit: generalised advantages, not whitened."""
    out = zeros(d)
    for p, g in acting_rows(d):
        for t, value in raw_gae(d, p, g, 1.0, 1.0).items():
            out[p, g, t] = value
    return out


def red(d: Batch, share: float = 1.0, beta: float = 0.1, critic: bool = True, strength: float = 1.0) -> np.ndarray:
    """Differences of a reward model's prefix scores, less the log-ratio to the reference."""
    out = zeros(d)
    paid = {}
    totals = {**d, "outcome": d["outcome"].astype(float).copy()}
    for p, g in acting_rows(d):
        positions = acted(d, p, g)
        before = float(d["prompt_score"][p])
        stream = {}
        for t in positions:
            score = float(d["prefix_score"][p, g, t])
            kl = float(d["logprob"][p, g, t]) - float(d["logprob_ref"][p, g, t])
            stream[t] = share * (score - before) - beta * kl
            totals["outcome"][p, g] -= beta * kl
            before = score
        stream[positions[-1]] += (1 - share) * float(d["outcome"][p, g])
        paid[p, g] = stream
    if critic:
        for (p, g), stream in paid.items():
            reward = zeros(d)
            for t, x in stream.items():
                reward[p, g, t] = x
            for t, x in raw_gae({**d, "reward": reward}, p, g, 1.0, 1.0).items():
                out[p, g, t] = x
        return out
    out = group_credit(totals, leave_one_out)
    for (p, g), stream in paid.items():
        mean = sum(stream.values()) / len(stream)
        for t, x in stream.items():
            out[p, g, t] += strength * (x - mean)
    return out


def redistributed(d: Batch, p: int, g: int, name: str, tries: int = 1) -> dict[int, float]:
    """Gain of a potential over each step; the outcome stands after the last one."""
    steps = list(segments(d, p, g))

    def value(k: int) -> float:
        return 1 - (1 - float(d[name][p, g, k])) ** tries

    return {k: (float(d["outcome"][p, g]) if k == steps[-1] else value(k + 1)) - value(k) for k in steps}


def rredcot(d: Batch, lam: float = 1.0, mode: str = "blend", eps: float = 1e-6) -> np.ndarray:
    """The redistributed outcome over its root mean square in the group."""
    out = group_credit(d, lambda x, w: normalized(x, w, 1, eps)) if mode == "blend" else zeros(d)
    for p in range(sizes(d)[0]):
        gains = {g: redistributed(d, p, g, "potential") for g in voters(d, p)}
        squares = [r**2 for steps in gains.values() for r in steps.values()]
        root = math.sqrt(np.mean(squares)) if squares else 0.0
        for g, steps in gains.items():
            add_steps(d, out, p, g, {k: lam * r / (root + eps) for k, r in steps.items()})
    return out


def macro_mean(x: list[float], weights: str) -> float:
    """Value of a macro action from those of its tokens."""
    w = {
        "equal": [1.0] * len(x),
        "unit": [0.0] * (len(x) - 1) + [1.0],
        "decay": [1.0 / (j + 1) for j in range(len(x))],
    }[weights]
    return sum(a * b for a, b in zip(w, x, strict=True)) / sum(w)


def segment_gae(reward: dict[int, float], value: dict[int, float], gamma: float, lam: float) -> dict[int, float]:
    """Generalised advantages whose steps are segments."""
    out = {}
    after = carry = 0.0
    for k in sorted(reward, reverse=True):
        carry = reward[k] + gamma * after - value[k] + gamma * lam * carry
        after = value[k]
        out[k] = carry
    return out


def ma_rlhf(
    d: Batch, gamma: float = 1.0, lam: float = 0.95, weights: str = "equal", reward_reduce: str = "sum"
) -> np.ndarray:
    """Generalised advantages over macro actions."""
    out = zeros(d)
    for p, g in acting_rows(d):
        stream, macros = reward_stream(d, p, g), segments(d, p, g)
        value = {k: macro_mean([float(d["value"][p, g, t]) for t in ts], weights) for k, ts in macros.items()}
        reward = {k: sum(stream[t] for t in ts) for k, ts in macros.items()}
        if reward_reduce == "weighted":
            reward = {k: macro_mean([stream[t] for t in ts], weights) for k, ts in macros.items()}
        add_steps(d, out, p, g, segment_gae(reward, value, gamma, lam))
    return out


def grpo_vps(d: Batch, lam: float = 1.0, mean_preserving: bool = False, eps: float = 1e-6) -> np.ndarray:
    """GRPO plus its size times each segment's progress."""
    base = group_credit(d, lambda x, w: normalized(x, w, 0, eps))
    out = base.copy()
    for p, g in acting_rows(d):
        per_token = dict.fromkeys(acted(d, p, g), 0.0)
        for k, positions in segments(d, p, g).items():
            gain = float(d["potential"][p, g, k + 1]) - float(d["potential"][p, g, k])
            per_token |= dict.fromkeys(positions, min(max(gain, -1.0), 1.0))
        mean = sum(per_token.values()) / len(per_token) if mean_preserving else 0.0
        for t, x in per_token.items():
            out[p, g, t] += lam * abs(base[p, g, t]) * (x - mean)
    return out


def mig_gains(d: Batch, p: int, g: int) -> dict[int, float]:
    """By how much each step lifts the best likelihood so far."""
    best, gains = float(d["potential"][p, g, 0]), {}
    for k in segments(d, p, g):
        reached = float(d["potential"][p, g, k + 1])
        gains[k] = max(0.0, reached - best)
        best = max(best, reached)
    return gains


def mig_watermark(
    d: Batch, process_weight: float = 1.0, format_weight: float = 0.1, mode: str = "step", eps: float = 1e-6
) -> np.ndarray:
    """Watermark gains on thinking tokens, the outcome with its format on all."""
    paid = {**d, "outcome": d["outcome"].astype(float) + format_weight * d["format_ok"]}
    out = group_credit(paid, lambda x, w: normalized(x, w, 0, eps))
    for p in range(sizes(d)[0]):
        gains = {g: mig_gains(d, p, g) for g in voters(d, p)}
        process = zeros(d)
        if mode == "step":
            for g, steps in pooled({g: step_returns(m, 1.0) for g, m in gains.items()}, eps).items():
                add_steps(d, process, p, g, steps)
        elif gains:
            whole = normalized({g: sum(m.values()) for g, m in gains.items()}, vote_weights(d, p), 0, eps)
            for g, x in whole.items():
                process[p, g, acted(d, p, g)] = x
        out += process_weight * np.where(d["thinking_mask"], process, 0.0)
    return out


def dash(d: Batch, stay_right: float = 0.0, stay_wrong: float = 1.0) -> np.ndarray:
    """Each segment is graded like a rollout that stopped at its end; one that changed nothing is weighed down."""
    out = zeros(d)
    for p, g in acting_rows(d):
        mean, owned = mean_outcome(d, p), segments(d, p, g)
        if not owned:
            alone = sum(vote_weights(d, p).values()) < 1.5
            out[p, g, acted(d, p, g)] = 0.0 if alone else float(d["outcome"][p, g]) - mean
            continue
        before, credit = None, {}
        for k in owned:
            right = float(d["commitment_correct"][p, g, k])
            stay = stay_right if right else stay_wrong
            credit[k] = (stay if right == before else 1.0) * (right - mean)
            before = right
        for t in acted(d, p, g):
            k = int(d["segment"][p, g, t])
            out[p, g, t] = credit[k] if k >= 0 else credit[max(owned)]
    return out


def pav(d: Batch, alpha: float = 5.0, tries: int = 4, baseline: str = "leave_one_out") -> np.ndarray:
    """Centred outcome plus each step's progress under a prover."""
    out = group_credit(d, leave_one_out if baseline == "leave_one_out" else centred)
    for p, g in acting_rows(d):
        gains = redistributed(d, p, g, "prover_value", tries)
        add_steps(d, out, p, g, {k: alpha * a for k, a in gains.items()})
    return out


def harmful_drift(d: Batch, p: int, g: int, delta: float, belief: str) -> dict[int, float]:
    """By how much the belief in the true mark falls in each step, beyond delta."""
    gold, marks = int(d["gold_mark"][p]), d["belief"].shape[-1]

    def phi(k: int) -> float:
        b = d["belief"][p, g, k].astype(float)
        if belief == "exact":
            return b[gold]
        return 1 - sum(b[c] * abs(c - gold) for c in range(marks)) / (marks - 1)

    return {k: max(0.0, phi(k) - phi(k + 1) - delta) for k in segments(d, p, g)}


def edit(
    d: Batch,
    lam: float = 0.5,
    delta: float = 0.1,
    variant: str = "trajectory",
    reduce: str = "sum",
    belief: str = "exact",
    eps: float = 1e-6,
    context_weight: float = 0.0,
) -> np.ndarray:
    """GRPO on the mark's closeness, less what harmful falls of the belief cost."""
    marks = d["belief"].shape[-1]
    closeness = 1 - np.abs(d["mark"] - d["gold_mark"][:, None]) / (marks - 1)
    if variant == "sft":
        out = zeros(d)
        for p, g in acting_rows(d):
            for t in acted(d, p, g):
                weight = 1.0 if d["revision_mask"][p, g, t] else context_weight
                out[p, g, t] = weight if closeness[p, g] == 1 else 0.0
        return out
    harm = {row: harmful_drift(d, *row, delta, belief) for row in acting_rows(d)}
    reward = np.where(np.isfinite(d["outcome"]), closeness, np.nan)
    if variant == "trajectory":
        for row, h in harm.items():
            reward[row] -= lam * (sum(h.values()) if reduce == "sum" else max(h.values(), default=0.0))
    out = group_credit({**d, "outcome": reward}, lambda x, w: normalized(x, w, 0, eps))
    if variant == "step":
        for (p, g), h in harm.items():
            add_steps(d, out, p, g, {k: -lam * x for k, x in h.items()})
    return out


def spae(d: Batch, alpha: float = 0.5, xi: float = 0.5, threshold: float = 0.9, whitened: bool = True) -> np.ndarray:
    """Centred outcome, fading once the answer is settled, plus the ranked rise of the step potential."""
    base, out = group_credit(d, centred), zeros(d)
    phi, rise = {}, {}
    for p, g in acting_rows(d):
        before = None
        for k in segments(d, p, g):
            a, c = float(d["correctness"][p, g, k]), float(d["confidence"][p, g, k])
            phi[p, g, k] = 1.5 * a * c + 0.5 * a - c
            rise[p, g, k] = 0.0 if before is None else phi[p, g, k] - before
            before = phi[p, g, k]
    low, high = min(rise.values(), default=0.0), max(rise.values(), default=0.0)
    grown = {key: math.exp((x - low) / (high - low)) if high > low else 1.0 for key, x in rise.items()}
    mean = np.mean(list(grown.values())) if grown else 0.0
    for p, g in acting_rows(d):
        owned = segments(d, p, g)
        for t in acted(d, p, g):
            k = int(d["segment"][p, g, t])
            earlier = [j for j in owned if (j < k if k >= 0 else owned[j][-1] < t)]
            settled = sum(phi[p, g, j] > threshold for j in earlier)
            out[p, g, t] = base[p, g, t] * (1 - alpha * (1 - math.exp(-settled)))
            out[p, g, t] += xi * (grown[p, g, k] - mean) if k >= 0 else 0.0
    return whiten(d, out, acting_rows(d)) if whitened else out


def renorm(d: Batch, p: int, g: int, final_center: bool) -> dict[int, float]:
    """Judge's score and outcome, both centred, of each turn; the outcome of the last one."""
    turns, outcome = list(segments(d, p, g)), float(d["outcome"][p, g])
    paid = {k: float(d["process_reward"][p, g, k]) - 0.5 + outcome - 0.5 for k in turns}
    if turns:
        paid[turns[-1]] = outcome - 0.5 if final_center else outcome
    return paid


def ppr_renorm(
    d: Batch,
    mode: str = "gae",
    gamma: float = 1.0,
    lam: float = 1.0,
    final_center: bool = False,
    whitened: bool = True,
    eps: float = 1e-6,
) -> np.ndarray:
    """Turns paid by a judge and the outcome, through a critic, a pooled normalisation, or as they are."""
    out = zeros(d)
    if mode == "gae":
        for p, g in acting_rows(d):
            reward, owned = zeros(d), segments(d, p, g)
            for k, r in renorm(d, p, g, final_center).items():
                reward[p, g, owned[k][-1]] += r
            for t, x in raw_gae({**d, "reward": reward}, p, g, gamma, lam).items():
                out[p, g, t] = x
        return whiten(d, out, acting_rows(d)) if whitened else out
    for p in range(sizes(d)[0]):
        paid = {g: renorm(d, p, g, final_center) for g in voters(d, p)}
        credit = pooled(paid, eps) if mode == "turn_norm" else {g: step_returns(r, 1.0) for g, r in paid.items()}
        for g, steps in credit.items():
            add_steps(d, out, p, g, steps)
    return out


def brpo(d: Batch, lam: float = 0.5, prior: str = "uniform", variance_reduction: str = "brpo") -> np.ndarray:
    """Expected reward of the answers at later budgets, less earlier answers and the group's mean."""
    out = zeros(d)
    count = d["budget"].shape[-1]
    for p in range(sizes(d)[0]):
        budget = [int(b) for b in d["budget"][p]]
        weight = {"uniform": [1.0] * count, "linear": budget, "base": [0.0] * (count - 1) + [1.0]}[prior]
        chance = [w / sum(weight) for w in weight]
        votes = vote_weights(d, p)
        thought, reward, returned = {}, {}, {}
        for g in votes:
            thought[g] = [t for t in acted(d, p, g) if d["thinking_mask"][p, g, t]]
            stop = next((i for i, b in enumerate(budget) if len(thought[g]) <= b), count - 1)
            reward[g] = [float(np.mean(d["summary_reward"][p, g, min(i, stop)].astype(float))) for i in range(count)]
            returned[g] = [sum(chance[i] * reward[g][i] for i in range(s, count)) for s in range(count)]
        for g in votes:
            credit = []
            for s in range(count):
                w = [lam ** (s - i) for i in range(s)]
                own = sum(a * r for a, r in zip(w, reward[g], strict=False)) / sum(w) * sum(chance[s:]) if s else 0.0
                alone = sum(votes.values()) < 1.5
                group = 0.0 if alone else weighted_mean({h: returned[h][s] for h in votes}, votes)
                baseline = {
                    "brpo": (s * own + (count - s) * group) / count,
                    "v1only": own,
                    "v2only": group,
                    "none": 0.0,
                }[variance_reduction]
                credit.append(returned[g][s] - baseline)
            for number, t in enumerate(thought[g]):
                later = [i for i, b in enumerate(budget) if number < b]
                out[p, g, t] = credit[later[0]] if later else 0.0
    return out


def genac(d: Batch, gamma: float = 1.0, lam: float = 1.0, whitened: bool = True) -> np.ndarray:
    """Generalised advantages over steps against the mean of what a critic states."""
    out = zeros(d)
    for p, g in acting_rows(d):
        owned, value = segments(d, p, g), {}
        for k in owned:
            said = [min(max(float(v), 0.0), 1.0) for v in d["critic_value"][p, g, k] if math.isfinite(v)]
            value[k] = sum(said) / len(said) if said else mean_outcome(d, p)
        reward = {k: float(d["outcome"][p, g]) if k == max(owned) else 0.0 for k in owned}
        add_steps(d, out, p, g, segment_gae(reward, value, gamma, lam))
    if not whitened:
        return out
    # Positions of no step have no credit, so they are not whitened either.
    tokens = [(p, g, t) for p, g in acting_rows(d) for ts in segments(d, p, g).values() for t in ts]
    values = [out[e] for e in tokens]
    mean, std = np.mean(values), math.sqrt(np.var(values, ddof=1) + 1e-8)
    for e in tokens:
        out[e] = (out[e] - mean) / std
    return out


ORACLES: dict[str, Callable[[Batch], np.ndarray]] = {
    "token_credit": token_credit,
    "pact_critic": pact_critic,
    "red": red,
    "rredcot": rredcot,
    "ma_rlhf": ma_rlhf,
    "grpo_vps": grpo_vps,
    "mig_watermark": mig_watermark,
    "dash": dash,
    "pav": pav,
    "edit": edit,
    "spae": spae,
    "ppr_renorm": ppr_renorm,
    "brpo": brpo,
    "genac": genac,
}
