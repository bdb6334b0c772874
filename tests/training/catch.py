"""A config file of the smallest run, for tests that start processes."""

from training_cases import catch_config


def get_config():
    return catch_config(batch__minibatches=2, checkpoint__every=1)
