"""Default fits for ``revisions``: reads lines "problem seed", answers each with CPU seconds and the objective as JSON.

Runs in the environment of the revision it measures, and so uses nothing but the public interface.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ppl_models
from custom_inference import fit


def problem(path: Path) -> tuple[Any, Any]:
    """Model and data of a file that ``revisions`` wrote."""
    with np.load(path) as archive:
        arrays = dict(archive)
    settings = {name[1:]: value.item() for name, value in arrays.items() if name.startswith("_")}
    model = getattr(ppl_models, str(arrays["model"]))(**settings)
    is_graph = "directed" in settings
    x = ppl_models.graph(arrays["x"], directed=False) if is_graph else torch.as_tensor(arrays["x"])
    return model, model.prepare(x)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ppl_models.DataWarning)
    folder, known = Path(sys.argv[1]), {}
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        name, seed = line.split()
        if name not in known:
            known[name] = problem(folder / f"{name}.npz")
        begin = time.process_time()
        found = fit(*known[name], seed=int(seed), progress=False)
        seconds = time.process_time() - begin
        answers.write(json.dumps({"seconds": seconds, "objective": float(found.elbo[-1])}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
