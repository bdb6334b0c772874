"""Token credit of every group, turn, token and critic estimator in float64 NumPy, one explicit loop at a time.

Nothing here imports the library. A batch is a plain dict of NumPy arrays with the names of `creditjax.trajectory` and
the leading axes ``[P, G]``; `num_segments` (K) is a Python int. An oracle returns the credit of every token,
``[P, G, T]``.

Rules shared by all:

* A position that the policy did not act on is transparent: recursions pass through it and its credit is 0.
* A reward on such a position belongs to the closest earlier acted one. Without a reward stream, the outcome is paid at
  the last acted position.
* A row votes if its outcome is finite and its `votes` flag holds (no flags given: if it acted anywhere). Rows with the
  same `trajectory` id share one vote. Rows that do not vote get no credit; group-relative credit is 0 in a group of one
  vote.
* A segment is real if it owns an acted position.
"""

from collections.abc import Callable
import functools
import math

import numpy as np
from scipy.optimize import linear_sum_assignment

Batch = dict


# --------------------------------------------------------------------------------------------------- reading a batch


def sizes(d: Batch) -> tuple[int, int, int]:
    """P, G and T."""
    return d["action_mask"].shape


def cells(d: Batch):
    """Every (prompt, rollout) pair."""
    prompts, group, _ = sizes(d)
    return [(p, g) for p in range(prompts) for g in range(group)]


def acted(d: Batch, p: int, g: int) -> list[int]:
    """The positions at which the policy acted, in order."""
    return [t for t in range(sizes(d)[2]) if d["action_mask"][p, g, t]]


def votes(d: Batch, p: int, g: int) -> bool:
    """Whether the row counts in baselines."""
    flag = bool(acted(d, p, g)) if d.get("votes") is None else bool(d["votes"][p, g])
    return flag and math.isfinite(d["outcome"][p, g])


def voters(d: Batch, p: int) -> list[int]:
    """The voting rows of a group."""
    return [g for g in range(sizes(d)[1]) if votes(d, p, g)]


def vote_weights(d: Batch, p: int) -> dict[int, float]:
    """Weight of each voting row: rows of one trajectory share one vote."""
    rows = voters(d, p)
    if d.get("trajectory") is None:
        return dict.fromkeys(rows, 1.0)
    ids = d["trajectory"][p]
    return {g: 1.0 / sum(ids[g] == ids[h] for h in rows) for g in rows}


def segments(d: Batch, p: int, g: int) -> dict[int, list[int]]:
    """The acted positions of every real segment, by segment index."""
    owned: dict[int, list[int]] = {}
    for t in acted(d, p, g):
        k = int(d["segment"][p, g, t])
        if 0 <= k < d["num_segments"]:
            owned.setdefault(k, []).append(t)
    return dict(sorted(owned.items()))


def reward_stream(d: Batch, p: int, g: int) -> dict[int, float]:
    """Reward of each acted position."""
    positions = acted(d, p, g)
    if d.get("reward") is None:
        return {t: float(d["outcome"][p, g]) if t == positions[-1] else 0.0 for t in positions}
    stream = dict.fromkeys(positions, 0.0)
    latest = None
    for t in range(sizes(d)[2]):
        if d["action_mask"][p, g, t]:
            latest = t
            stream[t] += float(d["reward"][p, g, t])
        elif latest is not None and math.isfinite(d["reward"][p, g, t]):
            stream[latest] += float(d["reward"][p, g, t])
    return stream


def flag(d: Batch, name: str, p: int, g: int, t: int) -> bool:
    """A per-position flag that is False where the batch does not carry it."""
    return d.get(name) is not None and bool(d[name][p, g, t])


def ended(d: Batch, p: int, g: int, t: int) -> bool:
    """Whether an episode ended after this position, for whatever reason."""
    return flag(d, "terminated", p, g, t) or flag(d, "truncated", p, g, t)


def zeros(d: Batch) -> np.ndarray:
    """Credit of a batch in which nobody earned anything."""
    return np.zeros(sizes(d))


def broadcast(d: Batch, row_credit: dict[tuple[int, int], float]) -> np.ndarray:
    """Gives every acted token the credit of its row."""
    out = zeros(d)
    for (p, g), value in row_credit.items():
        for t in acted(d, p, g):
            out[p, g, t] = value
    return out


# ------------------------------------------------------------------------------------------------------- statistics


def all_equal(values) -> bool:
    """True for fewer than two different values."""
    return len(set(values)) < 2


