"""Random batches with every irregularity that a valid batch may have, as plain dicts of NumPy arrays."""

import zlib

import numpy as np

from creditjax.trajectory import FIELDS, SIGNALS, Trajectory

GARBAGE = (np.nan, np.inf, -np.inf, 1e30, -7.0)


def _garbage(rng: np.random.Generator, shape) -> np.ndarray:
    """Values that may stand wherever nothing is read."""
    return rng.choice(GARBAGE, size=shape).astype(np.float32)


def _under(rng: np.random.Generator, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`values` where `mask` holds and garbage elsewhere."""
    mask = np.broadcast_to(mask, values.shape)
    return np.where(mask, values, _garbage(rng, values.shape)).astype(np.float32)


def random_batch(
    rng: np.random.Generator,
    prompts: int = 3,
    group: int = 4,
    length: int = 12,
    segments: int = 4,
    *,
    agents: int = 3,
    outcome: str = "binary",
    with_reward: bool = True,
    fragments: bool = False,
    episodes: bool = False,
) -> dict:
    """A batch for every estimator: fields and signals of `creditjax.trajectory`, leading axes ``[P, G]``.

    Prompts open with observed tokens. Rows are ragged, with observed gaps between what the policy wrote; some are
    missing, some observe without acting, some are unscored, some repeat a sibling or its beginning. Whatever is not
    read holds NaN, inf or large numbers. Floats are float32-representable, so that every precision sees the same raw
    values.

    Args:
      outcome: "binary", "unit" (continuous in [0, 1]) or "real"; one group of each batch is constant at random.
      with_reward: give a reward stream, some of it on observed positions.
      fragments: give `votes` and `trajectory`, with rows that are pieces of one rollout and share its outcome.
      episodes: let episodes end within rows, by termination or truncation.
    """
    p_, g_, t_, k_ = prompts, group, length, segments
    shape = (p_, g_)
    tokens = rng.integers(0, 3, size=(p_, g_, t_))
    observed = np.zeros((p_, g_, t_), bool)  # where there is a token at all
    mask = np.zeros((p_, g_, t_), bool)
    segment = np.full((p_, g_, t_), -1)
    for p in range(p_):
        opening = int(rng.integers(0, 3))
        tokens[p, :, :opening] = tokens[p, :1, :opening]
        for g in range(g_):
            kind = rng.choice(["full", "missing", "silent", "twin", "cousin"], p=[0.5, 0.1, 0.08, 0.12, 0.2])
            if kind == "missing":
                continue
            size = int(rng.integers(opening + 1, t_ + 1))
            if kind == "silent":
                observed[p, g, :size] = True
                continue
            if kind in ("twin", "cousin") and g > 0:
                other = int(rng.integers(0, g))
                if mask[p, other].any():
                    shared = t_ if kind == "twin" else int(rng.integers(opening, t_))
                    if kind == "twin":
                        size = int(observed[p, other].sum())
                    tokens[p, g, :shared] = tokens[p, other, :shared]
                    mask[p, g, :shared] = mask[p, other, :shared]
                    segment[p, g, :shared] = segment[p, other, :shared]
                    size = max(size, shared) if kind == "cousin" else size
                    if kind == "twin":
                        observed[p, g, :size] = True
                        continue
                    start = shared
                else:
                    start = opening
            else:
                start = opening
            free = np.arange(start, size)
            mask[p, g, free] = rng.random(free.size) < 0.7
            mask[p, g, size - 1] = True  # nothing is observed after the last action
            observed[p, g, :size] = True
            if start == opening:  # segments in order, some left out
                cuts = np.sort(rng.integers(0, k_, size=size - opening))
                segment[p, g, opening:size] = np.where(rng.random(size - opening) < 0.1, -1, cuts)
            else:
                low = max(int(segment[p, g, :start].max(initial=0)), 0)
                segment[p, g, start:size] = np.sort(rng.integers(low, k_, size=size - start))
    padding = ~observed
    tokens = np.where(padding, rng.integers(0, 3, size=tokens.shape), tokens)
    segment = np.where(padding, rng.integers(-1, k_, size=segment.shape), segment)
    owned = np.stack([(mask & (segment == k)).any(-1) for k in range(k_)], axis=-1)

    scores = {
        "binary": lambda: rng.integers(0, 2, size=shape).astype(float),
        "unit": lambda: rng.random(shape),
        "real": lambda: rng.normal(size=shape) * 3,
    }[outcome]()
    if rng.random() < 0.5:
        scores[int(rng.integers(p_))] = rng.choice([0.0, 0.1, 1.0])
    scores = np.where(rng.random(shape) < 0.1, np.nan, scores).astype(np.float32)
    alive = mask.any(-1)
    scores = np.where(alive | (rng.random(shape) < 0.7), scores, np.nan).astype(np.float32)
    d = {
        "tokens": tokens.astype(np.int32),
        "action_mask": mask,
        "outcome": scores,
        "segment": segment.astype(np.int32),
        "num_segments": k_,
    }
    if fragments:
        d["trajectory"] = np.tile(np.arange(g_, dtype=np.int32), (p_, 1))
        d["votes"] = alive | (rng.random(shape) < 0.5)
        d["votes"] &= rng.random(shape) < 0.9
        for p in range(p_):
            if rng.random() < 0.7:
                a, b = rng.choice(g_, size=2, replace=False)
                d["trajectory"][p, b] = d["trajectory"][p, a]
                d["outcome"][p, b] = d["outcome"][p, a]
                d["votes"][p, b] = d["votes"][p, a]

    last = np.zeros_like(mask)
    for p, g in np.argwhere(alive):
        last[p, g, np.flatnonzero(mask[p, g])[-1]] = True
    ends = last & (rng.random(mask.shape) < 0.8)
    if episodes:
        ends |= mask & (rng.random(mask.shape) < 0.2)
    by_time = rng.random(mask.shape) < 0.4
    d["terminated"], d["truncated"] = ends & ~by_time, ends & by_time

    step = np.where(rng.random(mask.shape) < 0.4, rng.normal(size=mask.shape), 0.0)
    if with_reward:
        d["reward"] = np.where(observed, step, rng.choice([0.0, np.nan, np.inf], size=mask.shape)).astype(np.float32)

    def position(values):
        return _under(rng, values, mask)

    logprob = -rng.exponential(size=mask.shape)
    d["logprob"] = position(logprob)
    d["logprob_ref"] = position(logprob + 0.3 * rng.normal(size=mask.shape))
    d["logprob_current"] = position(logprob + 0.5 * rng.normal(size=mask.shape))
    d["logprob_prm"] = position(logprob + 0.5 * rng.normal(size=mask.shape))
    chosen = np.exp(logprob)
    d["sum_pi_squared"] = position(chosen**2 + (1 - chosen) ** 2 * rng.random(mask.shape))
    d["value"] = position(rng.normal(size=mask.shape))
    d["next_value"] = position(rng.normal(size=mask.shape))
    d["entropy"] = position(rng.exponential(size=mask.shape))
    d["self_certainty"] = position(rng.exponential(size=mask.shape))
    d["chosen_logit"] = position(rng.normal(size=mask.shape) * 4)

    d["process_reward"] = _under(rng, rng.uniform(-1, 1, size=(p_, g_, k_)), owned)
    boundary = np.zeros((p_, g_, k_ + 1), bool)  # read: both ends of every real segment, and all before the last one
    boundary[..., 0] = alive
    for k in range(k_):
        boundary[..., : k + 2] |= owned[..., k : k + 1]
    d["potential"] = _under(rng, rng.random((p_, g_, k_ + 1)), boundary)
    d["answer_logprob"] = _under(rng, -rng.exponential(size=(p_, g_, k_ + 1, 2)), boundary[..., None])
    d["state_key"] = rng.integers(0, 3, size=(p_, g_, k_)).astype(np.int32)

    d["agent"] = np.where(mask, rng.integers(-1, agents, size=mask.shape), agents).astype(np.int32)
    d["agent"] = np.where(mask, d["agent"], -1).astype(np.int32)
    coalition = rng.normal(size=(p_, g_, 2**agents))
    coalition[rng.random(shape) < 0.15, 1] = np.nan  # one coalition was never evaluated
    d["coalition_value"] = coalition.astype(np.float32)

    finite = np.isfinite(d["outcome"])
    d["greedy_outcome"] = rng.random(p_).astype(np.float32)
    d["running_baseline"] = np.float32(rng.normal())
    components = rng.integers(0, 3, size=(p_, g_, 2)) * rng.choice([1.0, 0.1], size=2)
    components[int(rng.integers(p_)), :, 0] = 0.1
    d["reward_components"] = np.where(finite[..., None], components, np.nan).astype(np.float32)
    d["accuracy"] = d["outcome"].copy()
    d["answer_score"] = np.where(alive, rng.random(shape), np.nan).astype(np.float32)

    calls, references = 4, 3
    final = np.where(owned, np.arange(k_), -1).max(-1)
    turn = rng.integers(-1, k_, size=(p_, g_, calls))
    made = np.take_along_axis(owned, np.maximum(turn, 0), -1) & (turn >= 0) & (turn != final[..., None])
    d["call_turn"] = np.where(made, turn, -1).astype(np.int32)
    d["reference_mask"] = np.repeat(rng.random((p_, 1, references)) < 0.8, g_, axis=1)
    similarity = np.where(rng.random((p_, g_, calls, references)) < 0.25, 0.0, rng.random((p_, g_, calls, references)))
    real = made[..., None] & d["reference_mask"][..., None, :]
    d["call_similarity"] = _under(rng, similarity, real)

    reads = 3
    call = np.where(rng.random(mask.shape) < 0.4, rng.integers(0, reads, size=mask.shape), -1)
    call = np.where(rng.random(shape)[..., None] < 0.3, -1, call)
    call = np.where(rng.random(shape)[..., None] < 0.4, np.where(call >= 0, 1, -1), call)  # one read at most
    d["read_mask"] = np.stack([(mask & (call == r)).any(-1) for r in range(reads)], axis=-1)
    d["read_call"] = np.where(mask, call, rng.integers(-1, reads, size=mask.shape)).astype(np.int32)
    d["read_identity"] = np.where(mask, (call >= 0) & (rng.random(mask.shape) < 0.7), rng.random(mask.shape) < 0.5)
    d["read_is_oracle"] = rng.random((p_, g_, reads)) < 0.6

    sizes = {"P": p_, "G": g_, "T": t_, "K": k_, "K+1": k_ + 1, "N": agents, "C": 2, "V": 2, "F": 2, "J": 3, "L": 3}
    sizes |= {"B": 3, "S": 2, "Y": 3, "D": 2, "H": 3, "X": 3}
    d["budget"] = np.sort(rng.choice(np.arange(1, t_ + 1), size=(p_, 3))).astype(np.int32)
    read = {"T": mask, "K": owned, "K+1": boundary}
    seed = int(rng.integers(2**32))
    for name in sorted(set(SIGNALS) - set(d)):
        # A generator of its own: tasks declare signals when they are imported, and no batch may depend on that.
        d |= _plain_signal(np.random.default_rng([seed, zlib.crc32(name.encode())]), name, sizes, read)
    return d


def _plain_signal(rng: np.random.Generator, name: str, sizes: dict[str, int], read: dict[str, np.ndarray]) -> dict:
    """A signal of which nothing but its row in the table is known: normal floats, coins, or the numbers 0 to 2."""
    axes, dtype = SIGNALS[name].axes, SIGNALS[name].dtype
    if name == "token_mask" or not set(axes) <= set(sizes):
        return {}
    shape = tuple(sizes[axis] for axis in axes)
    if dtype == "bool":
        return {name: rng.random(shape) < 0.5}
    if dtype == "int32":
        return {name: rng.integers(0, 3, size=shape).astype(np.int32)}
    values = -rng.exponential(size=shape) if name.startswith("logprob") else rng.normal(size=shape)
    if axes[:2] != ("P", "G") or len(axes) < 3 or axes[2] not in read:
        return {name: values.astype(np.float32)}
    mask = read[axes[2]]
    return {name: _under(rng, values, mask.reshape(mask.shape + (1,) * (len(axes) - 3)))}


def to_trajectory(d: dict, names=None) -> Trajectory:
    """The same batch as a `Trajectory`, with only the signals in `names` if these are given."""
    fields = {name: d[name] for name in FIELDS if name in d}
    signals = {
        name: value
        for name, value in d.items()
        if name not in FIELDS and name != "num_segments" and (names is None or name in names)
    }
    return Trajectory(**fields, signals=signals, num_segments=d["num_segments"])
