"""Pictures of the models' programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import custom_inference
import ppl_models
from ppl_models import MODELS


def _render() -> Any:
    """What draws a model, where there is such a thing: a function of the model that gives a matplotlib figure."""
    return getattr(ppl_models, "render", None) or getattr(custom_inference, "render", None)


def picture(name: str, folder: Path) -> Path | None:
    """Draw the program of a model of ``MODELS`` into the folder; None where nothing here can draw it."""
    draw = _render()
    if draw is None:
        return None
    kind = next(kind for kind in MODELS.values() if kind.__name__ == name)
    path = folder / f"{name}.svg"
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(kind.example().model)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    return path