def weighted_mean(x: dict[int, float], w: dict[int, float]) -> float:
    """Mean of the entries of `x` that have a weight."""
    return sum(w[g] * x[g] for g in w) / sum(w.values())


def centred(x: dict[int, float], w: dict[int, float]) -> dict[int, float]:
    """Deviation from the mean of the votes, 0 in a group of one vote."""
    if sum(w.values()) < 1.5:
        return dict.fromkeys(w, 0.0)
    mean = weighted_mean(x, w)
    return {g: x[g] - mean for g in w}


def normalized(x: dict[int, float], w: dict[int, float], ddof: int = 1, eps: float = 1e-6) -> dict[int, float]:
    """(x - mean) / (std + eps) over the votes; 0 in a group of one vote and where all raw values are equal."""
    count = sum(w.values())
    if count < 1.5 or all_equal(x[g] for g in w):
        return dict.fromkeys(w, 0.0)
    mean = weighted_mean(x, w)
    std = math.sqrt(sum(w[g] * (x[g] - mean) ** 2 for g in w) / (count - ddof))
    return {g: (x[g] - mean) / (std + eps) for g in w}


def leave_one_out(x: dict[int, float], w: dict[int, float]) -> dict[int, float]:
    """x minus the mean of the other trajectories, 0 in a group of one vote."""
    count = sum(w.values())
    if count < 1.5:
        return dict.fromkeys(w, 0.0)
    total = sum(w[g] * x[g] for g in w)
    return {g: x[g] - (total - x[g]) / (count - 1) for g in w}


def whiten(
    d: Batch, credit: np.ndarray, rows: list[tuple[int, int]], eps: float = 1e-8, shift_mean: bool = True
) -> np.ndarray:
    """Bessel-corrected whitening over all acted positions of some rows of the batch; other rows become 0."""
    entries = [(p, g, t) for p, g in rows for t in acted(d, p, g)]
    out = zeros(d)
    if len(entries) < 2:
        return out
    values = [credit[e] for e in entries]
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
    for e in entries:
        out[e] = (credit[e] - (mean if shift_mean else 0.0)) / math.sqrt(variance + eps)
    return out


def voting_rows(d: Batch) -> list[tuple[int, int]]:
    """All voting rows of the batch."""
    return [(p, g) for p, g in cells(d) if votes(d, p, g)]


def acting_rows(d: Batch) -> list[tuple[int, int]]:
    """All voting rows of the batch that acted."""
    return [(p, g) for p, g in voting_rows(d) if acted(d, p, g)]


def outcomes(d: Batch, p: int) -> dict[int, float]:
    """Outcomes of the voting rows of a group."""
    return {g: float(d["outcome"][p, g]) for g in voters(d, p)}


def group_credit(d: Batch, rule: Callable[[dict, dict], dict]) -> np.ndarray:
    """Applies a rule on (outcomes, vote weights) to every group and broadcasts it."""
    rows = {}
    for p in range(sizes(d)[0]):
        for g, value in rule(outcomes(d, p), vote_weights(d, p)).items():
            rows[p, g] = value
    return broadcast(d, rows)


# --------------------------------------------------------------------------------------- returns, advantages, traces


def returns_to_go(d: Batch, p: int, g: int, stream: dict[int, float], gamma: float) -> dict[int, float]:
    """Discounted reward-to-go over acted positions; an episode's end stops it."""
    out: dict[int, float] = {}
    carry = 0.0
    for t in reversed(acted(d, p, g)):
        carry = stream[t] + (0.0 if ended(d, p, g, t) else gamma * carry)
        out[t] = carry
    return out


def reinforce(d: Batch, gamma: float = 1.0) -> np.ndarray:
    """Williams 1992: the discounted reward-to-go of every action."""
    out = zeros(d)
    for p, g in acting_rows(d):
        for t, value in returns_to_go(d, p, g, reward_stream(d, p, g), gamma).items():
            out[p, g, t] = value
    return out


