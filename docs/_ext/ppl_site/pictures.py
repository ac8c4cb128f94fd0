"""Pictures of the models' programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import custom_inference
from ppl_models import MODELS


def picture(name: str, folder: Path) -> Path | None:
    """Draw the program of a model of ``MODELS`` into the folder; None where nothing here can draw it."""
    draw: Any = getattr(custom_inference, "render", None)  # (model, file name)
    if draw is None:
        return None
    kind = next(kind for kind in MODELS.values() if kind.__name__ == name)
    path = folder / f"{name}.svg"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.is_file():  # what is there is of this build: staging removes those of earlier ones
        draw(kind.example().model, path)
    return path
