"""pandas and xarray, loaded when they are first used: importing the suite, and fitting tensors, must not wait for them.

``from ppl_models.data.lazy import pandas as pd`` is the module itself for type checkers.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pandas
    import xarray as xarray
else:

    class _Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__name__), name)

    pandas, xarray = _Lazy("pandas"), _Lazy("xarray")
