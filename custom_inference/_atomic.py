"""Files of tensors that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ppl_models._atomic import written


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file with ``metadata`` in its header."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with written(path) as temporary:
        save_file(plain, temporary, metadata=metadata)
