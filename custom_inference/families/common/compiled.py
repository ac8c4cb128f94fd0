"""How loops are compiled. Import inside functions only: it loads the compiler.

What numba adds to a function for callers in Python and C, its counts of references to arrays and its checks of
divisions take time to compile, and the latter two to run. Divisions by zero give infinities, as in NumPy.
"""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numba.core import caching, event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.lowering import Environment
from numpy.typing import NDArray

#: Arrays that compiled loops take: of either precision; of 32 or 64 bits; of 64 bits without a sign; of truth values.
Reals: TypeAlias = NDArray[np.floating]
Ints: TypeAlias = NDArray[np.integer]
Words: TypeAlias = NDArray[np.uint64]
Flags: TypeAlias = NDArray[np.bool_]


class _Draft(JITCodeLibrary):
    """Code of a function that is optimised and translated where it is called, and not by itself as well. Compiled code
    is linked with it; Python finds nothing to call."""

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, environment: Environment) -> None:
        """What a function keeps of Python's objects has no place before the code is translated; loops keep none."""

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _Drafted(Compiler):
    """The usual steps, of which the last leaves a draft."""

    def define_pipelines(self) -> Any:
        state: Any = self.state
        state.library = _Draft(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


_jit: Any = njit
#: Values of ``fastmath``: sums may be taken in any order, and divisions by one number as products; infinities and what
#: is no number keep their meaning.
REORDERED = {"reassoc", "contract", "nsz", "arcp"}
#: For functions that compiled code alone calls. A call from Python ends the process.
part = partial(_jit, no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", pipeline_class=_Drafted)
#: For those of them that allocate nothing: without reference counts of some thirty arrays a call, three times as fast.
inner = partial(part, _nrt=False)
#: For those that are copied to where they are called: to hand on fifty arrays costs more than most of what is done
#: with them. One that is called from many places compiles as often.
inlined = partial(_jit, inline="always", error_model="numpy")
#: For those that Python calls, with allocations and without.
entry = partial(_jit, nogil=True, cache=True, no_cfunc_wrapper=True, error_model="numpy")
bare = partial(entry, _nrt=False)


class _Uncollected(event.Listener):
    """No search for garbage while something is compiled: it goes through all that Python holds every few thousand
    objects, an eighth of the time of a compilation."""

    def __init__(self) -> None:
        self._lock, self._depth, self._resume = threading.Lock(), 0, False

    def on_start(self, _: Any) -> None:
        with self._lock:
            if not self._depth:
                self._resume = gc.isenabled()
                gc.disable()
            self._depth += 1

    def on_end(self, _: Any) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth and self._resume:
                gc.enable()


_uncollected = _Uncollected()
for _kind in ("numba:compile", "numba:compiler_lock"):
    event.register(_kind, _uncollected)

_load_index: Any = getattr(caching.IndexDataCacheFile, "_load_index", None)


def _load_fresh_index(file: caching.IndexDataCacheFile) -> dict[Any, Any]:
    """Load the index of what was compiled; nothing of an earlier version's, whose classes may be elsewhere now: numba
    reads them before it looks whether the index is stale."""
    try:
        return _load_index(file)
    except (AttributeError, ImportError):
        return {}


if _load_index is not None:
    setattr(caching.IndexDataCacheFile, "_load_index", _load_fresh_index)  # noqa: B010 (of a class without types)
