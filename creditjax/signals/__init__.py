"""Probes that run a model and add named signals to a trajectory. `PRODUCERS` is the table of them."""

from creditjax.signals.generative_critic import generative_critic_loss
from creditjax.signals.implicit import implicit_pair_loss, implicit_prm_loss, implicit_prm_probe, implicit_reward
from creditjax.signals.policy import PROBED, policy_probe, token_kl
from creditjax.signals.producers import PRODUCERS, Models, Producer, produce
from creditjax.signals.prompted import PROMPTED, prompted_logprob

__all__ = [
    "PROBED",
    "PRODUCERS",
    "PROMPTED",
    "Models",
    "Producer",
    "generative_critic_loss",
    "implicit_pair_loss",
    "implicit_prm_loss",
    "implicit_prm_probe",
    "implicit_reward",
    "policy_probe",
    "produce",
    "prompted_logprob",
    "token_kl",
]
