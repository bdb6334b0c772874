"""Token credit of the methods that judge steps, in float64 NumPy, one explicit loop at a time.

The rules are those of `oracles.credit`; standard deviations of a group are those of the population. Nothing here
imports the library.
"""

from collections.abc import Callable
import functools
import math

import numpy as np

from oracles.credit import (
    Batch,
    acted,
    broadcast,
    leave_one_out,
    normalized,
    outcomes,
    raw_gae,
    segments,
    sizes,
    vote_weights,
    voters,
    voting_rows,
    weighted_mean,
    whiten,
    zeros,
)

Key = tuple[int, int]


def score(d: Batch, name: str, p: int, g: int) -> dict[int, float]:
    """A signal at every real segment."""
    return {k: float(d[name][p, g, k]) for k in segments(d, p, g)}


def spread(x: dict, ddof: int = 0, eps: float = 1e-6) -> dict:
    """(x - mean) / (std + eps) with one vote an entry; 0 where all are equal."""
    values = list(x.values())
    if len(values) < 2 or max(values) - min(values) <= 1e-6 * max(abs(v) for v in values):
        return dict.fromkeys(x, 0.0)
    mean = sum(values) / len(values)
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - ddof))
    return {key: (v - mean) / (std + eps) for key, v in x.items()}


def on_segments(d: Batch, p: int, by_step: dict[Key, float], out: np.ndarray, weight: float = 1.0) -> None:
    """Adds the credit of steps to the tokens of a group."""
    for (g, k), value in by_step.items():
        for t in segments(d, p, g).get(k, ()):
            out[p, g, t] += weight * value


def grpo(d: Batch) -> np.ndarray:
    """GRPO with the population's std."""
    rows = {}
    for p in range(sizes(d)[0]):
        for g, value in normalized(outcomes(d, p), vote_weights(d, p), 0).items():
            rows[p, g] = value
    return broadcast(d, rows)


def sum_form_prm(
    d: Batch, gamma: float = 1.0, channels: str = "split", outcome_coef: float = 1.0, whitened: bool = True
) -> np.ndarray:
    """Discounted sum of step rewards; the discount counts steps."""
    out = zeros(d)
    for p in range(sizes(d)[0]):
        rows = voters(d, p)
        if len(rows) < 2:
            continue
        returns: dict[int, dict[int, float]] = {}
        for g in rows:
            ends = sorted((own[-1], k) for k, own in segments(d, p, g).items())
            rewards = [float(d["process_reward"][p, g, k]) for _, k in ends]
            returns[g] = {}
            for t in acted(d, p, g):
                first = sum(end < t for end, _ in ends)
                value = sum(gamma ** (i - first) * r for i, r in enumerate(rewards) if i >= first)
                if channels == "joint":
                    value += gamma ** max(0, len(ends) - 1 - first) * outcome_coef * float(d["outcome"][p, g])
                returns[g][t] = value
        separate = leave_one_out(outcomes(d, p), dict.fromkeys(rows, 1.0))
        for g in rows:
            others = [h for h in rows if h != g]
            count = sum(len(returns[h]) for h in others)
            base = sum(sum(returns[h].values()) for h in others) / count if count else 0.0
            for t, value in returns[g].items():
                out[p, g, t] = value - base + (outcome_coef * separate[g] if channels == "split" else 0.0)
    return whiten(d, out, voting_rows(d)) if whitened else out


def decay(kind: str, step: float, weight: float, length: float, half_life: float | None = None) -> float:
    """The weight of the process reward at a training step."""
    if kind == "constant":
        return weight
    if kind == "linear":
        return weight * max(0.0, 1 - step / length)
    if kind == "cosine":
        return weight * 0.5 * (1 + math.cos(math.pi * min(1.0, step / length)))
    return weight * 2 ** (-step / (half_life or length / 8)) if step < length else 0.0


