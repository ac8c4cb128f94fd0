"""Models beside the program that a user would take instead: for every row the data, both fits, and one score of either.

Ours is what its lines give, as they stand. A fit returns what the score reads: topics and concentrations, rates,
predictions or a log-likelihood. Settings of other programs are those that did best where they were tried, their
defaults elsewhere.
"""

from __future__ import annotations

from benchmarks.quality._peer_rows_of import Row
from benchmarks.quality._peer_rows_of_graphs import ROWS as OF_GRAPHS
from benchmarks.quality._peer_rows_of_rows import ROWS as OF_ROWS
from benchmarks.quality._peer_rows_of_topics import ROWS as OF_TOPICS

ROWS: tuple[Row, ...] = (*OF_ROWS, *OF_TOPICS, *OF_GRAPHS)
