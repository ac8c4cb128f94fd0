"""What Murphy (2012, chapter 27) and two sets of slides show, for :mod:`benchmarks.reproductions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks._reproductions import Item, Numbers, number

_NIPS, _NEWS = "NIPS 0-12: 1566", "four newsgroups: 2349"
#: What only a stop word or a mark is, of the words that a topic shows.
_GRAMMAR = {"the", "of", "and", "to", "in", "a", "is", ".", ","}


def _below(n: Numbers, title: str, low: str, high: str, numbers: Sequence[int]) -> bool:
    """Whether one method's completion perplexity is below another's at these numbers of topics."""
    column = "completion, per token"
    return all(n(title, column, f"{k}; {low}") < n(title, column, f"{k}; {high}") for k in numbers)


def _overfits(n: Numbers, title: str, method: str) -> bool:
    """Whether perplexity is higher at 50 topics than at 5."""
    column = "completion, per document"
    return n(title, column, f"50; {method}") > n(title, column, f"5; {method}")


def _grammar(n: Numbers, model: str) -> int:
    """Topics with function words or marks among those that are shown."""
    return sum(bool(_GRAMMAR & set(row[model].split(", "))) for row in n.rows("Topics of addresses"))


def _both(n: Numbers) -> int:
    """Words that are now content and now grammar."""
    means, spreads = (n.column("Words in both roles", name) for name in ("mean probability of content", "spread"))
    return sum(0.3 < mean < 0.7 and spread > 0.4 for mean, spread in zip(means, spreads, strict=True))


def _clusters(n: Numbers, kind: str) -> set[int]:
    """The numbers of clusters of a type in the fits to the nations."""
    texts: list[Any] = [row["clusters"] for row in n.rows("Best partitions", "nations")]
    return {int(number(part)) for text in texts for part in text.split(", ") if part.endswith(f" {kind}")}


def _completes(n: Numbers, corpus: str, slack: float = 1.0) -> bool:
    """Whether the replicated softmax's perplexity given half of a document is below that of LDA 50, times a slack."""
    ours, lda = (n("Figure 27.32", "completion", f"{corpus}; {one}") for one in ("replicated softmax 50", "LDA 50"))
    return ours < slack * lda


def _precise(n: Numbers, column: str) -> bool:
    return n("Retrieval of newsgroups", column, "replicated softmax 50") > n(
        "Retrieval of newsgroups", column, "LDA 50"
    )


def _drawn(what: str, claim: str) -> Item:
    return Item(what, claim, run="`custom_inference.render(model)`",
    ours="every model is drawn from its program, in the gallery of pictures of the documentation")  # fmt: skip


