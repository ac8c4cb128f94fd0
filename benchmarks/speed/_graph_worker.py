"""Peak memory of a fit in a process of its own: python -m benchmarks.speed._graph_worker ENGINE NODES DEGREE K.

Prints a line of JSON: anonymous memory before the fit, with the graph drawn and everything compiled, and at its peak.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed._graph_problem import ENGINES, planted
from benchmarks.speed._stream_worker import Watch


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
    with Watch() as watch:
        engine.run(known, given.size, 5)
    print(json.dumps({"before": watch.before, "after": watch.peak, "edges": len(known.edges)}))


if __name__ == "__main__":
    main()
