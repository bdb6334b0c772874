"""Float64 loops over acted steps, written from the method cards: the oracle of the recursions' tests."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Step:
    """One acted position with everything that belongs to it, up to the next acted position."""

    t: int
    reward: float
    terminated: bool
    truncated: bool


def steps_of(reward, mask, terminated=None, truncated=None) -> list[Step]:
    steps, open_step = [], None
    for t in range(len(mask)):
        if mask[t]:
            open_step = Step(t, float(reward[t]), False, False)
            steps.append(open_step)
        elif open_step is not None and np.isfinite(reward[t]):
            open_step.reward += float(reward[t])
        if open_step is not None and not (open_step.terminated or open_step.truncated):
            if terminated is not None and terminated[t]:
                open_step.terminated = True
            elif truncated is not None and truncated[t]:
                open_step.truncated = True
    return steps


def at(x, t):
    return float(x if np.ndim(x) == 0 else x[t])


def gae(reward, value, mask, gamma, lam, next_value=None, terminated=None, truncated=None, truncation="bootstrap"):
    steps = steps_of(reward, mask, terminated, truncated)
    advantage, target = np.zeros(len(mask)), np.zeros(len(mask))
    carry = 0.0
    for i in reversed(range(len(steps))):
        s = steps[i]
        if next_value is not None:
            bootstrap = 0.0 if s.terminated else float(next_value[s.t])
        else:
            bootstrap = 0.0 if s.terminated or i + 1 == len(steps) else float(value[steps[i + 1].t])
        delta = s.reward + at(gamma, s.t) * bootstrap - value[s.t]
        if s.terminated or s.truncated:
            carry = 0.0
        carry = delta + at(gamma, s.t) * at(lam, s.t) * carry
        if s.truncated and truncation == "drop":
            carry = 0.0
        advantage[s.t], target[s.t] = carry, carry + value[s.t]
    return advantage, target


def discounted_return(reward, mask, gamma, terminated=None, truncated=None, next_value=None, count_observations=False):
    out = np.zeros(len(mask))
    steps = steps_of(reward, mask, terminated, truncated)
    for i, s in enumerate(steps):
        discount, total = 1.0, 0.0
        for j in range(i, len(steps)):
            u = steps[j]
            end = steps[j + 1].t if j + 1 < len(steps) else len(mask)
            if count_observations:
                for p in range(u.t, end):
                    total += gamma ** (p - s.t) * (reward[p] if mask[p] or np.isfinite(reward[p]) else 0.0)
                discount = gamma ** (u.t - s.t)
            else:
                total += discount * u.reward
            if not u.terminated and (u.truncated or j + 1 == len(steps)) and next_value is not None:
                total += discount * at(gamma, u.t) * next_value[u.t]
            if u.terminated or u.truncated:
                break
            if not count_observations:
                discount *= at(gamma, u.t)
        out[s.t] = total
    return out


def n_step_return(reward, value, mask, gamma, n, next_value=None, terminated=None, truncated=None):
    out = np.zeros(len(mask))
    steps = steps_of(reward, mask, terminated, truncated)
    for i, s in enumerate(steps):
        discount, total = 1.0, 0.0
        for j in range(i, min(i + n, len(steps))):
            u = steps[j]
            total += discount * u.reward
            discount *= at(gamma, u.t)
            if u.terminated:
                break
            if j == i + n - 1 or u.truncated or j + 1 == len(steps):
                if next_value is not None:
                    total += discount * next_value[u.t]
                elif j + 1 < len(steps):
                    total += discount * value[steps[j + 1].t]
                break
        out[s.t] = total
    return out


def vtrace(
    reward,
    value,
    current,
    behaviour,
    mask,
    gamma,
    lam,
    rho_bar,
    rho_pg_bar,
    c_bar,
    next_value=None,
    terminated=None,
    truncated=None,
):
    steps = steps_of(reward, mask, terminated, truncated)
    credit, target = np.zeros(len(mask)), np.zeros(len(mask))
    error = 0.0
    for i in reversed(range(len(steps))):
        s = steps[i]
        rho = np.exp(np.clip(float(current[s.t]) - float(behaviour[s.t]), -20, 20))
        if next_value is not None:
            bootstrap = float(next_value[s.t])
        else:
            bootstrap = float(value[steps[i + 1].t]) if i + 1 < len(steps) else 0.0
        bootstrap = 0.0 if s.terminated else bootstrap
        later = 0.0 if s.terminated or s.truncated else error
        g, v = at(gamma, s.t), float(value[s.t])
        credit[s.t] = min(rho_pg_bar, rho) * (s.reward + g * (bootstrap + at(lam, s.t) * later) - v)
        error = min(rho_bar, rho) * (s.reward + g * bootstrap - v) + g * at(lam, s.t) * min(c_bar, rho) * later
        target[s.t] = v + error
    return credit, target
