"""What is loaded when: the first fit of a process must not wait for what it does not use."""

from __future__ import annotations

import subprocess
import sys

IMPORT = """
import sys
import custom_inference as ci
from ppl_models import LDA, NOCA, graph, ratings

LATER = {"pandas", "xarray", "arviz", "sklearn", "matplotlib", "sympy", "numba", "networkx"}

def loaded():
    return sorted(LATER & set(sys.modules))

assert not loaded(), loaded()
"""
FIT = """
import numpy as np
import torch

x = (torch.rand(30, 5, generator=torch.Generator().manual_seed(0)) < 0.4).double()
fit = ci.fit(NOCA(num_components=2, num_features=5), x, progress=False)
fit.transform(x.numpy())
LDA(num_topics=2, vocabulary_size=5).prepare(x.numpy())
graph(np.triu(x[:5].numpy(), 1), directed=True)
ratings([(0, 1, 2.0), (1, 0, 3.0)])
assert not loaded(), loaded()
"""


def test_the_first_fit_loads_no_more_than_it_needs():
    done = subprocess.run([sys.executable, "-c", IMPORT + FIT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