def reinforce_baseline(d: Batch, gamma: float = 1.0, baseline: str = "ema") -> np.ndarray:
    """Reward-to-go minus a baseline: the mean of the group or the batch, a running mean, or a critic."""
    returns = {row: returns_to_go(d, *row, reward_stream(d, *row), gamma) for row in acting_rows(d)}
    out = zeros(d)
    if baseline in ("ema", "value"):
        for (p, g), by_position in returns.items():
            for t, value in by_position.items():
                out[p, g, t] = value - float(d["running_baseline"] if baseline == "ema" else d["value"][p, g, t])
        return out
    first = {(p, g): returns[p, g][acted(d, p, g)[0]] if (p, g) in returns else 0.0 for p, g in voting_rows(d)}
    if baseline == "batch":
        mean = {p: sum(first.values()) / max(len(first), 1) for p in range(sizes(d)[0])}
        silent = set()
    else:
        mean, silent = {}, set()
        for p in range(sizes(d)[0]):
            weights = vote_weights(d, p)
            if sum(weights.values()) < 1.5:
                silent.add(p)
            else:
                mean[p] = weighted_mean({g: first[p, g] for g in weights}, weights)
    for p, g in first:
        if p not in silent and (p, g) in returns:
            for t, value in returns[p, g].items():
                out[p, g, t] = value - mean[p]
    return out


def remax(d: Batch) -> np.ndarray:
    """Reward-to-go minus the outcome of one greedy rollout of the prompt."""
    out = zeros(d)
    for p, g in acting_rows(d):
        for t, value in returns_to_go(d, p, g, reward_stream(d, p, g), 1.0).items():
            out[p, g, t] = value - float(d["greedy_outcome"][p])
    return out


def next_value(d: Batch, p: int, g: int, t: int) -> float:
    """V of the true next state: the signal, else V at the next acted position, else 0."""
    if d.get("next_value") is not None:
        return float(d["next_value"][p, g, t])
    later = [u for u in acted(d, p, g) if u > t]
    return float(d["value"][p, g, later[0]]) if later else 0.0


def raw_gae(d: Batch, p: int, g: int, gamma: float, lam: float) -> dict[int, float]:
    """Generalised advantages of one row: termination stops bootstrap and trace, truncation the trace only."""
    stream = reward_stream(d, p, g)
    out: dict[int, float] = {}
    carry = 0.0
    for t in reversed(acted(d, p, g)):
        bootstrap = 0.0 if flag(d, "terminated", p, g, t) else gamma * next_value(d, p, g, t)
        delta = stream[t] + bootstrap - float(d["value"][p, g, t])
        carry = delta + (0.0 if ended(d, p, g, t) else gamma * lam * carry)
        out[t] = carry
    return out


def gae(d: Batch, gamma: float = 1.0, lam: float = 1.0, whitened: bool = True) -> np.ndarray:
    """GAE on every row with a reward stream, whitened over the batch unless told otherwise."""
    out = zeros(d)
    rows = acting_rows(d)
    for p, g in rows:
        for t, value in raw_gae(d, p, g, gamma, lam).items():
            out[p, g, t] = value
    return whiten(d, out, rows) if whitened else out


def vtrace(
    d: Batch, gamma: float = 0.99, lam: float = 1.0, rho_bar: float = 1.0, rho_pg_bar: float = 1.0
) -> np.ndarray:
    """V-trace policy-gradient advantages (Espeholt et al. 2018) over acted positions."""
    out = zeros(d)
    for p, g in acting_rows(d):
        stream = reward_stream(d, p, g)
        error = 0.0  # vs - V at the next acted position
        for t in reversed(acted(d, p, g)):
            log_ratio = float(d["logprob_current"][p, g, t]) - float(d["logprob"][p, g, t])
            rho = math.exp(min(max(log_ratio, -20.0), 20.0))
            discount = 0.0 if flag(d, "terminated", p, g, t) else gamma
            value, following = float(d["value"][p, g, t]), next_value(d, p, g, t)
            carried = 0.0 if ended(d, p, g, t) else error
            target = stream[t] + discount * (following + lam * carried)
            out[p, g, t] = min(rho_pg_bar, rho) * (target - value)
            delta = min(rho_bar, rho) * (stream[t] + discount * following - value)
            error = delta + discount * lam * min(1.0, rho) * carried
    return out


# --------------------------------------------------------------------------------------------------- group baselines


def rloo(d: Batch, beta: float = 0.0) -> np.ndarray:
    """Leave-one-out baseline; with `beta`, the outcome pays for the divergence from the reference."""
    paid = {**d, "outcome": d["outcome"].astype(float).copy()}
    for p, g in acting_rows(d):
        for t in acted(d, p, g) if beta else ():
            paid["outcome"][p, g] -= beta * (float(d["logprob"][p, g, t]) - float(d["logprob_ref"][p, g, t]))
    return group_credit(paid, leave_one_out)


def grpo(d: Batch, ddof: int = 1, eps: float = 1e-6) -> np.ndarray:
    """Group-normalised outcome."""
    return group_credit(d, lambda x, w: normalized(x, w, ddof, eps))


