"""Every notebook runs from top to bottom, at the small size that PPL_SMOKE=1 gives it.

With PPL_EXECUTED=FOLDER they are left there with their outputs, for the documentation site, which then need not execute
them a second time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.support.documentation import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


class ThisPython(AsyncKernelManager):
    """The interpreter that runs the tests, whatever kernels are registered on the machine."""

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        arguments = extra_arguments or []
        return [sys.executable, "-m", "ipykernel_launcher", "-f", self.connection_file, *arguments]


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
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    client.execute(env={**os.environ, "PPL_SMOKE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": search})
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