MURPHY = [
    _drawn("Figs. 27.1, 27.2, 27.7, 27.11, 27.13, 27.15-27.17, 27.21, 27.28a, 27.30, 27.31", "the models as graphs"),
    Item("Fig. 27.3", "topics and documents as points of a simplex", ours="a sketch, not drawn"),
    Item("Figs. 27.4, 27.5", "TASA: topics in which *play* has different senses",
         ours="the corpus is not at hand; `ambiguous_words` lists such words of any fit",
         run="`notebooks/04_topics.ipynb`"),
    Item("Fig. 27.6", "newswire: LDA's perplexity is far below that of PLSA, the mixture and the unigram",
         "topics_perplexity",
         "completion at 50 topics, a token: NIPS LDA {NIPS 0-12: 1566[50; LDA][completion, per token]}, PLSA {NIPS "
         "0-12: 1566[50; PLSA, folded in][completion, per token]}, mixture {NIPS 0-12: 1566[50; mixture of "
         "unigrams][completion, per token]}; newsgroups LDA {four newsgroups: 2349[50; LDA][completion, per token]}, "
         "PLSA {four newsgroups: 2349[50; PLSA, folded in][completion, per token]}",
         [("LDA below the mixture from 5 topics on, NIPS and newsgroups", lambda n: all(
             _below(n, title, "LDA", "mixture of unigrams", (5, 10, 20, 50)) for title in (_NIPS, _NEWS))),
          ("LDA below PLSA at 50, NIPS", lambda n: _below(n, _NIPS, "LDA", "PLSA, folded in", (50,))),
          ("newsgroups", lambda n: _below(n, _NEWS, "LDA", "PLSA, folded in", (50,))),
          ("PLSA over-fits newsgroups", lambda n: _overfits(n, _NEWS, "PLSA, folded in"))], ["topics_perplexity.png"]),
    Item("Fig. 27.8", "collapsed Gibbs sampling finds the two topics of 16 documents in 64 sweeps", "topics_river_bank",
         "60 corpora of documents mostly of one topic: in {Topics found in 60 corpora, documents mostly[Gibbs, one "
         "sample after 64 sweeps][within the printed]} the estimates are no farther from the truth than the printed "
         "ones, of documents in any mix in {Topics found in 60 corpora, documents in any mix[Gibbs, one sample after "
         "64 sweeps][within the printed]}",
         [("in at least half, mostly of one topic", lambda n: n(
             "Topics found in 60 corpora, documents mostly", "within the printed",
             "Gibbs, one sample after 64 sweeps") >= 50),
          ("any mix", lambda n: n(
              "Topics found in 60 corpora, documents in any mix", "within the printed",
              "Gibbs, one sample after 64 sweeps") >= 50)],
         ["topics_river_bank.png"]),
    Item("Fig. 27.9", "online variational Bayes is much faster than batch, with like results", "topics_online",
         "CPU s to within 5 % of batch: NIPS batch {NIPS 0-12[batch][CPU s to 988]}, online {NIPS 0-12[online, "
         "batches of 64][CPU s to 988]}; drawn corpus {drawn from LDA[batch][CPU s to 613]}, {drawn from LDA[online, "
         "batches of 1024][CPU s to 613]}",
         [("online in at most half of the time, NIPS", lambda n: 2 * n("NIPS 0-12", "CPU s to 988",
         "online, batches of 64")
           <= n("NIPS 0-12", "CPU s to 988", "batch")),
          ("drawn corpus", lambda n: 2 * n("drawn from LDA", "CPU s to 613", "online, batches of 1024")
           <= n("drawn from LDA", "CPU s to 613", "batch")),
          ("within 5 % at the end", lambda n: n("NIPS 0-12", "at the end", "online, batches of 64")
           <= 1.05 * n("NIPS 0-12", "at the end", "batch"))], ["topics_online.png"]),
    Item("Fig. 27.10", "*Science*: the graph of topics that go together", "correlated_topics",
         "drawn corpora: correlation of the fitted with the true covariances {Six topics[CTM, default "
         "(sampling)][correlation]}; the graph: `fit.plot(\"topic_graph\")`, "
         "`notebooks/08_topics_that_know_more.ipynb`",
         [("at least .95", lambda n: n("Six topics", "correlation", "CTM, default (sampling)") >= 0.95)]),
    Item("Fig. 27.12", "*Science*: a topic's words over a century", "dynamic_topics",
         "state of the union, perplexity: {Completion of addresses[DTM][perplexity]}, static LDA {Completion of "
         "addresses[static LDA][perplexity]}; the curves: `fit.plot(\"words_over_time\")`, "
         "`notebooks/08_topics_that_know_more.ipynb`",
         [("topics that change predict better", lambda n: n("Completion of addresses", "perplexity", "DTM")
           < n("Completion of addresses", "perplexity", "static LDA"))]),
    Item("Table 27.1", "LDA's topics mix in function words; LDA-HMM's topics are content, its classes grammar",
         "topics_and_syntax",
         "ten topics of each, of addresses on the state of the union",
         [("LDA has topics with function words or marks", lambda n: _grammar(n, "LDA") > 0),
          ("LDA-HMM has none", lambda n: _grammar(n, "LDA-HMM") == 0)]),
    Item("Fig. 27.14", "NIPS: the same word as content and as grammar", "topics_and_syntax",
         "words of the addresses, and sentences with them",
         [("at least five words between .3 and .7 that differ by token", lambda n: _both(n) >= 5)],
         ["topics_and_syntax_roles.png"]),
    Item("Figs. 27.18, 27.19", "nine nodes: their three blocks", "kinds_of_graphs",
         "found in {Nine nodes, 20 graphs[fit(model, x)][ARI 1.00]} graphs",
         [("in all", lambda n: n("Nine nodes", "ARI 1.00", "fit(model, x)") == 1)]),
    Item("Fig. 27.20", "rings, hierarchies, common causes and effects", "kinds_of_graphs",
         "found in {Blocks found in 20[ring][ARI 1.00]}, {Blocks found in 20[dominance hierarchy][ARI 1.00]}, {Blocks "
         "found in 20[common cause][ARI 1.00]}, {Blocks found in 20[common effect][ARI 1.00]}",
         [("all of them", lambda n: min(n.column("Blocks found in 20", "ARI 1.00")) == 1)], ["kinds_of_graphs.png"]),
    Item("Fig. 27.22", "Sampson's monks: mixed memberships in three groups", "sampson",
         "groups found in {This project, third wave[MMSB, fit(model, x)][ARI 1.00]} seeds; entropy of the "
         "memberships, waverers and others {This project, third wave[MMSB, fit(model, x)][waverers]}, {This project, "
         "third wave[MMSB, fit(model, x)][others]}",
         [("in all seeds", lambda n: n("This project, third wave", "ARI 1.00", "MMSB, fit(model, x)") == 1),
          ("waverers more mixed", lambda n: n("This project, third wave", "waverers", "MMSB, fit(model, x)")
           > n("This project, third wave", "others", "MMSB, fit(model, x)"))], ["sampson_samplk3.png",
           "sampson_liking_any.png"]),
    Item("Fig. 27.23", "relational topics: links depend on the topics that tokens took, not on the proportions",
         "relational_topics",
         "AUC of hidden citations, one chain: tokens' topics {One chain[RTM on tokens' topics, one chain][AUC]}, "
         "proportions {One chain[RTM on proportions, one chain][AUC]}; LDA and a regression "
         "{Without links[LDA, logistic on products][AUC]}",
         [("RTM above LDA", lambda n: n("One chain", "AUC", "RTM on tokens' topics, one chain")
           > n("Without links", "AUC", "LDA, logistic on products")),
          ("tokens' topics above proportions", lambda n: n("One chain", "AUC", "RTM on tokens' topics, one chain")
           > n("One chain", "AUC", "RTM on proportions, one chain"))]),
    Item("Fig. 27.24", "people, films, friends and ratings as relations",
         run="`docs/graphs.md`, `notebooks/09_relations.ipynb`",
         ours="such tables, generated"),
    Item("Fig. 27.25", "UMLS: an ontology of 14 concept clusters", "relations",
         "{Semantic groups of UMLS[all][concepts]}; {Semantic groups of UMLS[all][groups]}",
         [("14 clusters", lambda n: n.rows("Semantic groups of UMLS",
         "all")[0]["concepts"].endswith(" in 14 clusters"))],
         ["relations_umls.png"]),
    Item("Fig. 27.26", "nations: 5 clusters of countries, 5 of features, 18 of interactions", "relations",
         "seed 0: {Best partitions[nations; 0][clusters]}",
         [("5 clusters of countries in every seed", lambda n: _clusters(n, "nation") == {5}),
          ("5 of features", lambda n: _clusters(n, "attribute") == {5}),
          ("18 of interactions", lambda n: _clusters(n, "interaction") == {18}),
          ("the UK with the USA", lambda n: any("UK" in row["members"] and "USA" in row["members"]
                                                for row in n.rows("Clusters of nations", "nation")))],
                                                ["relations_nations.png"]),
    Item("Fig. 27.27", "ratings clustered with attributes of users and films", "relations",
         "RMSE with attributes {Ratings[IRM with attributes, averaged][RMSE]}, without {Ratings[IRM, averaged over "
         "draws][RMSE]}, PMF {Ratings[PMF][RMSE]}",
         [("attributes help", lambda n: n("Ratings", "RMSE", "IRM with attributes, averaged")
           < n("Ratings", "RMSE", "IRM, averaged over draws"))]),
    Item("Fig. 27.28b", "films by their first two factors", "rating_curves",
         "the ends of both factors, MovieLens", (), ["rating_curves_films.png"]),
    Item("Fig. 27.29a", "RMSE by passes: without regulariser it over-fits, adaptive priors are best", "rating_curves",
         "best, last: {Passes[no regulariser][best RMSE]}, {Passes[no regulariser][last RMSE]}; adaptive "
         "{Passes[adaptive priors (variational Bayes)][best RMSE]}, {Passes[adaptive priors (variational Bayes)][last "
         "RMSE]}",
         [("without regulariser .05 worse at the end", lambda n: n("Passes", "last RMSE", "no regulariser")
           > n("Passes", "best RMSE", "no regulariser") + 0.05),
          ("adaptive lowest", lambda n: n("Passes", "best RMSE", "adaptive priors (variational Bayes)")
           == min(n.column("Passes", "best RMSE")))], ["rating_curves_passes.png"]),
    Item("Fig. 27.29b", "RMSE falls with biases, implicit feedback, and biases that drift", "rating_curves",
         "{Parameters[plain][best RMSE]}, {Parameters[with biases][best RMSE]}, {Parameters[with implicit "
         "feedback][best RMSE]}; drawn with drift {Biases that drift[with biases][best RMSE]}, of items by time "
         "{Biases that drift[items' biases by time][best RMSE]}, of users too {Biases that "
         "drift[with temporal dynamics][best RMSE]}",
         [("biases", lambda n: n("Parameters", "best RMSE", "with biases") < n("Parameters", "best RMSE", "plain")),
          ("implicit feedback", lambda n: n("Parameters", "best RMSE", "with implicit feedback")
           < n("Parameters", "best RMSE", "with biases")),
          ("drift", lambda n: n("Biases that drift", "best RMSE", "with temporal dynamics")
           < n("Biases that drift", "best RMSE", "items' biases by time")
           < n("Biases that drift", "best RMSE", "with biases"))], ["rating_curves_parameters.png"]),
    Item("Table 27.2", "six kinds of restricted Boltzmann machines",
         run="`docs/machines.md`, `notebooks/10_machines.ipynb`",
         ours="`RBM(visible=..., hidden=...)` has five, `ReplicatedSoftmax` is the sixth"),
    Item("Fig. 27.32", "perplexity: the replicated softmax below LDA on newsgroups, as low as LDA on NIPS", "machines",
         "given half of a document, NIPS: replicated softmax {Figure 27.32[NIPS 0-12; replicated softmax "
         "50][completion]}, LDA 50 {Figure 27.32[NIPS 0-12; LDA 50][completion]}, LDA 200 {Figure 27.32[NIPS 0-12; LDA "
         "200][completion]}; newsgroups: {Figure 27.32[four newsgroups; replicated softmax 50][completion]}, "
         "{Figure 27.32[four newsgroups; LDA 50][completion]}, {Figure 27.32[four newsgroups; LDA 200][completion]}. "
         "Whole documents by annealed importance sampling: the replicated softmax has {Figure 27.32[four newsgroups; "
         "replicated softmax 50][whole documents]} on newsgroups with the source's effort and {Figure 27.32[four "
         "newsgroups; replicated softmax 50][with a finer path]} with a path five times as fine: log Z has not "
         "converged, so that no order of whole documents is claimed here",
         [("below LDA on newsgroups, given half", lambda n: _completes(n, "four newsgroups")),
          ("as low as LDA on NIPS, given half", lambda n: _completes(n, "NIPS 0-12", 1.02))]),
    Item("Fig. 27.33", "retrieval: the replicated softmax is more precise than LDA", "machines",
         "precision at a recall of 10 %: {Retrieval of newsgroups[replicated softmax 50][at 10 %]}, LDA {Retrieval of "
         "newsgroups[LDA 50][at 10 %]}",
         [("more precise at 1 %", lambda n: _precise(n, "at 1 %")), ("at 10 %", lambda n: _precise(n, "at 10 %")),
          ("at 50 %", lambda n: _precise(n, "at 50 %"))]),
]  # fmt: skip

