"""What the papers on NOCA and aspect Bernoulli show, for ``benchmarks.reproductions``."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from benchmarks._reproductions import Item, Numbers, number

#: Of the reports that draw Fig. 3 of Bingham et al. (2007), a table each.
_SETS = ("mammals", "newsgroups", "digits")
_HELD = "Held-out log-likelihood (Fig. 3): {}"


def _rises(values: list[float]) -> bool:
    return all(one < other for one, other in pairwise(values))


def _slope(n: Numbers, against: str) -> float:
    """The exponent of the power law through the seconds of the factorized bound."""
    cells = f"factorized bound; {against}"
    x, y = (n.column("Fig. 8", column, cells) for column in ("value", "ms per iteration"))
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _levels_off(n: Numbers) -> bool:
    gained = n.column("Fig. 7", "log-likelihood per row")  # from 2 sources on
    return gained[-1] - gained[6] < 0.01 * (gained[6] - gained[0])


def _memorises(n: Numbers) -> bool:
    """Whether errors of few rows are smaller in training, and larger in test rows, than those of many."""
    training, test = (n.column("Fig. 9", rows, "n, at k = 8") for rows in ("training rows", "test rows"))
    return training[0] < training[-1] and test[0] > test[-1]


def _flat(values: list[float], share: float) -> bool:
    """Whether all are within a share of the last."""
    return all(abs(value / values[-1] - 1) < share for value in values)


def _largest(n: Numbers, title: str, column: str, method: str, cells: str = "") -> bool:
    """Whether no other row has more in a column."""
    rows = n.rows(title, cells)
    return max(rows, key=lambda row: n.column(title, column, ";".join([cells, row["method"]]))[0])["method"] == method


def _best(n: Numbers, data: str, method: str) -> float:
    return max(n.across(_HELD.format(data), "K = ", method))


def _deviation(n: Numbers, data: str, method: str) -> float:
    """The standard error of the best held-out likelihood of a method."""
    (row,) = n.rows(_HELD.format(data), method)
    texts = [value for name, value in row.items() if name.startswith("K = ") and value]
    return float(max(texts, key=number).split(" ± ")[1])


def _apart(n: Numbers) -> bool:
    """Whether the quartiles of the ages of the aspects' genera do not overlap."""
    texts = [row["median age, Ma (quartiles)"] for row in n.rows("Ages of the genera by aspect")]
    boxes = sorted(tuple(map(float, text.split("(")[1].strip(")").split(" to "))) for text in texts if text)
    return all(low[1] < high[0] for low, high in pairwise(boxes))


def _black(n: Numbers, components: int) -> bool:
    """Whether some fit to data with added ones has a component that is nearly always on."""
    cells = f"AB, K = {components}"
    return max(n.column("Added ones: do components tell", "its mean P(present)", cells)) >= 0.9


def _tells(n: Numbers, method: str) -> bool:
    """Whether some component of a method takes more than twice as much of the added ones as of the true ones."""
    rows = [row for row in n.rows("Added ones: do components tell") if row["method"].startswith(method)]
    return any(float(row["of added ones"]) > 2 * float(row["of true ones"]) for row in rows)


