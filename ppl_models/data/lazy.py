"""pandas and xarray, loaded when they are first used: importing the suite, and fitting tensors, must not wait for them.

``from ppl_models.data.lazy import pandas as pd`` is the module itself for type checkers.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import pandas as pandas
    import xarray as xarray
else:

    class _Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__name__), name)

    pandas, xarray = _Lazy("pandas"), _Lazy("xarray")


def is_pandas(value: Any, *classes: str) -> TypeGuard[Any]:
    """Whether a value is of one of these classes of pandas: whoever holds one has imported it."""
    return _of_loaded("pandas", value, classes)


def is_xarray(value: Any, *classes: str) -> TypeGuard[Any]:
    """Whether a value is of one of these classes of xarray."""
    return _of_loaded("xarray", value, classes)


def is_networkx(value: Any, *classes: str) -> TypeGuard[Any]:
    """Whether a value is of one of these classes of networkx."""
    return _of_loaded("networkx", value, classes)


def _of_loaded(module: str, value: Any, classes: tuple[str, ...]) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in classes))
