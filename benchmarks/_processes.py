"""Programs of the benchmarks that measure themselves in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
#: One thread, and large arrays go back to the system as soon as they are freed, so that memory can be told.
HELD = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


def in_a_process(what: str, module: str, *arguments: str, **environment: str) -> Any:
    """The last line that ``python -m module arguments`` prints, which is JSON. Raises RuntimeError with ``what`` and
    its last words where it fails."""
    command = [sys.executable, "-m", module, *arguments]
    surroundings = {**os.environ, **environment}
    done = subprocess.run(command, cwd=_ROOT, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
