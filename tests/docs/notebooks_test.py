"""Every notebook runs from top to bottom, at the small size that PPL_SMOKE=1 gives it.

With PPL_EXECUTED=FOLDER they are left there with their outputs, for the documentation site, which then need not execute
them a second time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from custom_inference.core.processes import context, stop
from tests.support.documentation import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


#: What all notebooks import: one process does, and their kernels are forked off it, as workers of fits are.
IMPORTED = ["arviz", "custom_inference.faces.distributed", "ipykernel.kernelapp", "sklearn.datasets", "torch._dynamo"]


def serve(connection_file: str, folder: str, environment: dict[str, str]) -> None:
    """A kernel, in a process of its own."""
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    from ipykernel.kernelapp import launch_new_instance

    # matplotlib may have been imported before there was a notebook to draw in
    launch_new_instance(argv=["-f", connection_file, "--IPKernelApp.exec_lines=%matplotlib inline"])


class ThisPython(AsyncKernelManager):
    """The interpreter that runs the tests, whatever kernels are registered on the machine."""

    process: Any = None

    @property
    def has_kernel(self) -> bool:
        return self.process is not None

    async def start_kernel(self, *, cwd: str, env: dict[str, str], **_: Any) -> None:
        self.write_connection_file()
        started = context()
        if sys.platform == "linux":
            started.set_forkserver_preload(IMPORTED)
        self.process = started.Process(target=serve, args=(self.connection_file, cwd, env))
        self.process.start()

    async def _async_is_alive(self) -> bool:
        return self.process.is_alive()

    is_alive = _async_is_alive

    async def shutdown_kernel(self, now: bool = False, restart: bool = False) -> None:
        stop([self.process])
        self.cleanup_connection_file()


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        kernel_manager_class=ThisPython,
        resources={"metadata": {"path": str(tmp_path)}},  # what a notebook writes does not stay behind
    )
    client.execute(env={**os.environ, "PPL_SMOKE": "1", "OMP_NUM_THREADS": "1"})
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if "Warning" in output.get("text", "")]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    if os.environ.get("PPL_EXECUTED"):
        folder = Path(os.environ["PPL_EXECUTED"])
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / path.name)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
