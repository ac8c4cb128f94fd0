"""The table of a fit's components as a terminal shows it: whatever its width, the strongest features are seen."""

from __future__ import annotations

from typing import Any

import pandas as pd

#: What a line takes beside the widest column.
_BESIDE = 16


class ReportTable(pd.DataFrame):
    """A DataFrame that is printed in blocks of columns where these are wider than the page, and not cut in the middle.

    Long lists are cut at their end. What is made of it is a plain DataFrame.
    """

    @property
    def _constructor(self) -> Any:
        return pd.DataFrame

    def __repr__(self) -> str:
        width = pd.get_option("display.width") or 80
        lines = pd.get_option("display.max_rows")
        return self.to_string(line_width=width, max_colwidth=max(20, width - _BESIDE), max_rows=lines)