def decaying_process_reward(
    d: Batch,
    mode: str = "trajectory",
    schedule: str = "linear",
    step: float = 0,
    weight: float = 0.5,
    length: float = 200.0,
) -> np.ndarray:
    """GRPO with a process reward of falling weight, in the reward of the rollout or next to its advantage."""
    w, out = decay(schedule, step, weight, length), zeros(d)
    for p in range(sizes(d)[0]):
        x, weights = outcomes(d, p), vote_weights(d, p)
        steps = {g: score(d, "process_reward", p, g) for g in x}
        if mode == "trajectory":
            x = {g: v + w * (sum(steps[g].values()) / len(steps[g]) if steps[g] else 0.0) for g, v in x.items()}
        for g, value in normalized(x, weights, 0).items():
            for t in acted(d, p, g):
                out[p, g, t] = value
        if mode == "turn":
            on_segments(d, p, spread({(g, k): v for g in steps for k, v in steps[g].items()}), out, w)
    return out


def wrong_share(d: Batch, p: int, g: int, k: int, vote: str) -> float:
    """What the critiques that could be parsed say of a step."""
    said = [float(x) for x in d["judge_error"][p, g, k] if not math.isnan(x)]
    if not said:
        return 0.0
    if vote == "average":
        return sum(said) / len(said)
    flagged = [x > 0.5 for x in said]
    return float(all(flagged) if vote == "intersection" else sum(flagged) / len(flagged) > 0.5)


def capo(d: Batch, whole: float = 2.0, process: float = 1.0, vote: str = "majority") -> np.ndarray:
    """Outcome less a penalty on the tokens of wrong steps, normalised over the group's tokens."""
    out = zeros(d)
    for p in range(sizes(d)[0]):
        reward = {}
        for g in voters(d, p):
            owner = {t: k for k, own in segments(d, p, g).items() for t in own}
            for t in acted(d, p, g):
                penalty = process * wrong_share(d, p, g, owner[t], vote) if t in owner else 0.0
                reward[g, t] = whole * float(d["outcome"][p, g]) - penalty
        for (g, t), value in spread(reward).items():
            out[p, g, t] = value
    return out


def vpr(d: Batch, mode: str = "mean_then_batch_whiten", outcome_scale: float = 1.0, eps: float = 1e-8) -> np.ndarray:
    """Candidates of one state (a prompt) compared with each other."""
    kept: dict[Key, float] = {}
    scaled: dict[Key, float] = {}
    for p in range(sizes(d)[0]):
        r = {g: float(d["candidate_reward"][p, g]) + outcome_scale * v for g, v in outcomes(d, p).items()}
        if len(r) < 2 or max(r.values()) - min(r.values()) <= 1e-6 * max(abs(v) for v in r.values()):
            continue
        mean = sum(r.values()) / len(r)
        std = math.sqrt(sum((v - mean) ** 2 for v in r.values()) / len(r))
        kept |= {(p, g): v - mean for g, v in r.items()}
        scaled |= {(p, g): (v - mean) / (std + eps) for g, v in r.items()}
    return broadcast(d, scaled if mode == "group_whiten" else spread(kept, eps=eps))


def vpr_turn_index(d: Batch, outcome_scale: float = 1.0, least: int = 4, eps: float = 1e-8) -> np.ndarray:
    """One action a state: turns of one index compared over the batch."""
    reward: dict[tuple[int, int, int], float] = {}
    for p, g in voting_rows(d):
        steps = score(d, "process_reward", p, g)
        for k, r in steps.items():
            reward[p, g, k] = r + (outcome_scale * float(d["outcome"][p, g]) if k == max(steps) else 0.0)
    everywhere = spread(reward, eps=eps)
    out = zeros(d)
    for k in range(d["num_segments"]):
        here = {key: r for key, r in reward.items() if key[2] == k}
        for (p, g, _), value in (
            spread(here, eps=eps) if len(here) >= least else {x: everywhere[x] for x in here}
        ).items():
            for t in segments(d, p, g)[k]:
                out[p, g, t] = value
    return out


def vppo_prefix(
    d: Batch, tau: float = 0.8, alpha: float = 0.5, margin: str = "prompt", size: float = 0.1, relu: bool = False
) -> np.ndarray:
    """Wrong rollouts keep some credit on the shortened prefix before their first error."""
    out = zeros(d)
    for p in range(sizes(d)[0]):
        raw: dict[int, list[float]] = {}
        prefix: dict[int, list[bool]] = {}
        for g in voters(d, p):
            positions = acted(d, p, g)
            if not positions:
                continue
            outcome, n = float(d["outcome"][p, g]), len(positions)
            wrong = [k for k, s in score(d, "step_score", p, g).items() if s < tau]
            cut = {"prompt": float(d["prompt_length"][p]), "ratio": size * n, "fixed": size}[margin]
            end = max(0.0, positions.index(segments(d, p, g)[wrong[0]][0]) - cut) if wrong else 0.0
            prefix[g] = [i < end for i in range(n)]
            raw[g] = [outcome if outcome else alpha * inside for inside in prefix[g]]
        mean = sum(sum(a) / len(a) for a in raw.values()) / len(raw) if raw else 0.0
        for g, a in raw.items():
            for i, t in enumerate(acted(d, p, g)):
                value = a[i] - mean
                out[p, g, t] = max(value, 0.0) if relu and prefix[g][i] and not d["outcome"][p, g] else value
    return out


