"""How much of a reference solution a rollout repeats. Runs on the host, between rollout and update."""

from collections.abc import Sequence

import numpy as np

from creditjax.trajectory import Trajectory


def common_subsequence(a: Sequence[int], b: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Which elements belong to one longest common subsequence of two sequences, bool ``[n]`` and ``[m]``.

    Where there are several, it is always the same one: read from the end, an equal pair is taken as soon as it is met.
    In O(n m).

    >>> [x.tolist() for x in common_subsequence([1, 2, 3], [2, 3, 4])]
    [[False, True, True], [True, True, False]]
    """
    a, b = np.asarray(a), np.asarray(b)
    n, m = len(a), len(b)
    best = np.zeros((n + 1, m + 1), np.int32)
    for i in range(n):
        diagonal = best[i, :m] + (a[i] == b)
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(diagonal, best[i, 1:]))
    in_a, in_b = np.zeros(n, bool), np.zeros(m, bool)
    i, j = n, m
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            in_a[i] = in_b[j] = True
        elif best[i - 1, j] >= best[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return in_a, in_b


def rouge_l(written: Sequence[int], reference: Sequence[int]) -> float:
    """ROUGE-L F1 (Lin, 2004): ``2 L / (n + m)`` with L the length of the longest common subsequence; 0 for nothing.

    >>> rouge_l([1, 2, 3], [2, 3, 4, 5, 6])
    0.5
    """
    total = len(written) + len(reference)
    return 2.0 * int(common_subsequence(written, reference)[0].sum()) / total if total else 0.0


def add_rouge_l(batch: Trajectory, references: Sequence[Sequence[int] | None]) -> Trajectory:
    """The batch with the signal `rouge_l` ``[P, G]`` of the acted tokens; NaN for a prompt without a reference.

    Args:
      batch: rollouts ``[P, G, T]`` on the host.
      references: the tokens of one solution a prompt, or None.

    Raises:
      ValueError: not as many references as prompts.
    """
    prompts, group = batch.batch_shape
    if len(references) != prompts:
        raise ValueError(
            f"references: {len(references)}, wanted one for each of the P={prompts} prompts (None for none)"
        )
    tokens, mask = np.asarray(batch.tokens), np.asarray(batch.action_mask)
    found = np.full((prompts, group), np.nan, np.float32)
    for p, reference in enumerate(references):
        if reference is not None:
            found[p] = [rouge_l(tokens[p, g][mask[p, g]], reference) for g in range(group)]
    return batch.with_signals(rouge_l=found)