NOCA = [
    Item("Fig. 4", "eight patterns of 8 x 8 pixels and a leak, and images that they generate", "noca_recovery",
         "2000 such images: all sources found by {Default fit, K = 8[IMG][all found]} default fits, by the paper's "
         "algorithm from one random start by {The paper's algorithm[IMG; factorized bound, one random start (the "
         "paper)][all found]}",
         [("all found in every seed", lambda n: n("Default fit", "all found", "IMG") == 1)], ["noca_paper_fig5.png"]),
    Item("Fig. 5", "the model is recovered better from 200 and 1000 images than from 50, from 1000 almost all of it",
         "noca_paper",
         "sources found of 8: {Fig. 5[*][sources matched of 8 (cosine > .95)]}; error of the loadings {Fig. 5[*][mean "
         "absolute error of the loading]}",
         [("error falls", lambda n: _rises([-e for e in n.column("Fig. 5", "mean absolute error of the loading")])),
          ("at least 7 of 8 at 1000", lambda n: n("Fig. 5", "sources matched of 8 (cosine > .95)", "1000") >= 7)],
         ["noca_paper_fig5.png"]),
    Item("Fig. 6", "the log-likelihood of test images rises with the number of training images", "noca_paper",
         "{Fig. 6[50][test log-lik a row]} at 50, {Fig. 6[1000][test log-lik a row]} at 1000, {Fig. 6[5000][test "
         "log-lik a row]} at 5000",
         [("it rises at every step", lambda n: _rises(n.column("Fig. 6", "test log-lik a row")))],
         ["noca_paper_fig6.png"]),
    Item("Fig. 7", "BIC is best at the true 8 sources, where the likelihood levels off", "noca_paper",
         "BIC {Fig. 7[7][BIC]}, {Fig. 7[8][BIC]}, {Fig. 7[9][BIC]} at 7, 8, 9",
         [("smallest BIC at 8", lambda n: int(np.argmin(n.column("Fig. 7", "BIC"))) == 6),
          ("from 8 to 15 less than 1 % of the gain from 2 to 8", _levels_off)],
         ["noca_paper_fig7.png"]),
    Item("Fig. 8", "time is about linear in rows and in sources", "noca_paper",
         "an iteration of the factorized bound: {Fig. 8[factorized bound; N; 2000][ms per iteration]} ms for 2000 "
         "rows, {Fig. 8[factorized bound; N; 8000][ms per iteration]} ms for 8000",
         [("exponent in rows .8 to 1.2", lambda n: 0.8 < _slope(n, "N") < 1.2),
          ("in sources", lambda n: 0.8 < _slope(n, "K") < 1.2)], ["noca_paper_fig8.png"]),
    Item("Fig. 9a", "few rows: copies of training rows too good, of test rows worse; stable from 200 rows on",
         "noca_paper",
         "pixels that differ, training and test: {Fig. 9[n, at k = 8; 50][training rows]}, {Fig. 9[n, at k = 8; "
         "50][test rows]} of 50 rows; {Fig. 9[n, at k = 8; 5000][training rows]}, {Fig. 9[n, at k = 8; 5000][test "
         "rows]} of 5000",
         [("at 50 training below, test above that at 5000", _memorises),
          ("from 200 on within 5 % of the last", lambda n: all(
              _flat(n.column("Fig. 9", rows, "n, at k = 8")[2:], 0.05) for rows in ("training rows", "test rows")))],
         ["noca_paper_fig9.png"]),
    Item("Fig. 9b", "the error falls with the number of sources and is flat beyond the true 8", "noca_paper",
         "test rows: {Fig. 9[k, at n = 2000; 7][test rows]}, {Fig. 9[k, at n = 2000; 8][test rows]}, {Fig. 9[k, at n "
         "= 2000; 15][test rows]} at 7, 8, 15",
         [("falls up to 8", lambda n: _rises([-e for e in n.column("Fig. 9", "test rows", "k, at n = 2000")[:7]])),
          ("then within 2 %", lambda n: _flat(n.column("Fig. 9", "test rows", "k, at n = 2000")[6:], 0.02))],
         ["noca_paper_fig9.png"]),
    Item("Fig. 10", "logistic PCA, with 8 real numbers in place of 8 bits, reconstructs better", "noca_reconstruction",
         "2000 rows, test: NOCA {Against training rows, K = 8: s[2000][NOCA, test]}, logistic PCA {Against training "
         "rows, K = 8: s[2000][logistic PCA, test]}, with a bit for each number {Against training rows, K = 8: "
         "s[2000][logistic PCA, one bit, test]}",
         [("smaller test error at every K", lambda n: all(a < b for a, b in zip(*(
             n.column("Against K, 2000 rows", f"{who}, test") for who in ("logistic PCA", "NOCA")), strict=True)))],
         ["noca_reconstruction.png"]),
    Item("Fig. 11", "PLSA and LDA as graphs", run="`custom_inference.render(PLSA.example().model)`",
         ours="drawn from the programs, in the gallery of pictures of the documentation"),
    Item("Table 1", "NOCA finds as many communities as LDA; logistic PCA fewest", "citations",
         "K = 5, percent: NOCA {Communities recovered (Table 1), K = 5[NOCA][all]}, LDA {Communities recovered (Table "
         "1), K = 5[LDA][all]}, logistic PCA {Communities recovered (Table 1), K = 5[logistic PCA][all]}; NIPS papers "
         "and surnames here, CiteSeer papers and authors there",
         [("NOCA at least as many as LDA", lambda n: n("Communities recovered (Table 1), K = 5", "all", "NOCA")
           >= n("Communities recovered (Table 1), K = 5", "all", "LDA")),
          ("logistic PCA fewest", lambda n: n("Communities recovered (Table 1), K = 5", "all", "logistic PCA")
           == min(n.column("Communities recovered (Table 1), K = 5", "all")))]),
    Item("Fig. 12", "NOCA's loadings of the citations: few authors to a source", "citations",
         "loadings of the NIPS papers", (),
         ["citations_loadings.png"]),
    Item("Fig. 13", "typical components of each method, and which community each is", "citations",
         "K = 5 and 10, the strongest names of every component", (), ["citations_loadings.png"]),
    Item("Fig. 14", "5 components: NOCA's first are best, mixtures overtake it; 10: mixtures get worse, NOCA better",
         "citations",
         "weighted cosine of all matched: NOCA {Weighted cosine[5; NOCA][all matched]} (K = 5), {Weighted cosine[10; "
         "NOCA][all matched]} (K = 10); LDA {Weighted cosine[5; LDA][all matched]}, {Weighted cosine[10; LDA][all "
         "matched]}",
         [("K = 5: NOCA best at L = 1", lambda n: _largest(n, "Weighted cosine", "L = 1", "NOCA", "5")),
          ("overtaken at L = 5", lambda n: not _largest(n, "Weighted cosine", "L = 5", "NOCA", "5")),
          ("LDA worse at K = 10", lambda n: _matched(n, 10, "LDA") < _matched(n, 5, "LDA")),
          ("NOCA better", lambda n: _matched(n, 10, "NOCA") > _matched(n, 5, "NOCA"))],
         ["citations_similarity.png"]),
    Item("Table 2", "cross-entropy: NOCA's bound below LDA's, folded-in PLSA as low, the mixture highest",
         "citations_entropy",
         "K = 10, nats a document: NOCA {Cross-entropy[10; NOCA, factorized bound][per document, as sets]}, LDA "
         "{Cross-entropy[10; LDA, variational bound][per document, as sets]}, PLSA {Cross-entropy[10; PLSA, folded "
         "in][per document, as sets]}, mixture {Cross-entropy[10; mixture][per document, as sets]}",
         [("NOCA below LDA", lambda n: _entropy(n, "NOCA, factorized bound", "LDA, variational bound")),
          ("PLSA below NOCA", lambda n: _entropy(n, "PLSA, folded in", "NOCA, factorized bound")),
          ("LDA below the mixture", lambda n: _entropy(n, "LDA, variational bound", "mixture"))]),
]  # fmt: skip