def thoughts(labels: dict[int, bool]) -> list[list[int]]:
    """Consecutive steps of equal label, merged."""
    runs: list[list[int]] = []
    for k in labels:
        if runs and labels[runs[-1][-1]] == labels[k]:
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs


def tp_grpo_thought(d: Batch, alpha: float = 0.5) -> np.ndarray:
    """The paper's form: rewards of merged thoughts, added up from each thought to the last."""
    out = grpo(d)
    for p in range(sizes(d)[0]):
        weights = vote_weights(d, p)
        if not weights:
            continue
        accuracy = weighted_mean(outcomes(d, p), weights)
        base = normalized(outcomes(d, p), weights, 0)
        for g in weights:
            owned = segments(d, p, g)
            if not owned:
                continue
            labels = {k: d["thought_label"][p, g, k] >= 0.5 or k == max(owned) for k in owned}
            unit = alpha * accuracy if d["outcome"][p, g] else base[g]
            runs = thoughts(labels)
            earned = [unit if labels[run[0]] else -unit for run in runs]
            earned[-1] = base[g]
            for i, run in enumerate(runs):
                for k in run:
                    for t in owned[k]:
                        out[p, g, t] = sum(earned[i:])
    return out


def scrl(d: Batch, correction: bool = True) -> np.ndarray:
    """Subproblems normalised position by position over the curriculum rollouts; GRPO over the others."""
    out = zeros(d)
    for p in range(sizes(d)[0]):
        weights = vote_weights(d, p)
        taught = {g: w for g, w in weights.items() if d["is_curriculum"][p, g]}
        bare = {g: w for g, w in weights.items() if g not in taught}
        for g, value in normalized(outcomes(d, p), bare, 0).items():
            for t in acted(d, p, g):
                out[p, g, t] = value
        earned: dict[int, list[float]] = {}
        for g in taught:
            own = segments(d, p, g)
            r = [float(d["subproblem_reward"][p, g, k]) if k in own else 0.0 for k in range(d["num_segments"])]
            earned[g] = [math.prod(r[: k + 1]) if correction else r[k] for k in range(len(r))]
        for k in range(d["num_segments"]):
            for g, value in normalized({g: x[k] for g, x in earned.items()}, taught, 0).items():
                for t in segments(d, p, g).get(k, ()):
                    out[p, g, t] = value
    return out


def prorag(d: Batch, prm_beta: float = 0.5) -> np.ndarray:
    """GRPO plus the pooled score of each step."""
    out = grpo(d)
    for p in range(sizes(d)[0]):
        s = {
            (g, k): v + float(d["step_format"][p, g, k])
            for g in voters(d, p)
            for k, v in score(d, "process_reward", p, g).items()
        }
        on_segments(d, p, spread(s), out, prm_beta)
    return out


def prlcoder(
    d: Batch,
    gamma: float = 1.0,
    lam: float = 0.95,
    outcome_coef: float = 1.0,
    kl_coef: float = 0.05,
    length_normalise: bool = True,
    whitened: bool = True,
) -> np.ndarray:
    """GAE on line rewards, the outcome and a divergence penalty."""
    shaped = {**d, "reward": zeros(d)}
    out = zeros(d)
    rows = [(p, g) for p, g in voting_rows(d) if acted(d, p, g)]
    for p, g in rows:
        x = dict.fromkeys(acted(d, p, g), 0.0)
        lines = score(d, "step_score", p, g)
        for k, probability in lines.items():
            x[segments(d, p, g)[k][-1]] += (2 * probability - 1) / (len(lines) if length_normalise else 1)
        x[acted(d, p, g)[-1]] += outcome_coef * float(d["outcome"][p, g])
        for t in x:
            x[t] -= kl_coef * (float(d["logprob"][p, g, t]) - float(d["logprob_ref"][p, g, t]))
            shaped["reward"][p, g, t] = x[t]
        for t, value in raw_gae(shaped, p, g, gamma, lam).items():
            out[p, g, t] = value
    return whiten(d, out, rows) if whitened else out


