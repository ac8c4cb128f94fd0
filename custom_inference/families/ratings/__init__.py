"""Factors of ratings, clicks and choices: closed-form engines, and passes over the pairs."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.ratings.matchbox import Matchbox
from custom_inference.families.ratings.quadratic import ClickBound
from ppl_models import BilinearPMF


def _items(model: Any, params: Mapping[str, Tensor]) -> Tensor:
    """The items' own factors, a component a row."""
    del model
    return params["item"].T


_FACTORS = Presentation(
    value="factor of the item",
    local="factor of the user",
    matrix=_items,
    prominence=lambda _, params: params["item"].norm(dim=0),
    shut_off=lambda params: params["item"].abs().amax(0) == 0,
)

FAMILIES = (
    Family(
        model=BilinearPMF,
        engines={"gaussian": ClickBound},
        default="gaussian",
        methods={"matchbox": Matchbox},
        presentation=_FACTORS,
    ),
)
