"""The version of the package, read by `setup.py` and written into every run's `config.json`."""

__version__ = "0.1.0"
