"""Programs of graphs, compiled: nodes that choose one of K values each, and dyads that depend on those of their ends.

    log p(x, z) = sum_n log p(z_n) + sum over observed dyads (i, j) of log p(x_ij | z_i, z_j)

The laws of nodes and dyads are read by running the program at chosen labellings and on chosen dyads (``program``,
``structure``), and proved against it. Stored edges are what costs: of all other dyads x is 0 (``rows``).
"""

from custom_inference.compiled.graphs.engine import DyadMeanField
from custom_inference.compiled.graphs.exact import DyadExact
from custom_inference.compiled.graphs.gibbs import GraphSampler

#: Name -> engine of the programs of graphs whose nodes choose one of K values each.
ENGINES = {"exact": DyadExact, "mean_field": DyadMeanField}
#: What makes their chains.
SAMPLER = GraphSampler
