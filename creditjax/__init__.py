"""creditjax: composable credit assignment for reinforcement learning in JAX."""

from creditjax.trajectory import SIGNALS, SignalSpec, Trajectory, declare_signal
from creditjax.version import __version__
