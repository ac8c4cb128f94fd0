"""Settings of the documentation site: ``make docs``, or ``python -m sphinx -n -W --keep-going docs build/html``.

PPL_SMOKE=1 executes the notebooks at their small size; PPL_EXECUTED names a folder of notebooks that were executed at
this size before (``PPL_EXECUTED=FOLDER python -m pytest tests/docs/notebooks_test.py`` leaves them there), and are not
executed again.
"""

import os
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "_ext")]

# Kernels are processes of their own: this interpreter, with the packages of this folder, a thread each.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What is said once a process and is of no interest on a page: no widgets for progress bars, ArviZ's next version.
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found,ignore::FutureWarning"
os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"

_project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
project, release = _project["name"], _project["version"]
copyright = "the authors of ppl-models, Apache-2.0"

extensions = ["myst_nb", "sphinx.ext.autodoc", "ppl_site"]
exclude_patterns = ["_ext"]
highlight_language = "text"
smartquotes = False  # text holds code
nitpicky = True

# ----- Markdown and notebooks
myst_enable_extensions = ["amsmath", "dollarmath", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 1800
nb_execution_in_temp = True  # what a notebook writes does not stay behind
nb_execution_excludepatterns: list[str] = []  # ppl_site adds those that were executed before
nb_merge_streams = True

# ----- API reference
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # a method that only fills in the protocol is described there
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

# ----- HTML
html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
