"""Sweeps: what they describe, their trials, and how those are run, resumed and reported. Needs the extra `[train]`.

A config file describes its sweep in `get_hyper()`, with the functions that are exported here:

    from creditjax import sweeps

    def get_hyper():
        return sweeps.product({"recipe.name": ["grpo", "rloo"], "seed": range(5)})
"""

from creditjax.sweeps.hyper import chain, choice, integers, log_uniform, product, sample, uniform, zipped

__all__ = ["chain", "choice", "integers", "log_uniform", "product", "sample", "uniform", "zipped"]
