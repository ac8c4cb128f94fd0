"""Files of tensors that are there whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ppl_models.data.atomic import write_atomically


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file with ``metadata`` in its header."""
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with write_atomically(path) as temporary:
        save_file(plain, temporary, metadata=metadata)


def digest(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all that a file says: what tells damage that leaves a file readable."""
    found = hashlib.sha256(text.encode())
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        flat = value.new_empty(value.numel()).copy_(value.detach().flatten())  # a single entry may keep an odd stride
        found.update(flat.view(torch.uint8).cpu().numpy().data)
    return found.hexdigest()
