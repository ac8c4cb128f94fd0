"""What README.md quotes of the reports: a line each, whose figures are looked up in the results files.

``{beginning of a table's title[cells of the row][column]}`` is an entry of a table of the report, which
``readme_results.filled`` looks up. The cells of the row, one or more of them with ``;`` between, have to name one row;
``*`` is all rows. After ``:`` comes a format, or ``median``, which is the second of "min / median / max".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    """A question that a report answers, what this suite reaches, and what it is to be compared with."""

    report: str
    question: str
    here: str
    beside: str


HEADLINES = (
    Headline(
        "noca_recovery",
        "NOCA: sources found in 2000 images of 8 sources, and in 5000 of 32",
        "all 8 in {Default fit[IMG][all found]} fits, {Default fit[IMG][CPU s]:median} s; "
        "of 32, by draw: {Beyond enumeration[*][found of 32]}",
        "the paper's algorithm, one start: all 8 in "
        "{The paper's algorithm[IMG; factorized bound, one random start (the paper)][all found]}, "
        "{The paper's algorithm[IMG; factorized bound, one random start (the paper)][CPU s]:median} s",
    ),
    Headline(
        "noca_speed",
        "NOCA: exact log-likelihood of an image, nats, and time",
        "{Beside other programs[default fit][log-lik a row]:.2f}, {Beside other programs[default fit][CPU s]:.2f} s",
        "tvo {Beside other programs[tvo NoisyOR, S = 32, 60 epochs, H = 9][log-lik a row]:.2f}, "
        "{Beside other programs[tvo NoisyOR, S = 32, 60 epochs, H = 9][CPU s]:.0f} s; recognition network with 16 "
        "sources {Beside other programs[recognition network + REINFORCE, 250 epochs, K = 16][log-lik a row]:.2f}, "
        "{Beside other programs[recognition network + REINFORCE, 250 epochs, K = 16][CPU s]:.0f} s",
    ),
    Headline(
        "noca_reconstruction",
        "NOCA: pixels that differ in copies drawn from 8 latents an image, share",
        "{Against training rows, K = 8[2000][NOCA, test]} (8 bits)",
        "logistic PCA {Against training rows, K = 8[2000][logistic PCA, test]} (8 real numbers), "
        "{Against training rows, K = 8[2000][logistic PCA, one bit, test]} (8 bits)",
    ),
    Headline(
        "helmholtz",
        "Helmholtz machine, 4 x 4 bars: Kullback-Leibler divergence from the bars, the worst of ten seeds, and time",
        "{4 x 4 bars[default (exact sums); itself][most]:.3f}, {4 x 4 bars[default (exact sums); itself][CPU s]:.1f} s",
        "wake-sleep {4 x 4 bars[wake-sleep of the slides][most]:.2f}, reweighted "
        "{4 x 4 bars[reweighted wake-sleep][most]:.2f}, {4 x 4 bars[reweighted wake-sleep][CPU s]:.0f} s",
    ),
    Headline(
        "cvq_bars",
        "CVQ: 16 bars in noise",
        "all found in {Other programs[8x8, sigma .5; CVQ, default fit][all found]}, "
        "{Other programs[8x8, sigma .5; CVQ, default fit][CPU s]:median} s",
        "ProSper {Other programs[8x8, sigma .5; prosper][all found]}, "
        "{Other programs[8x8, sigma .5; prosper][CPU s]:median} s; "
        "tvo {Other programs[8x8, sigma .5; tvo][all found]}, {Other programs[8x8, sigma .5; tvo][CPU s]:median} s",
    ),
    Headline(
        "aspect_speed",
        "Aspect Bernoulli: log-likelihood of 500 genomes below the best known, and time",
        "{admix[fit(model, x), seed 0][below the best]:.4f}, {admix[fit(model, x), seed 0][CPU s]:.1f} s",
        "adamixture {admix[adamixture 1.8.8][below the best]:.1f}, {admix[adamixture 1.8.8][CPU s]:.1f} s; "
        "fastmixture {admix[fastmixture 1.3.0][below the best]:.1f}, {admix[fastmixture 1.3.0][CPU s]:.0f} s",
    ),
    Headline(
        "topics_speed",
        "LDA: perplexity of 20 topics, and time",
        "{Methods[fit(model, x), the default][perplexity, min / median / max]}, "
        "{Methods[fit(model, x), the default][CPU s a fit]:median} s",
        "scikit-learn {Other programs[scikit-learn, batch VB (1.9.1)][perplexity]}, "
        "{Other programs[scikit-learn, batch VB (1.9.1)][CPU s in all]:median} s; "
        "tomotopy {Other programs[tomotopy, Gibbs (0.14.0)][perplexity]}, "
        "{Other programs[tomotopy, Gibbs (0.14.0)][CPU s in all]:median} s",
    ),
    Headline(
        "topics_speed",
        "LDA: tokens a second of collapsed Gibbs sampling, 20 and 200 topics",
        "{Gibbs[20][ours]}, {Gibbs[200][ours]}",
        "tomotopy {Gibbs[20][tomotopy]}, {Gibbs[200][tomotopy]}",
    ),
    Headline(
        "correlated_topics",
        "CTM: six topics that go together, total variation from the true ones, covariance (Frobenius), and time",
        "{Six topics[CTM, default (sampling)][topic TV]:.3f}, {Six topics[CTM, default (sampling)][Frobenius]:.2f}, "
        "{Six topics[CTM, default (sampling)][CPU s]:.1f} s",
        "scikit-learn's LDA {Six topics[LDA (scikit-learn)][topic TV]:.3f}, "
        "{Six topics[LDA (scikit-learn)][Frobenius]:.2f}, {Six topics[LDA (scikit-learn)][CPU s]:.1f} s",
    ),
    Headline(
        "dynamic_topics",
        "DTM: perplexity of addresses on the state of the union, half of each given, and time",
        "{Completion of addresses[DTM][perplexity]:.0f}, {Completion of addresses[DTM][CPU s]:.0f} s",
        "static LDA {Completion of addresses[static LDA][perplexity]:.0f}, "
        "{Completion of addresses[static LDA][CPU s]:.0f} s",
    ),
    Headline(
        "supervised_topics",
        "Supervised LDA: reviews of films that are told apart by 20 topics, and time",
        "{movie_reviews, 20[prediction-constrained, weight chosen][accuracy]:.3f}, "
        "{movie_reviews, 20[prediction-constrained, weight chosen][CPU s]:.1f} s",
        "LDA, then logistic {movie_reviews, 20[LDA + logistic][accuracy]:.3f}; "
        "logistic on all words {movie_reviews, 20[bag of words, logistic][accuracy]:.3f}",
    ),
    Headline(
        "lda_svi",
        "LDA: Pyro's SVI, a pass over 2000 documents, and peak memory",
        "{A pass[SVI(guide='mean_field'), batch 32][s a pass]:.1f} s, "
        "{A pass[SVI(guide='mean_field'), batch 32][peak MB]:.0f} MB",
        "Pyro's own example {A pass[Pyro's examples/lda.py, batch 32][s a pass]:.0f} s, "
        "{A pass[Pyro's examples/lda.py, batch 32][peak MB]:.0f} MB",
    ),
    Headline(
        "citations_entropy",
        "Who is cited together: nats of a test paper, 10 components",
        "NOCA {Cross-entropy[10; NOCA, exact][per document, as sets]:.2f}, "
        "LDA (an estimate) {Cross-entropy[10; LDA, estimate][per document, as sets]:.2f}, "
        "mixture {Cross-entropy[10; mixture][per document, as sets]:.2f}",
        "independent names {Cross-entropy[independent names][per document, as sets]:.2f}",
    ),
    Headline(
        "counts",
        "Poisson PCA: log-likelihood of a held-out word of four newsgroups, 20 factors",
        "{Four newsgroups[Poisson PCA, uncertain weights 20][log-likelihood a token]:.3f}",
        "scikit-learn's NMF {Four newsgroups[NMF-KL (scikit-learn) 20][log-likelihood a token]:.3f}",
    ),
    Headline(
        "ratings",
        "PMF: root mean squared error of held-out ratings of films, ratings in their 90 % intervals, and time",
        "{Held-out ratings[VB][RMSE, split 0]}, {Held-out ratings[VB][in 90 %]}, "
        "{Held-out ratings[VB][CPU s]} s; with features, sampled {Held-out ratings[Gibbs, all][RMSE, split 0]}, "
        "{Held-out ratings[Gibbs, all][CPU s]} s",
        "the mean rating {Held-out ratings[mean][RMSE, split 0]}",
    ),
    Headline(
        "polblogs",
        "Block models: the two sides of 1222 political blogs, NMI, and time",
        "{Two blocks, this project[degree-corrected SBM][NMI]}, "
        "{Two blocks, this project[degree-corrected SBM][CPU s]:median} s "
        "(asked: {Two blocks, this project[degree-corrected SBM][target]}; "
        "met: {Two blocks, this project[degree-corrected SBM][met]})",
        "graph-tool {Two blocks, other programs[graph-tool, degree-corrected (2.45)][NMI]}, "
        "{Two blocks, other programs[graph-tool, degree-corrected (2.45)][CPU s]:median} s",
    ),
    Headline(
        "overlapping",
        "MMSB: 28 overlapping communities of 1000 nodes, F1, and time",
        "{This project[MMSB, fit(model, x)][F1]}, {This project[MMSB, fit(model, x)][CPU s]:median} s",
        "svinet {Other programs[svinet 0.9, memberships][F1]}, "
        "{Other programs[svinet 0.9, memberships][CPU s]:median} s",
    ),
    Headline(
        "machines",
        "RBM: log-likelihood of test digits by 64 hidden units (AIS), and time",
        "{Digits[64; persistent CD (default)][test log p]:.2f}, {Digits[64; persistent CD (default)][CPU s]:.1f} s",
        "scikit-learn {Digits[64; BernoulliRBM (scikit-learn)][test log p]:.2f}, "
        "{Digits[64; BernoulliRBM (scikit-learn)][CPU s]:.1f} s",
    ),
    Headline(
        "machines",
        "Replicated softmax: perplexity of the other half of documents, 50 hidden units, and time",
        "{Newsgroups[replicated softmax 50][perplexity]:.0f}, {Newsgroups[replicated softmax 50][CPU s]:.1f} s",
        "LDA of 50 topics {Newsgroups[LDA 50][perplexity]:.0f}, {Newsgroups[LDA 50][CPU s]:.1f} s",
    ),
    Headline(
        "relational_topics",
        "RTM: hidden citations of Cora, average precision and median rank, ten chains",
        "{The mean of several[RTM on proportions, mean of 10 chains][AP]:.2f}, "
        "{The mean of several[RTM on proportions, mean of 10 chains][median rank]:.0f}",
        "LDA, then logistic {Without links[LDA, 50 topics, logistic on products][AP]:.2f}, "
        "{Without links[LDA, 50 topics, logistic on products][median rank]:.0f}; smoothed tf-idf "
        "{Without links[tf-idf smoothed over the links, cosine][AP]:.2f}, "
        "{Without links[tf-idf smoothed over the links, cosine][median rank]:.0f}",
    ),
    Headline(
        "calibration",
        "Simulation-based calibration of local posteriors",
        "exact: calibrated in {How many deviate[Local latents at given globals; exact][as it should]}",
        "approximate: over-confident in "
        "{How many deviate[Local latents at given globals; approximate][over-confident]} of "
        "{How many deviate[Local latents at given globals; approximate][cases]}",
    ),
)
