"""Peak memory of a fit in a process of its own: python -m benchmarks.speed._graph_worker ENGINE NODES DEGREE K.

Prints a line of JSON: bytes at the peak before the fit, with the graph drawn and everything compiled, and after it.
"""

from __future__ import annotations

import argparse
import json
import resource

from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed._graph_problem import ENGINES, planted


def peak() -> int:
    """Bytes; Linux counts KiB."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("nodes", type=int)
    parser.add_argument("degree", type=float)
    parser.add_argument("size", type=int)
    given = parser.parse_args()
    quiet_and_single_threaded()
    engine = ENGINES[given.engine]
    engine.run(planted(200, 5, given.size, 1), given.size, 2)
    known = planted(given.nodes, given.degree, given.size, 0)
    before = peak()
    engine.run(known, given.size, 5)
    print(json.dumps({"before": before, "after": peak(), "edges": len(known.edges)}))


if __name__ == "__main__":
    main()
