"""The Sphinx extension that makes this site of the project: generated pages and tables, docstrings, and checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ppl_site import checks, directives, gallery, mathml, references, staging
from ppl_site.docstrings import to_rst


def _stage(app: Any, config: Any) -> None:
    del app
    source = Path(__file__).resolve().parents[2]
    config.nb_execution_excludepatterns = [*config.nb_execution_excludepatterns, *staging.stage_notebooks(source)]
    staging.stage_results(source)
    staging.stage_api(source)


def _docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    del app, what, name, obj, options
    lines[:] = to_rst("\n".join(lines))


def _signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Defaults that are no Python (<factory>) as ``...``: signatures with them are not parsed, but cut at commas."""
    del app, what, name, obj, options
    return signature and re.sub(r"=\s*<[^<>]*>", "=...", signature), returned


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Left out: fields of named tuples, which say nothing but their number, and what others generate."""
    del app, what, name, skip, options
    ours = str(getattr(obj, "__module__", None) or "ppl_models").startswith(("ppl_models", "custom_inference"))
    numbered = str(getattr(obj, "__doc__", "")).startswith("Alias for field number")
    return True if numbered or not ours else None


def setup(app: Any) -> dict[str, Any]:
    app.connect("config-inited", _stage)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", references.resolve)
    gallery.add(app)  # before the checks, which read what it writes
    app.connect("build-finished", checks.check_site)
    directives.add(app)
    mathml.add(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