def dr_grpo(d: Batch) -> np.ndarray:
    """Group-centred outcome."""
    return group_credit(d, centred)


def overlong_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """0 up to `limit - buffer` tokens, then linearly down to `-factor` at `limit`, and no further."""
    if buffer == 0:
        return -factor if length > limit else 0.0
    return -factor * min(max((length - (limit - buffer)) / buffer, 0.0), 1.0)


def dapo(d: Batch, max_length: int = 20480, buffer: int = 4096, factor: float = 1.0) -> np.ndarray:
    """GRPO on the outcome plus the soft overlong penalty."""
    shaped = {**d, "outcome": d["outcome"].astype(float).copy()}
    for p, g in cells(d):
        shaped["outcome"][p, g] += overlong_penalty(len(acted(d, p, g)), max_length, buffer, factor)
    return grpo(shaped)


def gpg(d: Batch, f_norm: float = 1.0, count_by: str = "reward") -> np.ndarray:
    """Group-centred outcome, rescaled by the share of the batch that carries a signal."""
    rows = voting_rows(d)
    if count_by == "reward":
        alpha = len(rows) / max(1, sum(d["outcome"][row] != 0 for row in rows))
    else:
        groups = [outcomes(d, p) for p in range(sizes(d)[0]) if voters(d, p)]
        alpha = len(groups) / max(1, sum(not all_equal(x.values()) for x in groups))
    return alpha / f_norm * dr_grpo(d)


def opo(d: Batch) -> np.ndarray:
    """Outcome minus the length-weighted mean of the group."""
    rows = {}
    for p in range(sizes(d)[0]):
        x = outcomes(d, p)
        lengths = {g: len(acted(d, p, g)) for g in x}
        for g in x:
            base = sum(lengths[h] * x[h] for h in x) / max(sum(lengths.values()), 1)
            rows[p, g] = x[g] - base if len(x) > 1 else 0.0
    return broadcast(d, rows)


def reinforce_plus_plus(d: Batch, gamma: float = 1.0, beta: float = 0.01) -> np.ndarray:
    """Reward-to-go with the KL penalty inside the reward, whitened over the batch."""
    out = zeros(d)
    rows = acting_rows(d)
    for p, g in rows:
        stream = reward_stream(d, p, g)
        if beta:
            for t in stream:
                stream[t] -= beta * (float(d["logprob"][p, g, t]) - float(d["logprob_ref"][p, g, t]))
        for t, value in returns_to_go(d, p, g, stream, gamma).items():
            out[p, g, t] = value
    return whiten(d, out, rows)


def reinforce_plus_plus_baseline(d: Batch, shift_mean: bool = True) -> np.ndarray:
    """Group-centred outcome, whitened over the tokens of the batch."""
    return whiten(d, dr_grpo(d), voting_rows(d), shift_mean=shift_mean)


def optimal_token_baseline(d: Batch, eps: float = 1e-8) -> np.ndarray:
    """Baseline per position index, weighted by the score norm accumulated so far."""
    out = zeros(d)
    for p in range(sizes(d)[0]):
        rows = [g for g in voters(d, p) if acted(d, p, g)]
        if sum(vote_weights(d, p).values()) < 1.5:
            continue
        returns = {g: returns_to_go(d, p, g, reward_stream(d, p, g), 1.0) for g in rows}
        energy: dict[tuple[int, int], float] = {}
        for g in rows:
            total = 0.0
            for t in acted(d, p, g):
                total += 1.0 - 2.0 * math.exp(float(d["logprob"][p, g, t])) + float(d["sum_pi_squared"][p, g, t])
                energy[g, t] = total
        for t in range(sizes(d)[2]):
            here = [g for g in rows if t in returns[g]]
            mass = sum(energy[g, t] for g in here) + eps
            base = sum(energy[g, t] * returns[g][t] for g in here) / mass
            for g in here:
                out[p, g, t] = returns[g][t] - base
    return out


def pass_at_k_grpo(d: Batch, normalize: bool = True, eps: float = 1e-6) -> np.ndarray:
    """Only the best rollout of a group is credited, with its lead over the second best (arXiv:2503.19595)."""

    def lead(x: dict, w: dict) -> dict:
        credit = dict.fromkeys(x, 0.0)
        if len(x) > 1:
            best, second = sorted(x, key=lambda g: -x[g])[:2]
            gap = x[best] - x[second]
            mean = sum(x.values()) / len(x)
            std = math.sqrt(sum((v - mean) ** 2 for v in x.values()) / (len(x) - 1))
            credit[best] = gap / (std + eps) if normalize and gap else gap
        return credit

    return group_credit(d, lead)


