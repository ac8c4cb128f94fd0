"""Files that are replaced at once: a crash while one is written leaves the old one as it was."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to, which takes its place where nothing was raised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp's files are private; what is saved is an ordinary file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file, replaced at once."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with replaced(path) as temporary:
        save_file(plain, temporary, metadata=metadata)
