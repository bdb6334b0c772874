"""Rollouts and estimators to and from other people's trainers.

Nothing heavy is imported with the package: what a format or a trainer needs is imported by the function that uses it.
"""

from creditjax.interop.rollout import SCHEMA, Message, Rollout, Signal

__all__ = ["SCHEMA", "Message", "Rollout", "Signal"]