def implicit_step_rewards(d: Batch, p: int, g: int, beta: float = 0.05) -> dict[int, float]:
    """beta times the summed log-ratio of each turn."""
    return {
        k: beta * sum(float(d["logprob_prm"][p, g, t]) - float(d["logprob"][p, g, t]) for t in own)
        for k, own in segments(d, p, g).items()
    }


def oprl(d: Batch, beta: float = 0.05, alpha: float = 1.0) -> np.ndarray:
    """Episode credit plus the pooled implicit reward of each turn, on the tokens of turns alone."""
    out, base = zeros(d), grpo(d)
    for p in range(sizes(d)[0]):
        r = {(g, k): v for g in voters(d, p) for k, v in implicit_step_rewards(d, p, g, beta).items()}
        on_segments(d, p, spread(r), out, alpha)
        for g, k in r:
            for t in segments(d, p, g)[k]:
                out[p, g, t] += base[p, g, t]
    return out


def pair_loss(d: Batch, beta: float = 0.05, threshold: float = 0.0) -> tuple[float, int]:
    """Summed loss and number of the (winner, loser) pairs of the batch."""
    total, pairs = 0.0, 0
    for p in range(sizes(d)[0]):
        rows = voters(d, p)
        reward = {g: sum(implicit_step_rewards(d, p, g, beta).values()) for g in rows}
        for g in rows:
            for h in rows:
                if d["outcome"][p, g] > threshold and not d["outcome"][p, h] > threshold:
                    total += math.log1p(math.exp(-(reward[g] - reward[h])))
                    pairs += 1
    return total, pairs


ORACLES: dict[str, Callable[[Batch], np.ndarray]] = {
    "sum_form_prm": sum_form_prm,
    "decaying_process_reward": decaying_process_reward,
    "capo": capo,
    "vpr": vpr,
    "vppo_prefix": vppo_prefix,
    "tp_grpo_thought": tp_grpo_thought,
    "scrl": scrl,
    "prorag": prorag,
    "prlcoder": prlcoder,
    "oprl": oprl,
}

# (recipe, overrides of the recipe, reference)
VARIANTS: list[tuple[str, dict, Callable[[Batch], np.ndarray]]] = [
    ("sum_form_prm", {"gamma": 0.8, "whiten": False}, functools.partial(sum_form_prm, gamma=0.8, whitened=False)),
    (
        "sum_form_prm",
        {"gamma": 0.8, "channels": "joint", "outcome_weight": 0.5},
        functools.partial(sum_form_prm, gamma=0.8, channels="joint", outcome_coef=0.5),
    ),
    ("decaying_process_reward", {"mode": "turn"}, functools.partial(decaying_process_reward, mode="turn")),
    ("capo", {"vote": "intersection"}, functools.partial(capo, vote="intersection")),
    ("capo", {"vote": "average", "process_weight": 1.5}, functools.partial(capo, vote="average", process=1.5)),
    (
        "vpr",
        {"mode": "group_whiten", "outcome_scale": 0.5},
        functools.partial(vpr, mode="group_whiten", outcome_scale=0.5),
    ),
    ("vpr", {"mode": "turn_index"}, vpr_turn_index),
    ("vppo_prefix", {"margin": "ratio", "relu": True}, functools.partial(vppo_prefix, margin="ratio", relu=True)),
    (
        "vppo_prefix",
        {"margin": "fixed", "margin_size": 2.0, "alpha": 0.3},
        functools.partial(vppo_prefix, margin="fixed", size=2.0, alpha=0.3),
    ),
    ("scrl", {"correction": False}, functools.partial(scrl, correction=False)),
    (
        "prlcoder",
        {"gamma": 0.9, "length_normalize": False, "whiten": False},
        functools.partial(prlcoder, gamma=0.9, length_normalise=False, whitened=False),
    ),
    ("oprl", {"beta": 0.5, "alpha": 0.3}, functools.partial(oprl, beta=0.5, alpha=0.3)),
]
