"""Lines that readers paste, run as they stand: what a table shows beside a figure is what gave it.

    Lines("fit(LDA(num_topics=20), x)").fit(x=counts, seed=3)

Names are those of the two packages and of the data given; nothing else can be passed, but for the seed. Lines are the
default where the model has sizes alone, and ``fit`` no arguments but what the model observes.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import partial
from typing import Any

import custom_inference
import ppl_models
from custom_inference.core.fit import Fit
from ppl_models import IRM, MODELS

_KINDS = {kind.__name__: kind for kind in (*MODELS.values(), IRM)}
#: Fields of models that are sizes, of the model or of its data: these, and those that begin with the second.
_SIZES = ("vocabulary_size", "layers", "categories", "total_count", "topics_per_label")
_OF_SIZES = ("num_", "max_")


@dataclass(frozen=True)
class Lines:
    """text: one call of ``fit``, as ``from custom_inference import fit`` and ``from ppl_models import ...`` have it."""

    text: str

    def fit(self, *, seed: int = 0, **data: Any) -> Fit:
        """Run the lines on data by the names that they have there."""
        names = {node.id for node in ast.walk(ast.parse(self.text)) if type(node) is ast.Name}
        known = {"fit": partial(custom_inference.fit, seed=seed, progress=False), **data}
        for name in names - set(known):
            known[name] = getattr(ppl_models if hasattr(ppl_models, name) else custom_inference, name)
        return eval(self.text, {"__builtins__": {}}, known)

    @property
    def kind(self) -> type[Any]:
        """The class of the model. Raises ValueError where the lines name none."""
        for node in ast.walk(ast.parse(self.text)):
            if type(node) is ast.Name and node.id in _KINDS:
                return _KINDS[node.id]
        raise ValueError(f"{self.text!r} names no model")

    @property
    def is_default(self) -> bool:
        """Whether nothing is passed but the data, what the model observes beside them, and sizes."""
        call = ast.parse(self.text, mode="eval").body
        if not (type(call) is ast.Call and ast.unparse(call.func) == "fit" and len(call.args) == 2):
            return False
        model = call.args[0]
        if not (type(model) is ast.Call and type(model.func) is ast.Name and not model.args):
            return False
        settings, beside = ({str(one.arg) for one in part.keywords} for part in (model, call))
        sizes = all(one in _SIZES or one.startswith(_OF_SIZES) for one in settings)
        return sizes and beside <= set(self.kind.example().model.other_sites)
