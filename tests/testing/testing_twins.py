"""Right estimators to hold against their broken twins, as plain NumPy functions of a batch."""

import numpy as np


def votes(batch):
    return batch.action_mask.any(-1) & np.isfinite(batch.outcome)


def spread(batch, per_rollout):
    """One number a rollout, on its actions."""
    there = votes(batch)[..., None] & batch.action_mask
    return np.where(there, np.where(votes(batch), per_rollout, 0.0)[..., None], 0.0).astype(np.float32)


def score(batch):
    return np.where(votes(batch), batch.outcome, 0.0).astype(np.float64)


def reinforce(batch):
    """The outcome."""
    return spread(batch, score(batch))


def leave_one_out(batch):
    """The outcome minus the mean of the others'."""
    there = votes(batch)
    count = there.sum(1, keepdims=True)
    others = (score(batch).sum(1, keepdims=True) - score(batch)) / np.maximum(count - 1, 1)
    return spread(batch, np.where(count > 1, score(batch) - others, 0.0))


def centred(batch):
    """The outcome minus the group's mean, its own outcome included."""
    count = np.maximum(votes(batch).sum(1, keepdims=True), 1)
    return spread(batch, score(batch) - score(batch).sum(1, keepdims=True) / count)


def normalized(batch):
    """That over the standard deviation."""
    value = centred(batch)
    each = score(batch) - score(batch).sum(1, keepdims=True) / np.maximum(votes(batch).sum(1, keepdims=True), 1)
    square = np.where(votes(batch), each, 0.0) ** 2
    std = np.sqrt(square.sum(1, keepdims=True) / np.maximum(votes(batch).sum(1, keepdims=True), 1))
    return (value / (std[..., None] + 1e-6)).astype(np.float32)


def at_the_end(batch):
    """The outcome on the last action alone."""
    mask = batch.action_mask
    last = mask & (np.cumsum(mask, -1) == mask.sum(-1, keepdims=True))
    return np.where(last, reinforce(batch), 0.0).astype(np.float32)