def gdpo(d: Batch, weights: tuple = (1.0, 1.0), ddof: int = 1, eps: float = 1e-6, whitened: bool = True) -> np.ndarray:
    """Every reward normalised in its group, the sum whitened over the tokens of the batch (arXiv:2601.05242)."""
    rows: dict[tuple[int, int], float] = {}
    for p in range(sizes(d)[0]):
        share = vote_weights(d, p)
        for m, weight in zip(range(d["reward_components"].shape[-1]), weights, strict=True):
            component = {g: float(d["reward_components"][p, g, m]) for g in share}
            for g, value in normalized(component, share, ddof, eps).items():
                rows[p, g] = rows.get((p, g), 0.0) + weight * value
    credit = broadcast(d, rows)
    return whiten(d, credit, voting_rows(d)) if whitened else credit


def max_rl(d: Batch, eps: float = 1e-6) -> np.ndarray:
    """Group-centred outcome over the mean outcome, 0 in groups without success (arXiv:2602.02710)."""

    def relative(x: dict, w: dict) -> dict:
        mean = weighted_mean(x, w) if w else 0.0
        return {g: value / (mean + eps) if mean > 0 else 0.0 for g, value in centred(x, w).items()}

    return group_credit(d, relative)


# ------------------------------------------------------------------------------------- process rewards and token forms


def pure(
    d: Batch,
    temperature: float = 0.1,
    mode: str = "soft_min",
    channels: str = "split",
    outcome_coef: float = 1.0,
    beta: float = 0.0,
    whitened: bool = True,
) -> np.ndarray:
    """Min-form process rewards with a token-level leave-one-out baseline, plus leave-one-out on the outcome."""
    out = zeros(d)
    for p in range(sizes(d)[0]):
        rows = voters(d, p)
        if len(rows) < 2:
            continue
        process: dict[int, dict[int, float]] = {}
        for g in rows:
            owned = segments(d, p, g)
            score = {k: float(d["process_reward"][p, g, k]) for k in owned}
            process[g] = {}
            if mode == "strict_min":
                for t in acted(d, p, g):
                    process[g][t] = min((score[k] for k in owned if owned[k][-1] >= t), default=0.0)
            share = dict.fromkeys(score, 1.0)
            if mode == "soft_min" and score:
                lowest = min(score.values())
                weight = {k: math.exp(-(score[k] - lowest) / temperature) for k in score}
                share = {k: weight[k] / sum(weight.values()) for k in score}
            for t in acted(d, p, g):
                if mode != "strict_min":
                    process[g][t] = sum(share[k] * score[k] for k in owned if owned[k][-1] >= t)
                later = [s for s in acted(d, p, g) if s >= t]
                gap = [float(d["logprob_ref"][p, g, s]) - float(d["logprob"][p, g, s]) for s in later] if beta else []
                process[g][t] -= beta * sum(math.exp(x) - x - 1 for x in gap)
                process[g][t] += outcome_coef * float(d["outcome"][p, g]) if channels == "joint" else 0.0
        other_outcome = leave_one_out(outcomes(d, p), dict.fromkeys(rows, 1.0))
        for g in rows:
            others = [h for h in rows if h != g]
            tokens = sum(len(process[h]) for h in others)
            base = sum(sum(process[h].values()) for h in others) / tokens if tokens else 0.0
            for t, value in process[g].items():
                out[p, g, t] = value - base + (outcome_coef * other_outcome[g] if channels == "split" else 0.0)
    return whiten(d, out, voting_rows(d)) if whitened else out