def _entropy(n: Numbers, low: str, high: str) -> bool:
    """Whether one method is below another for both numbers of components."""
    column = "per document, as sets"
    return all(n("Cross-entropy", column, f"{k}; {low}") < n("Cross-entropy", column, f"{k}; {high}") for k in (5, 10))


def _matched(n: Numbers, components: int, method: str) -> float:
    return n("Weighted cosine", "all matched", f"{components}; {method}")


AB = [
    Item("Fig. 3", "held-out likelihood: above the mixture's (newsgroups: bars overlap), PLSA's lowest, logistic "
         "PCA's reached with more components", "aspect_heldout_curves",
         "mammals, best number: AB {Held-out log-likelihood (Fig. 3): mammals[AB][best K]}, logistic PCA {Held-out "
         "log-likelihood (Fig. 3): mammals[logistic PCA][best K]}",
         [("AB's best above the mixture's, 3 data sets", lambda n: all(
             _best(n, one, "AB") > _best(n, one, "mixture of Bernoullis") for one in _SETS)),
          ("PLSA's lowest", lambda n: all(_best(n, one, "PLSA") < _best(n, one, who) for one in _SETS
                                          for who in ("AB", "mixture of Bernoullis", "logistic PCA"))),
          ("AB's at least logistic PCA's less two standard errors", lambda n: all(
              _best(n, one, "AB") >= _best(n, one, "logistic PCA") - 2 * _deviation(n, one, "logistic PCA")
              for one in _SETS)),
          ("by more components", lambda n: all(
              n(_HELD.format(one), "best K", "AB") > n(_HELD.format(one), "best K", "logistic PCA") for one in _SETS))],
         ["aspect_heldout_curves.png"]),
    Item("Fig. 4", "the entropies of eq. 31 fall with every iteration as the likelihood rises", "aspect_entropies",
         "iterations in which they fall, three seeds of each data set: {Entropies while EM climbs[*][they fall in]}",
         [("in all", lambda n: min(n.column("Entropies while EM climbs", "they fall in")) == 1),
          ("in at least 98 %", lambda n: min(n.column("Entropies while EM climbs", "they fall in")) >= 0.98)],
         ["aspect_entropies.png"]),
    Item("Fig. 5", "mammals: a blank aspect in 28 of 30 fits; the others are of different ages", "aspect_mammals",
         "a phantom in {A phantom in how many[random][phantom found]} random starts, {A phantom in how "
         "many[default][phantom found]} default fits; median ages {Ages of the genera by aspect[1][median age, Ma "
         "(quartiles)]}, {Ages of the genera by aspect[2][median age, Ma (quartiles)]}, {Ages of the genera by "
         "aspect[3][median age, Ma (quartiles)]}",
         [("28 of 30 random starts", lambda n: n("A phantom in how many", "phantom found", "random") >= 28 / 30),
          ("28 of 30 default fits", lambda n: n("A phantom in how many", "phantom found", "default") >= 28 / 30),
          ("quartiles of the ages apart", _apart)], ["aspect_mammals_ages.png"]),
    Item("Fig. 6", "mammals: poor sites have much of the phantom", "aspect_mammals",
         "correlation with a site's number of genera: {A phantom in how many[default][correlation with "
         "richness]:median}",
         [("negative", lambda n: n("A phantom in how many", "correlation with richness", "default") < 0)],
         ["aspect_mammals_richness.png"]),
    Item("Fig. 7", "documents: short ones have much of the phantom", "aspect_news",
         "correlation with a document's number of words: {A phantom in how many[default][correlation with "
         "richness]:median}",
         [("negative", lambda n: n("A phantom in how many", "correlation with richness", "default") < 0)],
         ["aspect_news_richness.png"]),
    Item("Table 1", "four aspects of the newsgroups' topics, and a phantom of most documents", "aspect_news",
         "sum of the phantom's memberships {Aspects (Table 1)[phantom][sum of memberships]}, of others at most "
         "{Aspects (Table 1)[space][sum of memberships]}; of the group that names them: {Aspects (Table 1)[crypt][in "
         "its group]}, {Aspects (Table 1)[med][in its group]}, {Aspects (Table 1)[space][in its group]}, {Aspects "
         "(Table 1)[christian][in its group]}",
         [("phantom largest", lambda n: n("Aspects (Table 1)", "sum of memberships", "phantom")
           == max(n.column("Aspects (Table 1)", "sum of memberships"))),
          ("others at least 3/4 of one group each", lambda n: all(
              n("Aspects (Table 1)", "in its group", one) >= 75 for one in ("crypt", "med", "space", "christian")))]),
    Item("Table 2", "heterogeneous documents: whose each word is", "aspect_news", "three documents"),
    Item("Table 3", "documents are expanded by words that the phantom keeps out", "aspect_news",
         "ten documents, and all: how much more frequent a suggested word is in the document's own group stands there",
         [("more frequent than overall", lambda n: n.note("Expansion of ten documents",
         r"is ([\d.]+) times as frequent") > 1),
          ("more than the frequent absent words are", lambda n: n.note("Expansion of ten",
          r"is ([\d.]+) times as frequent")
           > n.note("Expansion of ten", r"absent words: ([\d.]+) times"))]),
    Item("Table 4", "AB without its phantom fills in most false absences", "aspect_mammals",
         "decrease {False absences filled[AB, phantom removed][decrease]}, logistic PCA {False absences "
         "filled[logistic PCA][decrease]}, mixture {False absences filled[mixture of Bernoullis][decrease]}",
         [("largest decrease", lambda n: _largest(n, "False absences filled", "decrease", "AB, phantom removed"))],
         ["aspect_mammals_filled.png"]),
    Item("Fig. 8", "ones added to the mammals: AB has a black phantom that takes them; mixture and PLSA do not tell",
         "aspect_mammals",
         "the most that an aspect is on, in the mean: {Added ones: do components tell[7.2%, 25.5%; AB, K = 5][its "
         "mean P(present)]}",
         [("a black phantom (mean at least .9)", lambda n: _black(n, 5)), ("AB tells added ones (twice the "
         "share)", lambda n: _tells(n, "AB, K")),
          ("PLSA does not", lambda n: not _tells(n, "PLSA"))], ["aspect_mammals_added_40.png"]),
    Item("Fig. 9", "digits: AB without its phantom removes most noise, except at few components", "aspect_digits",
         "K = 14: AB {Noise removal[AB, phantom removed][K = 14]}, logistic PCA {Noise removal[logistic PCA][K = "
         "14]}, mixture {Noise removal[mixture of Bernoullis][K = 14]}, PLSA {Noise removal[PLSA][K = 14]}",
         [("best from K = 10 on", lambda n: all(
             _largest(n, "Noise removal", f"K = {k}", "AB, phantom removed") for k in (10, 14, 20)))],
             ["aspect_digits_removal.png"]),
    Item("Fig. 10", "digits with pixels lost: prototypes and a blank aspect, which explains the lost ones",
         "aspect_digits",
         "phantom found in {Is a phantom found?[zeros added; random][phantom found]} random starts",
         [("found in at least 28 of 30", lambda n: n("Is a phantom found?", "phantom found",
         "zeros added; random") >= 28 / 30)],
         ["aspect_digits_attribution_white.png", "aspect_digits_attribution_black.png"]),
    Item("Fig. 11", "no basis of the other methods is the corruption", "aspect_digits", "bases of all methods", (),
         ["aspect_digits_bases.png"]),
    Item("Fig. 12", "words added to documents: AB has a black phantom that takes them; mixture and PLSA do not tell",
         "aspect_news",
         "the most that an aspect is on, in the mean: {Added ones: do components tell[6.2%, 25.1%; AB, K = 6][its "
         "mean P(present)]}",
         [("a black phantom (mean at least .9)", lambda n: _black(n, 6)), ("AB tells added ones (twice the "
         "share)", lambda n: _tells(n, "AB, K")),
          ("PLSA does not", lambda n: not _tells(n, "PLSA"))], ["aspect_news_added_40.png"]),
]  # fmt: skip

PAPERS = {
    "Singliar & Hauskrecht (2006): noisy-or component analysis": NOCA,
    "Bingham et al. (2007): the aspect Bernoulli model": AB,
}
