"""Probes that run a model and add named signals to a trajectory."""

from creditjax.signals.implicit import implicit_prm_loss, implicit_prm_probe
from creditjax.signals.policy import PROBED, policy_probe

__all__ = ["PROBED", "implicit_prm_loss", "implicit_prm_probe", "policy_probe"]