def prime(
    d: Batch,
    beta: float = 0.05,
    norm: str = "batch_norm",
    baseline: str = "paper",
    granularity: str = "token",
    gamma: float = 1.0,
    outcome_gamma: float = 1.0,
    whitened: bool = True,
) -> np.ndarray:
    """Implicit token rewards and the outcome, each with its own leave-one-out baseline."""
    log_ratio = {}
    for p, g in voting_rows(d):
        log_ratio[p, g] = {
            t: float(d["logprob_prm"][p, g, t]) - float(d["logprob_ref"][p, g, t]) for t in acted(d, p, g)
        }
    scale = beta
    if norm == "batch_norm":
        largest = max(
            (abs(sum(v for s, v in q.items() if s >= t)) for q in log_ratio.values() for t in q),
            default=0.0,
        )
        scale = 1.0 / (largest + 1e-6)
    out = zeros(d)
    for p in range(sizes(d)[0]):
        rows = voters(d, p)
        if len(rows) < 2:
            continue
        reward = {g: {t: scale * q for t, q in log_ratio[p, g].items()} for g in rows}
        mean = {g: sum(reward[g].values()) / max(len(reward[g]), 1) for g in rows}
        other_outcome = leave_one_out(outcomes(d, p), dict.fromkeys(rows, 1.0))
        for g in rows:
            if granularity == "whole":
                total = {h: sum(reward[h].values()) for h in rows}
                base = sum(total[h] for h in rows if h != g) / (len(rows) - 1)
                token = {t: total[g] - base if t == max(reward[g]) else 0.0 for t in reward[g]}
            elif baseline == "paper":
                base = sum(mean[h] for h in rows if h != g) / (len(rows) - 1)
                token = {t: r - base for t, r in reward[g].items()}
            else:
                token = {t: (len(rows) * r - sum(mean.values())) / (len(rows) - 1) for t, r in reward[g].items()}
            for i, t in enumerate(token):
                later = list(token.values())[i:]
                process = sum(gamma**n * v for n, v in enumerate(later))
                out[p, g, t] = process + outcome_gamma ** (len(later) - 1) * other_outcome[g]
    return whiten(d, out, voting_rows(d)) if whitened else out


def ucas(
    d: Batch, alpha: float = 0.25, beta: float = 0.35, penalty: float = 0.05, certainty_reduce: str = "sum"
) -> np.ndarray:
    """GRPO, scaled by the certainty of the response and lowered at confident tokens."""
    logits = [float(d["chosen_logit"][p, g, t]) for p, g in voting_rows(d) for t in acted(d, p, g)]
    out = zeros(d)
    for p in range(sizes(d)[0]):
        weights = vote_weights(d, p)
        advantage = normalized(outcomes(d, p), weights)
        certainty = {}
        for g in weights:
            certainty[g] = sum(float(d["self_certainty"][p, g, t]) for t in acted(d, p, g))
            if certainty_reduce == "mean":
                certainty[g] /= max(len(acted(d, p, g)), 1)
        z = normalized(certainty, weights)
        for g, a in advantage.items():
            shaped = a * math.exp(-alpha * z[g]) if a > 0 else a * math.exp(beta * z[g])
            for t in acted(d, p, g):
                low, high = min(logits), max(logits)
                confident = (float(d["chosen_logit"][p, g, t]) - low) / (high - low + 1e-6) if high > low else 0.5
                raw = shaped - penalty * confident
                out[p, g, t] = max(raw, 0.0) if shaped > 0 else raw
    return out


def common_prefix(d: Batch, p: int, i: int, j: int) -> int:
    """Number of leading positions at which two rows hold the same token, up to the end of the shorter row."""
    ends = [acted(d, p, g)[-1] + 1 if acted(d, p, g) else 0 for g in (i, j)]
    count = 0
    while count < min(ends) and d["tokens"][p, i, count] == d["tokens"][p, j, count]:
        count += 1
    return count


def tempo(d: Batch, ddof: int = 0, eps: float = 1e-6, td_weight: float = 1.0) -> np.ndarray:
    """Normalised outcome plus the temporal difference of the prefix tree's values."""
    out = zeros(d)
    for p in range(sizes(d)[0]):
        weights = vote_weights(d, p)
        z = normalized(outcomes(d, p), weights, ddof, eps)
        for i in weights:
            agree = {j: common_prefix(d, p, i, j) for j in weights}

            def value(t, agree=agree, z=z):
                through = [z[j] for j in agree if agree[j] >= t]
                return sum(through) / len(through)

            for t in acted(d, p, i):
                out[p, i, t] = z[i] + td_weight * (value(t + 1) - value(t))
    return out


# ------------------------------------------------------------------------------------------------------------- turns


def step_returns(rewards: dict[int, float], gamma: float) -> dict[int, float]:
    """Discounted return of every real segment; one discount a real segment."""
    out: dict[int, float] = {}
    carry = 0.0
    for k in sorted(rewards, reverse=True):
        carry = rewards[k] + gamma * carry
        out[k] = carry
    return out


