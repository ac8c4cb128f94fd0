"""Classes of syntax beside topics, as people read them: tables of their words, and words that are both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from custom_inference.core.result import Result
from custom_inference.core.settings import require_whole
from ppl_models import MethodError


def class_table(fit: Result, top: int = 10, *, mass: float = 1.0) -> pd.DataFrame:
    """The ``top`` words of every class of syntax: a line for each class and rank, the most used class first (Murphy
    2012, Table 27.1, bottom). mass: a list ends with the word at which it has this share of the class's probability.

    Returns columns ``word`` and ``probability``, indexed by ``state`` (from 1; 0 is that of content) and ``rank``.
    """
    tokens = syntax_tokens(fit)
    require_whole("top", top)
    emission, words = fit.params["emission"].cpu().double().numpy(), fit.coords["word"]
    used = np.bincount(tokens["state"], minlength=len(emission) + 1)[1:]
    lines: list[dict[str, Any]] = []
    for c in np.argsort(-used, kind="stable").tolist():
        order = np.argsort(-emission[c], kind="stable")[:top]
        before = np.concatenate([[0.0], emission[c][order].cumsum()[:-1]])
        for rank, v in enumerate(order[before < mass].tolist(), 1):
            lines.append({"state": c + 1, "rank": rank, "word": words[v], "probability": emission[c, v]})
    return pd.DataFrame(lines).set_index(["state", "rank"])


def ambiguous_words(fit: Result, least: int = 20) -> pd.DataFrame:
    """Words that are content in one place and syntax in another, the most divided first.

    Of words with at least ``least`` tokens: ``tokens``, the mean of their ``content_probability``, and its standard
    deviation, ``spread``.
    """
    tokens = syntax_tokens(fit)
    require_whole("least", least)
    each = tokens.groupby("word")["content_probability"]
    columns = {"tokens": each.size(), "content_probability": each.mean(), "spread": each.std()}
    found = pd.DataFrame(columns).query("tokens >= @least")
    return found.sort_values("spread", ascending=False, kind="stable")


def syntax_tokens(fit: Result) -> pd.DataFrame:
    """Tabulate the tokens of a fit with their classes. Raises MethodError for one without classes of syntax."""
    if "emission" not in fit.params or fit.model.data_kind != "sequences":
        raise MethodError(f"{type(fit.model).__name__} has no classes of syntax; this is for fits of LDAHMM")
    return fit.tokens()  # pyright: ignore[reportAttributeAccessIssue]
