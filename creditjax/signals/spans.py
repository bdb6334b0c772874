"""Spans of text at whose ends two tokenizers agree, and what a teacher with the one thinks of them for the other.

(Cross-tokenizer distillation, CTPD, arXiv:2601.11865.) Tokens are known by the character at which each ends. A span
covers the characters between two ends that both tokenizations have, so a tokenizer's spans partition the text up to
the last common end, and the log-probability of a span is that of its tokens together. Aligning runs on the host.
"""

from collections.abc import Sequence

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.kernels import segments

Array = jax.Array


def align_spans(ends: Sequence[int], others: Sequence[int]) -> tuple[np.ndarray, np.ndarray, int]:
    """The span of each token of two tokenizations of one text.

    >>> [x.tolist() if hasattr(x, "tolist") else x for x in align_spans([2, 3, 7], [1, 3, 5, 7])]
    [[0, 0, 1], [0, 0, 1, 1], 2]

    Args:
      ends: where each token of the one ends, in characters, never falling. A token without text ends where the one
        before it did, and belongs to its span.
      others: the same of the other.

    Returns:
      Span of each token, i32 ``[n]`` and ``[m]``, -1 behind the last common end; and the number of spans.

    Raises:
      ValueError: ends that fall.
    """
    for name, given in (("ends", ends), ("others", others)):
        if np.any(np.diff(given) < 0):
            raise ValueError(f"{name}: {list(given)}, wanted character ends that never fall")
    common = np.intersect1d(ends, others)
    spans = (np.searchsorted(common, given, side="left").astype(np.int32) for given in (ends, others))
    mine, theirs = (np.where(span < len(common), span, -1).astype(np.int32) for span in spans)
    return mine, theirs, len(common)


def span_logprob(logprob: Array, span: Array, mask: Array, num_spans: int) -> Array:
    """Log-probability of each span ``[..., K]``: the sum over its tokens, 0 for a span without any.

    Call it with the teacher's own rollouts and spans for `teacher_span_logprob`, `teacher_span_better` and
    `teacher_span_worse` (a teacher trained on the preferences, and one on their opposite); the student's spans are the
    `segment` of its batch. In training, unless the batch brings those signals, the teacher is the reference policy,
    with the student's tokens and segments (`creditjax.signals.producers`).

    Args:
      logprob: ``[..., T]``, of the tokens under one model.
      span: i32 ``[..., T]``, from :func:`align_spans`.
      mask: bool ``[..., T]``, the tokens of the response.
      num_spans: K, static.
    """

    def one(logprob, span, mask):
        return segments.segment_sum(logprob, span, mask, num_spans)

    return jnp.vectorize(one, signature="(t),(t),(t)->(k)")(logprob, span, mask)
