"""Executes the notebooks of docs/notebooks and writes their outputs.

    python -m docs.make_notebooks [NAME.ipynb ...]

Each runs from its first cell in a fresh kernel of this interpreter. What differs between machines and runs (metadata,
execution times, transient names) is left out, so that a diff shows what a reader would see.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
import nbformat
from traitlets.config import Config

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"

# Seconds, on two cores.
LIMIT = 60

# Notebooks spend their time compiling, as tests do: the flags of tests/conftest.py.
COMPILER = (
    "--xla_backend_optimization_level=0 "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_use_xnnpack=false --xla_cpu_parallel_codegen_split_count=1"
)


class ThisInterpreter(KernelSpecManager):
    """Every kernel is the interpreter that runs this, whatever is installed under the same name."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The one kernel there is."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


class Kernel(AsyncKernelManager):
    """Speaks over sockets that are files, so that kernels of parallel tests cannot take each other's ports."""

    def __init__(self, **options: Any):
        super().__init__(transport="ipc", kernel_spec_manager=ThisInterpreter(), **options)


def execute(path: pathlib.Path, timeout: float = LIMIT) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in a fresh kernel, in an empty directory.

    Args:
      path: the notebook; it is not changed.
      timeout: seconds that one cell may take.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell failed.
      nbclient.exceptions.CellTimeoutError: a cell took longer.
    """
    notebook = nbformat.read(path, as_version=4)
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="nb") as directory:
        client = NotebookClient(
            notebook,
            timeout=timeout,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": directory}},
            kernel_manager_class=Kernel,
            config=Config(Kernel={"connection_file": str(pathlib.Path(directory) / "kernel.json")}),
        )
        client.execute(
            env={
                **os.environ,
                "PYTHONPATH": python_path,
                "IPYTHONDIR": directory,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": COMPILER,
            }
        )
    return clean(notebook)


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without metadata, and with the cells' names numbered."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number:02}", nbformat.NotebookNode()
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.NotebookNode()
    return notebook


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """All that code cells printed or showed as text, in order."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            found.append(
                output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")
            )
    return found


def main() -> None:
    """Flags to one call a notebook."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")))
    for name in parser.parse_args().names:
        began = time.monotonic()
        nbformat.write(execute(NOTEBOOKS / name), NOTEBOOKS / name)
        print(f"{name}: {time.monotonic() - began:.0f} s, {(NOTEBOOKS / name).stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
