"""docs/coming_from.md: what stands in the right columns of its tables runs after the code of its section."""

from __future__ import annotations

import re
import sys
import warnings

import ppl_models
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