def gigpo(
    d: Batch, weight: float = 1.0, gamma: float = 0.95, mode: str = "mean_norm", ddof: int = 1, eps: float = 1e-6
) -> np.ndarray:
    """Episode credit plus step credit among the visits to the same state of a prompt."""
    rule = centred if mode == "mean_norm" else functools.partial(normalized, ddof=ddof, eps=eps)
    out = group_credit(d, rule)
    for p in range(sizes(d)[0]):
        step: dict[tuple[int, int], float] = {}
        anchor: dict[int, list[tuple[int, int]]] = {}
        for g in voters(d, p):
            if not acted(d, p, g):
                continue
            stream = reward_stream(d, p, g)
            rewards = {k: sum(stream[t] for t in owned) for k, owned in segments(d, p, g).items()}
            for k, value in step_returns(rewards, gamma).items():
                step[g, k] = value
                anchor.setdefault(int(d["state_key"][p, g, k]), []).append((g, k))
        for visits in anchor.values():
            for (g, k), value in rule({v: step[v] for v in visits}, dict.fromkeys(visits, 1.0)).items():
                for t in segments(d, p, g)[k]:
                    out[p, g, t] += weight * value
    return out


def a2tgpo(
    d: Batch, alpha: float = 0.3, gamma: float = 1.0, ddof: int = 1, eps: float = 1e-6, signal: str = "potential"
) -> np.ndarray:
    """GRPO plus the information gain of each tool turn, normalised by depth and accumulated with a sqrt rescale."""
    out = group_credit(d, lambda x, w: normalized(x, w, ddof, eps))
    for p in range(sizes(d)[0]):
        gains: dict[int, dict[int, float]] = {}
        for g in voters(d, p):
            for k in list(segments(d, p, g))[:-1]:  # the last real turn answers and gains nothing
                gains.setdefault(k, {})[g] = float(d[signal][p, g, k + 1]) - float(d[signal][p, g, k])
        scored: dict[int, dict[int, float]] = {}
        for k, by_row in gains.items():
            for g, value in normalized(by_row, dict.fromkeys(by_row, 1.0), ddof, eps).items():
                scored.setdefault(g, {})[k] = value
        for g, by_turn in scored.items():
            turns = sorted(by_turn)
            for index, k in enumerate(turns):
                later = turns[index:]
                total = sum(gamma**n * by_turn[j] for n, j in enumerate(later))
                for t in segments(d, p, g)[k]:
                    out[p, g, t] += alpha * total / math.sqrt(len(later))
    return out


def tips(d: Batch, alpha: float = 0.02, gamma: float = 1.0, lam: float = 1.0, critic: bool = False) -> np.ndarray:
    """GAE on the outcome plus potential-based shaping at the end of every turn, with the terminal correction."""
    out = zeros(d)
    for p, g in cells(d):
        positions = acted(d, p, g)
        if not positions or not math.isfinite(d["outcome"][p, g]):
            continue
        owned = segments(d, p, g)
        turns = 1 + max(owned) if owned else 0
        potential = []
        for k in range(turns + 1):
            value = float(np.logaddexp.reduce(d["answer_logprob"][p, g, k].astype(float)))
            potential.append(value if math.isfinite(value) else 0.0)
        stream = dict.fromkeys(positions, 0.0)
        for k in range(turns):
            earlier = [owned[j][-1] for j in owned if j <= k]
            stream[max(earlier) if earlier else positions[0]] += alpha * (potential[k + 1] - potential[k])
        stream[positions[-1]] += float(d["outcome"][p, g]) - alpha * potential[turns]
        shaped = {**d, "reward": zeros(d)}
        if not critic:
            shaped |= {"value": zeros(d), "next_value": zeros(d)}
        for t, value in stream.items():
            shaped["reward"][p, g, t] = value
        for t, value in raw_gae(shaped, p, g, gamma, lam).items():
            out[p, g, t] = value
    return out


def match_rewards(d: Batch, p: int, g: int, penalty: float = 0.0) -> dict[int, float]:
    """Reward of every real turn: the matched similarity of its calls; the last turn is paid the answer's score."""
    owned = segments(d, p, g)
    calls = [q for q, k in enumerate(d["call_turn"][p, g]) if k in owned]
    references = [e for e in range(d["reference_mask"].shape[-1]) if d["reference_mask"][p, g, e]]
    earned = dict.fromkeys(calls, penalty)
    if calls and references:
        similarity = d["call_similarity"][p, g][np.ix_(calls, references)].astype(float)
        for row, column in zip(*linear_sum_assignment(-similarity), strict=True):
            if similarity[row, column] > 0:
                earned[calls[row]] = similarity[row, column]
    rewards = {}
    for k in owned:
        items = [earned[q] for q in calls if d["call_turn"][p, g, q] == k]
        if k == max(owned):
            items.append(float(d["answer_score"][p, g]))
        rewards[k] = sum(items) / len(items) if items else 0.0
    return rewards