SLIDES_CVQ = [
    Item("Noisy-or example", "fever by cold, flu and malaria: eight probabilities",
         ours="the program of NOCA has the same",
         run="`python -m pytest tests/benchmarks/reproductions_test.py`"),
    Item("Image separation", "CVQ: mixed images give back the pictures that were mixed", "cvq_bars",
         "smallest cosine with a true picture {Image separation[*][smallest cosine]}, codes recovered {Image "
         "separation[*][codes recovered]}",
         [("cosines above .95", lambda n: n("Image separation", "smallest cosine") > 0.95)], ["cvq_images.png"]),
    Item("Structure recovery", "noisy-or: the images of the sources are recovered", "noca_recovery",
         "all 8 in {Default fit, K = 8[IMG][all found]} default fits", [
             ("in every seed", lambda n: n("Default fit", "all found", "IMG") == 1)], ["noca_paper_fig5.png"]),
]  # fmt: skip

SLIDES_TEXT = [
    Item("PLSA, topics of TDT-1", "words of the aspects", ours="news of TDT-1 is not at hand; topics of other texts",
         run="`notebooks/04_topics.ipynb`"),
    Item("PLSA, folding-in", "a query's mix is found with the topics held", "topics_perplexity",
         "50 topics, NIPS, completion of the other half {NIPS 0-12: 1566[50; PLSA, folded in][completion, per "
         "token]}, unigram {NIPS 0-12: 1566[unigram][completion, per token]}",
         [("below the unigram", lambda n: n(_NIPS, "completion, per token", "50; PLSA, folded in")
           < n(_NIPS, "completion, per token", "unigram"))]),
    Item("Helmholtz machine, bars", "a net 1-8-16 learned by wake-sleep from 2,000,000 images of 4 x 4 bars",
         "helmholtz",
         "KL from the truth, exact: default {4 x 4 bars, 1-8-16[default (exact sums); 20,000 rows][KL]}, wake-sleep "
         "of the slides {4 x 4 bars, 1-8-16[wake-sleep of the slides][KL]}",
         [("default at most .06", lambda n: n("4 x 4 bars, 1-8-16", "KL", "default (exact sums); 20,000 rows") <= 0.06),
          ("wake-sleep below 1", lambda n: n("4 x 4 bars, 1-8-16", "KL", "wake-sleep of the slides") < 1)],
         ["helmholtz_fantasies.png", "helmholtz_weights.png"]),
    Item("Helmholtz machine, topic words", "hidden units of a net on documents as topics", "helmholtz",
         "{Topic words of newsgroups[2][words]}; {Topic words of newsgroups[1][words]}; and six more"),
]  # fmt: skip

BOOK = {
    "Murphy (2012), chapter 27": MURPHY,
    "Diab (2020): slides on CVQ and NOCA": SLIDES_CVQ,
    "Slides on PLSA and the Helmholtz machine": SLIDES_TEXT,
}
