"""Strategic n-grams: phrases that plan a solution rather than carry it out (HICRA, arXiv:2509.03646)."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

import jax
from jax import numpy as jnp
import numpy as np

Array = jax.Array
Gram = tuple[Hashable, ...]


def ngram_mask(tokens: Array, mask: Array, grams: Array) -> Array:
    """Which tokens lie in a match of an n-gram, bool ``[..., T]``.

    Args:
      tokens: i32 ``[..., T]``.
      mask: bool ``[..., T]``; a match lies on consecutive positions that all hold.
      grams: i32 ``[N, n]``, shorter ones padded with -1 behind.
    """
    size = grams.shape[1]
    ahead = lambda x, j: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, j)])[..., j:]  # noqa: E731
    back = lambda x, j: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(j, 0)])[..., : x.shape[-1]]  # noqa: E731

    def match(covered, gram):
        used = gram >= 0
        begins = jnp.any(used) & mask
        for j in range(size):
            begins &= ~used[j] | ((ahead(tokens, j) == gram[j]) & ahead(mask, j))
        for j in range(size):
            covered |= back(begins & used[j], j)
        return covered, None

    return jax.lax.scan(match, jnp.zeros_like(mask), jnp.asarray(grams))[0]


def mine_strategic_grams(
    solutions: Sequence[Sequence[Hashable]],
    correct: Sequence[bool],
    sizes: Iterable[int] = (3, 4, 5),
    cluster: Callable[[list[Gram]], Sequence[Hashable]] | None = None,
    min_share: float = 0.1,
    max_repeats: float = 1.5,
) -> list[Gram]:
    """N-grams of words or tokens that recur across right solutions and are rarely repeated inside one. On the host.

    N-grams of one cluster count together: a cluster is kept if at least `min_share` of the right solutions contain it
    and those repeat it at most `max_repeats` times on average. That is what tells a strategy ("let us check this")
    from content, which occurs in few solutions, and from syntax, which is repeated in each.

    Args:
      solutions: words or token ids of each solution.
      correct: whether each is right; the others are not looked at.
      sizes: lengths n.
      cluster: cluster id of each n-gram, by meaning (an embedding model's, say); None: each is one of its own.
      min_share: of right solutions.
      max_repeats: mean count in a solution that contains it.

    Returns:
      The n-grams of kept clusters, the most frequent clusters first, then in lexical order.

    Raises:
      ValueError: no right solution, or lengths that do not match.
    """
    if len(solutions) != len(correct):
        raise ValueError(f"correct: length {len(correct)}, wanted one for each of {len(solutions)} solutions")
    right = [tuple(words) for words, fine in zip(solutions, correct, strict=True) if fine]
    if not right:
        raise ValueError("correct: no solution is, wanted at least one to mine")
    counts = [Counter(words[i : i + n] for n in sizes for i in range(len(words) - n + 1)) for words in right]
    grams = sorted(set().union(*counts), key=lambda gram: (len(gram), tuple(map(str, gram))))
    ids = dict(zip(grams, cluster(grams) if cluster else range(len(grams)), strict=True))
    found: dict[Hashable, int] = defaultdict(int)
    total: dict[Hashable, int] = defaultdict(int)
    for counter in counts:
        for gram, number in counter.items():
            total[ids[gram]] += number
        for name in {ids[gram] for gram in counter}:
            found[name] += 1
    kept = {name for name, number in found.items() if number >= min_share * len(right)}
    kept = {name for name in kept if total[name] <= max_repeats * found[name]}
    return sorted((gram for gram in grams if ids[gram] in kept), key=lambda gram: -found[ids[gram]])


def pad_grams(grams: Sequence[Sequence[int]]) -> np.ndarray:
    """Token n-grams side by side, i32 ``[N, n]``, -1 behind shorter ones.

    Raises:
      ValueError: none are given, or one is empty.
    """
    if not grams or not all(len(gram) for gram in grams):
        raise ValueError("grams: wanted at least one, and none empty")
    out = np.full((len(grams), max(map(len, grams))), -1, np.int32)
    for row, gram in zip(out, grams, strict=True):
        row[: len(gram)] = gram
    return out
