"""Rows of the table of peers: graphs and ratings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks._lines import Lines
from benchmarks.quality import _graph_ours as ours
from benchmarks.quality._graph_data import KnownGraph, agreement, best_match_f1, lfr, polblogs
from benchmarks.quality._graph_peers import Found, Peers
from benchmarks.quality._peer_rows_of import PROGRAMS, Row, Timed, once
from benchmarks.quality._ratings import Films
from benchmarks.quality.overlapping import members, truth
from benchmarks.quality.ratings import score as rating_score

_RATED = "MovieLens 100K: RMSE of a tenth of the ratings"


def _films(folder: Path) -> Any:
    films = Films.read(folder)
    return films, *films.split(0)


def _predicted(data: Any, found: Any) -> Any:
    films, _, test = data
    return found.predict((films.user[test], films.item[test])).numpy()


def _myfm(kind: str, **settings: Any) -> Callable[[Any], Any]:
    def run(data: Any) -> Any:
        import myfm  # pyright: ignore[reportMissingImports]

        films, train, test = data
        sizes = films.shape
        one_hot = [sp.csr_matrix((np.ones(len(place)), (np.arange(len(place)), place)), (len(place), size))
                   for place, size in zip((films.user, films.item), sizes, strict=True)]  # fmt: skip
        x = sp.hstack(one_hot).tocsr()
        made = getattr(myfm, kind)(rank=10, random_seed=0)
        made.fit(x[train], films.value[train], grouping=np.repeat([0, 1], sizes), **settings)
        return made.predict(x[test])

    return run


def _rmse(data: Any, mean: Any) -> float:
    films, _, test = data
    return rating_score(mean, np.ones(len(mean)), films.value[test])[0]


def _rated(lines: str, peer: str, theirs: Callable[[Any], Any], what: str = _RATED) -> Row:
    given = once(lambda data: {"ratings": data[0].ratings(data[1])}, _predicted)
    return Row(Lines(lines), what, "less", peer, ("myfm",), _films, given, theirs, _rmse)


def _memberships(data: Any, found: Any) -> Any:
    del data
    return found.transform().double().numpy()


def _graph_program(program: str, needs: str, size: int) -> Callable[[Any], Timed]:
    def run(known: KnownGraph) -> Timed:
        found: Found = Peers(**{needs.replace("-", "_"): PROGRAMS[needs]}).run(program, known, size, 0)
        return Timed(found.membership, found.seconds if found.user is None else found.user)

    return run


_GRAPH = once(lambda known: {"x": ours.data_of(known)}, _memberships)

ROWS: tuple[Row, ...] = (
    _rated("fit(PMF(num_components=10), ratings)", "myFM variational, rank 10, 50 iterations",
           _myfm("VariationalFMRegressor", n_iter=50)),
    _rated("fit(PMF(num_components=10), ratings, method='gibbs')", "myFM Gibbs, rank 10, 512 iterations",
           _myfm("MyFMRegressor", n_iter=512, n_kept_samples=462), _RATED + ", sampled"),
    Row(Lines("fit(DegreeCorrectedSBM(num_blocks=2), x)"), "political blogs: NMI with the two sides", "more",
        "graph-tool, degree-corrected", ("graph-tool",), polblogs, _GRAPH,
        _graph_program("graph-tool, degree-corrected", "graph-tool", 2),
        lambda known, found: agreement(found.argmax(1), known.groups["side"])["NMI"]),
    Row(Lines("fit(MMSB(num_blocks=28), x)"), "1000 nodes in 28 overlapping communities: F1", "more", "svinet",
        ("svinet",), lfr, _GRAPH, _graph_program("svinet", "svinet", 28),
        lambda known, found: best_match_f1(members(found), truth(known))),
)  # fmt: skip
