"""Packaging for creditjax: a light core, everything heavier behind an extra."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (ROOT / "creditjax" / "version.py").read_text()).group(1)

CORE = ["jax>=0.10", "chex>=0.1.90", "numpy>=2.0"]
# What `make quickstart` imports.
QUICKSTART = [
    "absl-py>=2.1",
    "clu>=0.0.12",
    "flax>=0.12",
    "ml-collections>=1.0",
    "optax>=0.2.5",
    "orbax-checkpoint>=0.11",
    "reasoning-gym>=0.1.20",
    "tensorboardX>=2.6",
    "tqdm>=4.66",
]
# What the notebooks of docs/ are executed and drawn with, and what builds the site.
DOCS = [
    "furo>=2025.9.25",
    "ipykernel>=6.29",
    "jupyter-client>=8.6",
    "matplotlib>=3.9",
    "myst-nb>=1.3",
    "nbclient>=0.10.1",
    "nbformat>=5.10",
    "sphinx>=8.2",
    "sphinx-copybutton>=0.5.2",
]
# The commands for files of rollouts, and Parquet; older pyarrow could be made to unpickle what a file holds.
INTEROP = ["absl-py>=2.1", "pyarrow>=17"]
# `experiments.sweep --backend=...`; manifests for GKE are YAML.
RAY = ["ray>=2.40"]
SLURM = ["submitit>=1.5"]
GKE = ["pyyaml>=6.0"]
COMMANDS = {
    "creditjax-inspect": "creditjax.report.inspect_command",
    "creditjax-convert": "creditjax.interop.convert_command",
}
EXTRAS = {
    # `experiments.train --plan`: the TPU compiler that goes with jax; 0.7 GB.
    "plan": ["jax[tpu]>=0.10"],
    "quickstart": QUICKSTART,
    # Everything that `experiments/train.py` imports for any task.
    "train": [*QUICKSTART, "array_record>=0.8", "gymnax>=1.0", "tensorflow-datasets>=4.9.8"],
    "test": [
        *DOCS,
        *INTEROP,
        *RAY,
        *SLURM,
        *GKE,
        "hypothesis>=6.100",
        # The schema of JobSets.
        "kubeflow-trainer-api>=2.0",
        "mypy>=1.10",
        "optax>=0.2.5",
        "pytest>=8",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.5",
        "ruff>=0.8",
    ],
    "docs": DOCS,
    # `experiments.report`: pictures and a Parquet table.
    "report": ["matplotlib>=3.9", "pyarrow>=17"],
    "interop": INTEROP,
    "ray": RAY,
    "slurm": SLURM,
    "gke": GKE,
}
EXTRAS["all"] = sorted({requirement for group in EXTRAS.values() for requirement in group})

setuptools.setup(
    name="creditjax",
    version=VERSION,
    description="Composable credit assignment for reinforcement learning in JAX.",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=setuptools.find_packages(include=["creditjax", "creditjax.*"]),
    package_data={"creditjax": ["py.typed"], "creditjax.recipes": ["*.json"], "creditjax.report": ["*.css", "*.js"]},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": [f"{name} = {module}:run" for name, module in COMMANDS.items()]},
)
