"""docs/coming_from.md: what stands in the right columns of its tables runs after the code of its section."""

from __future__ import annotations

import re
import sys
import warnings

import numpy as np
from scipy.special import xlogy

import ppl_models
from custom_inference import fit
from ppl_models.datasets import admixture
from tests.support.documentation import ROOT, module_for, python_blocks, run

PAGE = "docs/coming_from.md"
#: What is said in words, or belongs to what the page mentions.
WORDS = {"uncertainty=True", "torch.set_num_threads", "NUTS"}


def test_entries_of_the_tables_run():
    sections = re.split(r"^## ", (ROOT / PAGE).read_text("utf-8"), flags=re.M)[1:]
    blocks, ran = python_blocks(PAGE), 0
    assert len(blocks) == len(sections) == 5
    module = module_for("coming_from")
    try:
        for section, block in zip(sections, blocks, strict=True):
            run(block, module, f"{PAGE}: {section.splitlines()[0]}")
            for row in re.findall(r"^\|.*\| (.*) \|$", section, flags=re.M)[2:]:
                for code in set(re.findall(r"`([^`]+)`", row)) - WORDS:
                    if not hasattr(ppl_models, code):
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore", ppl_models.DataWarning)
                            eval(code, vars(module))
                        ran += 1
    finally:
        del sys.modules["coming_from"]
    assert ran > 40


def test_the_likelihood_of_admixture_is_its_own():
    """Alexander, Novembre & Lange (2009), eq. 2, in plain NumPy: sum of x log p + (2 - x) log(1 - p) with p = q f."""
    x = admixture(30, 40, 2, seed=0).x
    model = ppl_models.AspectBernoulli(num_components=2, num_features=40, total_count=2)
    found = fit(model, x, seed=1, progress=False)
    counts, q = np.asarray(x, dtype=float), found.params["membership"].numpy()
    p = q @ found.params["aspect_probability"].numpy()
    expected = np.nansum(xlogy(counts, p) + xlogy(2 - counts, 1 - p))
    said = float(found.plugin_log_likelihood().sum()) - np.log(2) * (counts == 1).sum()
    assert abs(said - expected) < 1e-6 * abs(expected)
    # Others maximise the same: moving any individual's q towards either population does not raise it.
    for towards in np.eye(2):
        moved = (0.999 * q + 0.001 * towards) @ found.params["aspect_probability"].numpy()
        each = np.nansum(xlogy(counts, moved) + xlogy(2 - counts, 1 - moved), 1)
        own = np.nansum(xlogy(counts, p) + xlogy(2 - counts, 1 - p), 1)
        assert (each - own).max() < 1e-3
