"""Policies, and the sampling distribution that they share with the samplers.

The transformer and the control policies need flax; they are imported when they are first asked for.
"""

import importlib

from creditjax.models.base import DecodeState, Policy, PolicyOutput, Sampling, TextPolicy
from creditjax.models.sampling import filter_logits, token_statistics

_LAZY = {"TransformerConfig": "transformer", "TransformerPolicy": "transformer"}

__all__ = [
    "DecodeState",
    "Policy",
    "PolicyOutput",
    "Sampling",
    "TextPolicy",
    "TransformerConfig",
    "TransformerPolicy",
    "filter_logits",
    "token_statistics",
]


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
