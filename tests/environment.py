"""The environment of processes that tests start."""

import os


def with_devices(count):
    """The environment of a process with as many virtual devices, whose programs compile as fast as those here."""
    return os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count}"}
