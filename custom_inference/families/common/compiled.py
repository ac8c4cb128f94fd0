"""How loops are compiled. Import inside functions only: it loads the compiler.

What numba adds to a function for callers in Python and C, and its counts of references to arrays, take time to compile,
and the counts to run.
"""

from __future__ import annotations

from typing import Any

from numba import njit

_jit: Any = njit
#: For functions that compiled code alone calls, and that allocate nothing: without reference counts of some thirty
#: arrays a call, three times as fast. A call from Python ends the process.
inner = _jit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, error_model="numpy")
#: For those that Python calls, without allocations and with.
bare = _jit(nogil=True, cache=True, no_cfunc_wrapper=True, _nrt=False, error_model="numpy")
entry = _jit(nogil=True, cache=True, no_cfunc_wrapper=True, error_model="numpy")
