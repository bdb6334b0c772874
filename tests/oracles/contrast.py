"""Losses over pairs and groups, and the credit of their recipes, in float64 NumPy, one explicit loop at a time.

Nothing here imports the library. Batches are the dicts of :mod:`oracles.credit`. A loss is called as
``loss(lp, frozen, d, **constants)``: `lp` ``[P, G, T]`` are the new log-probabilities and `frozen` the same numbers
where a formula stops the gradient, so that differences in `lp` alone give the gradient that a loss must have.
"""

import math

import numpy as np

from oracles.credit import acted, all_equal, broadcast, cells, grpo, segments, sizes, vote_weights, votes, zeros

Batch = dict


def softplus(x: float) -> float:
    """``log(1 + e^x)``."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def divided(total: float, count: float) -> float:
    return total / count if count > 0 else 0.0


def numeric_gradient(f, x: np.ndarray, where, h: float = 1e-5) -> np.ndarray:
    """Central differences of `f` at the given indices, 0 elsewhere."""
    out = np.zeros(x.shape)
    for index in where:
        up, down = x.copy(), x.copy()
        up[index] += h
        down[index] -= h
        out[index] = (f(up) - f(down)) / (2 * h)
    return out


def tokens_of(d: Batch) -> list[tuple[int, int, int]]:
    return [(p, g, t) for p, g in cells(d) for t in acted(d, p, g)]


# ----------------------------------------------------------------------------------------------------------- credit


def lampo(d: Batch, tau=1.0, eta=0.0, std=False, eps=1e-6) -> np.ndarray:
    row = {}
    for p in range(sizes(d)[0]):
        w = vote_weights(d, p)
        count = sum(w.values())
        reward = {g: float(d["outcome"][p, g]) for g in w}
        for g in w:
            if eta and math.isfinite(d["rouge_l"][p, g]):
                reward[g] += eta * float(d["rouge_l"][p, g])
        score = {g: divided(sum(float(d["logprob"][p, g, t]) for t in acted(d, p, g)), len(acted(d, p, g))) for g in w}
        value = {}
        for i in w:
            total = 0.0
            for j in w:
                gap = reward[i] - reward[j]
                lead = (gap > 0) * (score[i] - score[j]) - (gap < 0) * (score[i] - score[j])
                total += w[j] * 2.0 * sigmoid(-lead / tau) * gap
            value[i] = total / (count - 1.0) if count > 1.5 and not all_equal(reward.values()) else 0.0
        if std and value and not all_equal(value.values()):
            mean = sum(value.values()) / len(value)
            spread = math.sqrt(sum((x - mean) ** 2 for x in value.values()) / (len(value) - 1))
            value = {g: (x - mean) / (spread + eps) for g, x in value.items()}
        row |= {(p, g): x for g, x in value.items()}
    return broadcast(d, row)


def conspo_scores(lp, d: Batch, p: int) -> dict[int, float]:
    mean = {}
    for g in vote_weights(d, p):
        positions = acted(d, p, g)
        mean[g] = sum(float(lp[p, g, t]) for t in positions) / max(len(positions), 1)
    return mean


def conspo(d: Batch, tau=0.1, margin=0.5, warmup=1.0) -> np.ndarray:
    out = zeros(d)
    held = margin * min(float(d["progress"]) / warmup, 1.0)
    for p in range(sizes(d)[0]):
        w, s = vote_weights(d, p), conspo_scores(d["logprob"], d, p)
        positive = [g for g in w if d["outcome"][p, g] > 0.5]
        negative = [g for g in w if g not in positive]
        if not positive or not negative:
            continue
        credit, total = dict.fromkeys(w, 0.0), sum(w[i] for i in positive)
        for i in positive:
            top = max(s.values()) / tau
            own = math.exp((s[i] - held) / tau - top)
            rivals = {j: w[j] * math.exp(s[j] / tau - top) for j in negative}
            z = own + sum(rivals.values())
            credit[i] += w[i] / total * (1.0 - own / z) / tau
            for j in negative:
                credit[j] -= w[i] / total * rivals[j] / z / tau
        for g in w:
            for t in acted(d, p, g):
                out[p, g, t] = credit[g] / len(acted(d, p, g))
    return out


def vimpo(d: Batch, lam=1.0) -> np.ndarray:
    """``A_t = a_t + lam A_{t+1}`` over action positions, whitened over the batch with the population std."""
    out, all_values = zeros(d), []
    for p, g in cells(d):
        if votes(d, p, g):
            ahead = 0.0
            for t in reversed(acted(d, p, g)):
                log_ratio = float(d["logprob_current"][p, g, t]) - float(d["logprob_ref"][p, g, t])
                ahead = log_ratio - float(d["token_kl"][p, g, t]) + lam * ahead
                out[p, g, t] = ahead
                all_values.append(ahead)
    if len(all_values) < 2 or all_equal(all_values):
        return zeros(d)
    mean = sum(all_values) / len(all_values)
    std = math.sqrt(sum((x - mean) ** 2 for x in all_values) / len(all_values))
    whitened = zeros(d)
    for p, g, t in tokens_of(d):
        if votes(d, p, g):
            whitened[p, g, t] = (out[p, g, t] - mean) / (std + 1e-8)
    return whitened


def tips_prm(d: Batch, eps=1e-6) -> np.ndarray:
    agrees = (d["verdict"] == d["solution_label"][:, None]).astype(float)
    judged = {**d, "outcome": np.where(np.isfinite(d["outcome"]), agrees, np.nan)}
    return grpo(judged, eps=eps)


def implicit_prm(d: Batch, beta=0.05) -> np.ndarray:
    out = zeros(d)
    for p, g in cells(d):
        if votes(d, p, g):
            for own in segments(d, p, g).values():
                reward = sum(float(d["logprob_prm"][p, g, t]) - float(d["logprob_ref"][p, g, t]) for t in own)
                for t in own:
                    out[p, g, t] = beta * reward
    return out


def implied(loss, d: Batch, **constants) -> np.ndarray:
    """Minus the gradient of a loss at the behaviour policy, added up over what the loss averages within each group."""
    out = zeros(d)
    lp = np.nan_to_num(np.asarray(d["logprob"], float), nan=0.0, posinf=0.0, neginf=0.0)
    for p in range(sizes(d)[0]):
        where = [index for index in tokens_of(d) if index[0] == p]

        def added(x, p=p):
            return loss(x, lp, d, prompts=[p], mean=False, **constants)

        out -= numeric_gradient(added, lp, where)
    return out


# ------------------------------------------------------------------------------------------------------------ losses


def espo(lp, frozen, d: Batch, credit, bins=4, eps_low=3e-4, eps_high=4e-4, q_min=0.5, q_max=4.0) -> float:
    rows, count = 0.0, 0
    for p, g in cells(d):
        positions = acted(d, p, g)
        n = len(positions)
        if n == 0:
            continue
        order = sorted(positions, key=lambda t: (d["entropy"][p, g, t], t))
        owner = {t: bins * rank // n for rank, t in enumerate(order)}
        mean = sum(float(d["entropy"][p, g, t]) for t in positions) / n
        total = 0.0
        for t in positions:
            own = [u for u in positions if owner[u] == owner[t]]
            shared = sum(frozen[p, g, u] - float(d["logprob"][p, g, u]) for u in own) / len(own)
            s = math.exp(shared + lp[p, g, t] - frozen[p, g, t])
            q = min(max(sum(float(d["entropy"][p, g, u]) for u in own) / len(own) / (mean + 1e-8), q_min), q_max)
            a = credit[p, g, t]
            total += max(-a * s, -a * min(max(s, 1 - eps_low * q), 1 + eps_high * q))
        rows += total / n
        count += 1
    return divided(rows, count)


def conspo_loss(lp, frozen, d: Batch, tau=0.1, margin=0.5, warmup=1.0) -> float:
    total, groups = 0.0, 0
    held = margin * min(float(d["progress"]) / warmup, 1.0)
    for p in range(sizes(d)[0]):
        w, s = vote_weights(d, p), conspo_scores(lp, d, p)
        positive = [g for g in w if d["outcome"][p, g] > 0.5]
        negative = [g for g in w if g not in positive]
        if positive and negative:
            groups += 1
            for i in positive:
                top = max(s.values()) / tau
                rivals = sum(w[j] * math.exp(s[j] / tau - top) for j in negative)
                own = math.exp((s[i] - held) / tau - top)
                total -= w[i] / sum(w[k] for k in positive) * math.log(own / (own + rivals))
    return divided(total, groups)


def implied_value(lp, frozen, d: Batch, beta=5e-4) -> float:
    total, count = 0.0, 0.0
    for p in range(sizes(d)[0]):
        w = vote_weights(d, p)
        outcomes = {g: float(d["outcome"][p, g]) for g in w}
        degenerate = sum(w.values()) < 1.5 or all_equal(outcomes.values())
        mean = divided(sum(w[g] * outcomes[g] for g in w), sum(w.values()))
        for g in w:
            u = sum(
                beta * (lp[p, g, t] - float(d["logprob_ref"][p, g, t]) - float(d["token_kl"][p, g, t]))
                for t in acted(d, p, g)
            )
            total += w[g] * 0.5 * (u - (0.0 if degenerate else outcomes[g] - mean)) ** 2
            count += w[g]
    return divided(total, count)


def looped(loop_lp, d: Batch, credit, omega) -> float:
    """``omega`` f64 ``[L]`` or ``[P, G, T, L]``; token mean."""
    total, count = 0.0, 0
    for p, g, t in tokens_of(d):
        weight = omega if omega.ndim == 1 else omega[p, g, t]
        total -= credit[p, g, t] * sum(
            float(weight[loop]) * loop_lp[p, g, t, loop] for loop in range(loop_lp.shape[-1])
        )
        count += 1
    return divided(total, count)


def pairs(d: Batch, p: int, graded: bool = False) -> list[tuple[int, int, float, float]]:
    """(winner, loser, weight, votes) of every pair of a group."""
    w = vote_weights(d, p)
    quality = {}
    for g in w:
        labels = [float(d["step_label"][p, g, k]) for k in segments(d, p, g)] if graded else []
        labels = [x for x in labels if math.isfinite(x)]
        quality[g] = divided(sum(labels), len(labels))
    found = []
    for i in w:
        for j in w:
            if d["outcome"][p, i] > d["outcome"][p, j]:
                found.append((i, j, 1.0, w[i] * w[j]))
            elif graded and d["outcome"][p, i] == d["outcome"][p, j] and quality[i] > quality[j]:
                found.append((i, j, quality[i] - quality[j], w[i] * w[j]))
    return found


def log_gain(lp, d: Batch, p: int, g: int, use_ref: bool = True, weight=None) -> float:
    return sum(
        (1.0 if weight is None else weight[t]) * (lp[p, g, t] - (float(d["logprob_ref"][p, g, t]) if use_ref else 0.0))
        for t in acted(d, p, g)
    )


def dpo(lp, frozen, d: Batch, beta=0.1, use_ref=True, graded=False, prompts=None, mean=True) -> float:
    total, count = 0.0, 0.0
    for p in range(sizes(d)[0]) if prompts is None else prompts:
        for i, j, weight, share in pairs(d, p, graded):
            h = beta * (log_gain(lp, d, p, i, use_ref) - log_gain(lp, d, p, j, use_ref))
            total += weight * share * softplus(-h)
            count += share
    return divided(total, count) if mean else total


def t_reg(lp, frozen, d: Batch, beta=0.1, alpha=0.25, pair_weight=True, prompts=None, mean=True) -> float:
    def regularizer(p, g):
        positions = acted(d, p, g)
        total = 0.0
        for t in positions:
            q = sigmoid(float(d["logprob_better"][p, g, t]) - float(d["logprob_worse"][p, g, t])) - 0.5
            total += q * beta * (lp[p, g, t] - float(d["logprob_ref"][p, g, t]))
        return divided(total, len(positions))

    total, count = 0.0, 0.0
    for p in range(sizes(d)[0]) if prompts is None else prompts:
        for i, j, _, share in pairs(d, p):
            h = beta * (log_gain(lp, d, p, i) - log_gain(lp, d, p, j))
            still = beta * (log_gain(frozen, d, p, i) - log_gain(frozen, d, p, j))
            v = 1.0 - sigmoid(still) if pair_weight else 1.0
            total += share * (softplus(-h) - alpha * v * (regularizer(p, i) + regularizer(p, j)))
            count += share
    return divided(total, count) if mean else total


def ctpd(lp, frozen, d: Batch, beta=0.1, low=-0.5, high=1.5, scale=1.0, prompts=None, mean=True) -> float:
    def score(p, g, mu):
        total = 0.0
        for k, own in segments(d, p, g).items():
            x = min(max(float(d["teacher_span_better"][p, g, k]) - float(d["teacher_span_worse"][p, g, k]), low), high)
            student = sum(lp[p, g, t] for t in own)
            total += scale * math.exp(mu * x) * (student - float(d["teacher_span_logprob"][p, g, k]))
        return total

    total, count = 0.0, 0.0
    for p in range(sizes(d)[0]) if prompts is None else prompts:
        for i, j, _, share in pairs(d, p):
            total += share * softplus(-beta * (score(p, i, 1) - score(p, j, -1)))
            count += share
    return divided(total, count) if mean else total


def rise(lp, frozen, d: Batch, beta=0.1, rest_weight=1.0, nll=0.05, prompts=None, mean=True) -> float:
    whole, whole_count, step, step_count, imitation = 0.0, 0.0, 0.0, 0.0, 0.0
    for p in range(sizes(d)[0]) if prompts is None else prompts:
        group = range(sizes(d)[1])
        edited = "step_mask" in d and any(d["step_mask"][p, g, t] for g in group for t in acted(d, p, g))
        for i, j, _, share in pairs(d, p):
            if edited:
                weights = {
                    g: {
                        t: (1.0 if d["edit_mask"][p, g, t] else rest_weight) if d["step_mask"][p, g, t] else 0.0
                        for t in acted(d, p, g)
                    }
                    for g in (i, j)
                }
                h = beta * (log_gain(lp, d, p, i, weight=weights[i]) - log_gain(lp, d, p, j, weight=weights[j]))
                step += share * softplus(-h)
                step_count += share
            else:
                h = beta * (log_gain(lp, d, p, i) - log_gain(lp, d, p, j))
                whole += share * softplus(-h)
                whole_count += share
                positions = acted(d, p, i)
                imitation -= share * divided(sum(lp[p, i, t] for t in positions), len(positions))
    if not mean:
        return whole + step + nll * imitation
    return divided(whole, whole_count) + divided(step, step_count) + nll * divided(imitation, whole_count)


def implicit_losses(reward: np.ndarray, d: Batch, kind: str, z: float = 0.0) -> tuple[float, float]:
    """Sum and count of an outcome loss on the rewards ``[P, G]`` of whole rollouts."""
    total, count = 0.0, 0.0
    for p in range(sizes(d)[0]):
        if kind in ("ce", "kto"):
            for g in vote_weights(d, p):
                r, label = reward[p, g] - (z if kind == "kto" else 0.0), float(d["outcome"][p, g])
                total += label * softplus(-r) + (1 - label) * softplus(r)
                count += 1
            continue
        for i, j, _, share in pairs(d, p):
            up, down = reward[p, i], reward[p, j]
            one = softplus(down - up) if kind == "dpo" else softplus(-up) + 0.5 * (softplus(up) + softplus(down))
            total += share * one
            count += share
    return total, count