def matchtir(d: Batch, lam: float = 0.9, ddof: int = 1, eps: float = 1e-6, penalty: float = 0.0) -> np.ndarray:
    """The mean of trajectory-level GRPO on the summed turn rewards and of turn-level GRPO on their returns."""
    out = zeros(d)
    for p in range(sizes(d)[0]):
        weights = vote_weights(d, p)
        rewards = {g: match_rewards(d, p, g, penalty) for g in weights}
        whole = normalized({g: sum(r.values()) for g, r in rewards.items()}, weights, ddof, eps)
        for g in weights:
            for t in acted(d, p, g):
                out[p, g, t] = 0.5 * whole[g]
        returns = {g: step_returns(r, lam) for g, r in rewards.items()}
        for k in range(d["num_segments"]):
            here = {g: r[k] for g, r in returns.items() if k in r}
            for g, z in normalized(here, dict.fromkeys(here, 1.0), ddof, eps).items():
                for t in segments(d, p, g)[k]:
                    out[p, g, t] += 0.5 * z
    return out


def read_choice(d: Batch, p: int) -> dict[tuple[int, int], float]:
    """Credit of every skill-read call: whether it was its row's only one and right, centred over the group's calls."""
    clean: dict[tuple[int, int], float] = {}
    for g in voters(d, p):
        reads = [r for r in range(d["read_mask"].shape[-1]) if d["read_mask"][p, g, r]]
        for r in reads:
            clean[g, r] = float(len(reads) == 1 and bool(d["read_is_oracle"][p, g, r]))
    if all_equal(clean.values()):
        return dict.fromkeys(clean, 0.0)
    return {call: value - sum(clean.values()) / len(clean) for call, value in clean.items()}


def skillgate(d: Batch, ddof: int = 1, eps: float = 1e-6) -> np.ndarray:
    """Execution tokens earn the outcome's credit, tokens that name a skill the selector's, call wrappers nothing."""
    out = group_credit(d, lambda x, w: normalized(x, w, ddof, eps))
    for p, g in cells(d):
        choice = read_choice(d, p)
        for t in acted(d, p, g):
            call = int(d["read_call"][p, g, t])
            if call >= 0:
                out[p, g, t] = choice.get((g, call), 0.0) if d["read_identity"][p, g, t] else 0.0
    return out


# ------------------------------------------------------------------------------------------------------------ agents


def shapley_values(v: np.ndarray) -> list[float]:
    """Shapley values of a game given by its coalition values in bitmask order, by the definition."""
    players = int(math.log2(len(v)))
    phi = []
    for n in range(players):
        total = 0.0
        for s in range(len(v)):
            if not s >> n & 1:
                size = bin(s).count("1")
                weight = math.factorial(size) * math.factorial(players - size - 1) / math.factorial(players)
                total += weight * (float(v[s | 1 << n]) - float(v[s]))
        phi.append(total)
    return phi


def shapley_exact(d: Batch) -> np.ndarray:
    """Every token earns the Shapley value of its agent; a row with a coalition never evaluated earns nothing."""
    out = zeros(d)
    for p, g in cells(d):
        if np.isfinite(d["coalition_value"][p, g]).all():
            phi = shapley_values(d["coalition_value"][p, g])
            for t in acted(d, p, g):
                n = int(d["agent"][p, g, t])
                out[p, g, t] = phi[n] if n >= 0 else 0.0
    return out


ORACLES: dict[str, Callable[[Batch], np.ndarray]] = {
    "reinforce": reinforce,
    "reinforce_baseline": reinforce_baseline,
    "rloo": rloo,
    "remax": remax,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    # Losses on the credit of GRPO.
    "gspo": grpo,
    "cispo": grpo,
    "sapo": grpo,
    "gmpo": grpo,
    "clip_cov": grpo,
    "kl_cov": grpo,
    "gpg": gpg,
    "opo": opo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "ppo": gae,
    "gae": gae,
    "vtrace": vtrace,
    "optimal_token_baseline": optimal_token_baseline,
    "pass_at_k_grpo": pass_at_k_grpo,
    "gdpo": gdpo,
    "max_rl": max_rl,
    "pure": pure,
    "prime": prime,
    "ucas": ucas,
    "tempo": tempo,
    "gigpo": gigpo,
    "a2tgpo": a2tgpo,
    "tips": tips,
    "matchtir": matchtir,
    "skillgate": skillgate,
    "shapley_exact": shapley_exact,
}
