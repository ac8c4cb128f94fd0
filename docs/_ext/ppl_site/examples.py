"""Examples on the pages of models: a few lines, what they print, and their figure, made once for what they run.

What was made is kept beside the site's doctrees, under a digest of all sources of the packages and of the lines.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import re
import textwrap
import warnings
from pathlib import Path
from typing import Any

import ppl_models
from ppl_models import Model
from ppl_site.staging import ROOT

_PACKAGES = ("ppl_models", "custom_inference")


def lines(kind: type[Model]) -> str:
    """The lines of a model's example."""
    said = " ".join((kind.example.__doc__ or "").split()).rstrip(".")
    said = said.removeprefix("Return ")
    comment = textwrap.wrap(f"{said[:1].upper()}{said[1:]}, drawn at known values.", 86)
    size = "" if kind in ppl_models.MODELS.values() else ", progress=False"
    return "\n".join(
        [
            "from custom_inference import fit",
            f"from ppl_models import {kind.__name__}",
            "",
            *(f"# {line}" for line in comment),
            f"example = {kind.__name__}.example()",
            f"found = fit(example.model, example.data{size})",
            "print(found.status)",
            "found.plot()",
        ]
    )


def made(kind: type[Model], folder: Path) -> tuple[str, Path]:
    """What an example prints, and its figure in the folder ``folder``."""
    code = lines(kind)
    digest = hashlib.sha256(f"{_digest()}{code}".encode()).hexdigest()[:16]
    figure, printed = (folder / f"{kind.__name__}-{digest}.{suffix}" for suffix in ("png", "txt"))
    if not (figure.is_file() and printed.is_file()):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{kind.__name__}-*"):
            old.unlink()
        output, drawn = run(code)
        drawn.savefig(figure, dpi=110)
        printed.write_text(output, "utf-8")
    return printed.read_text("utf-8"), figure


def run(code: str) -> tuple[str, Any]:
    """What lines print, and the value of the last of them."""
    *statements, last = code.splitlines()
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec("\n".join(statements), names)
        drawn = eval(last, names)
    return re.sub(r"\s+\n", "\n", printed.getvalue()).strip(), drawn


@functools.cache
def _digest() -> str:
    """Of all that an example may run."""
    sources = (path for package in _PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
