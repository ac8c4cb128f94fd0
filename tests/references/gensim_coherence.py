"""Topic coherence as gensim 4.4.0 counts it (``gensim.models.CoherenceModel``), one window after the other. No project
code, and nothing of gensim's: its four stages, from its documentation and what its classes do.

    segments        u_mass: (w_m, w_l), l < m;  c_uci, c_npmi: (w, v), w != v;  c_v: (w, all top words)
    probabilities   of documents (u_mass), or of windows with a set that slides: each step takes out the word that the
                    window leaves, though it may stand in the window again, and puts in the one that enters
    confirmation    log (p(w, v) + e) / p(v);  log (p(w, v) + e) / (p(w) p(v)), over -log(p(w, v) + e) where normalised;
                    of c_v the cosine of the sums of these vectors; e = 1e-12; u_mass is 0 where p(v) is
    aggregation     the mean over the segments of a topic
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Texts = Sequence[Sequence[int]]
EPSILON = 1e-12
SIZES = {"c_uci": 10, "c_npmi": 10, "c_v": 110}


def window_sets(text: Sequence[int], size: int) -> list[set[int]]:
    """The words that every window of one text is taken to have."""
    if len(text) <= size:
        return [set(text)]
    held, found = set(text[:size]), [set(text[:size])]
    for at in range(1, len(text) - size + 1):
        held.discard(text[at - 1])
        held.add(text[at + size - 1])
        found.append(set(held))
    return found


def log_ratio(sets: list[set[int]], w: int, v: int, *, normalised: bool) -> float:
    total = len(sets)
    first, second, both = (sum(words <= one for one in sets) for words in ({w}, {v}, {w, v}))
    value = math.log((both / total + EPSILON) / ((first / total) * (second / total)))
    return value / -math.log(both / total + EPSILON) if normalised else value


def coherence_of(topic: Sequence[int], texts: Texts, measure: str, size: int | None = None) -> float:
    """The coherence of one topic, its words from the most probable one on."""
    if measure == "u_mass":
        sets, values = [set(text) for text in texts], []
        for place, w in enumerate(topic):
            for v in topic[:place]:
                both, alone = (sum(words <= one for one in sets) / len(sets) for words in ({w, v}, {v}))
                values.append(math.log((both + EPSILON) / alone) if alone else 0.0)
        return sum(values) / len(values)
    sets = [one for text in texts for one in window_sets(text, size or SIZES[measure])]
    if measure != "c_v":
        normalised = measure == "c_npmi"
        pairs = [(w, v) for w in topic for v in topic if w != v]
        return sum(log_ratio(sets, w, v, normalised=normalised) for w, v in pairs) / len(pairs)
    vectors = np.array([[log_ratio(sets, w, v, normalised=True) for v in topic] for w in topic])
    whole = vectors.sum(0)
    return float(np.mean(vectors @ whole / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(whole))))
