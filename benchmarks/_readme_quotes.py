"""Which tables of the reports README.md quotes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Quote:
    """What is quoted of one table of a report: its columns, under a sentence that says what they mean."""

    report: str
    title: str
    sentence: str
    columns: Sequence[str]


QUOTES = (
    Quote(
        "noca_recovery",
        "Default fit",
        "NOCA: recovery of known sources by the default fit (found: the cosine of its loading with the "
        "true one is above 0.95; log-likelihoods are exact, in nats per row, min / median / max over the seeds):",
        ("set", "method", "all found", "log-lik minus truth's", "CPU s"),
    ),
    Quote(
        "noca_recovery",
        "Over-complete",
        "NOCA with twice as many sources as are true:",
        ("set", "all found", "active x runs", "log-lik minus truth's", "CPU s"),
    ),
    Quote(
        "noca_recovery",
        "Beyond enumeration",
        "NOCA, 32 sources on images of 16 x 16 pixels, where sums over all codes are out of reach:",
        ("draw", "found of 32", "CPU s"),
    ),
    Quote(
        "noca_speed",
        "Beside other programs",
        "NOCA beside other programs on one problem (2000 images, eight sources):",
        ("method", "CPU s", "ratio to ours", "log-lik a row", "found of 8", "remark"),
    ),
    Quote(
        "cvq_bars",
        "Default fit",
        "CVQ: bars found by the default fit, exact log-likelihood in nats per row (min / median / max):",
        ("problem", "all found", "minus truth's", "CPU s"),
    ),
    Quote(
        "cvq_bars",
        "Other programs",
        "CVQ beside other programs on the same images:",
        ("problem", "program", "found x runs", "log-lik, mean", "CPU s"),
    ),
    Quote(
        "aspect_speed",
        "img",
        "Aspect Bernoulli, 2000 images of 64 pixels: whole fits beside other programs, and the updates from one start:",
        ("method", "iterations", "CPU s", "log-likelihood"),
    ),
    Quote(
        "aspect_speed",
        "admix",
        "Aspect Bernoulli, genotypes of 500 individuals at 9915 places:",
        ("method", "iterations", "CPU s", "log-likelihood"),
    ),
    Quote(
        "aspect_digits",
        "Noise removal",
        "Corrosion removed from handwritten digits, 1 - (fp + fn) / 2, by number of components:",
        ("method", "K = 2", "K = 6", "K = 10", "K = 14", "K = 20"),
    ),
    Quote(
        "aspect_mammals",
        "False absences",
        "False absences of fossil mammals filled in:",
        ("method", "decrease", "false absences filled", "absences outside the range filled"),
    ),
    Quote(
        "topics_speed",
        "Methods",
        "Topics: LDA by every method on one corpus (2000 documents, 20 topics; perplexity by document completion; "
        "min / median / max over the seeds):",
        ("method", "perplexity, min / median / max", "CPU s to 600", "CPU s a fit"),
    ),
    Quote(
        "topics_speed",
        "Other programs",
        "Topics: other programs on the same corpus, with the same evaluator:",
        ("program", "CPU s a pass", "perplexity", "CPU s to 600", "CPU s in all"),
    ),
    Quote(
        "topics_speed",
        "Gibbs sampling",
        "Topics: tokens a second of collapsed Gibbs sampling:",
        ("K", "ours", "tomotopy", "ratio"),
    ),
    Quote(
        "lda_svi",
        "A pass",
        "Topics: Pyro's generic SVI on the suite's LDA beside Pyro's own example program, a pass of 2000 documents:",
        ("method", "s a pass", "times faster", "peak MB", "above imports MB"),
    ),
    Quote(
        "citations_entropy",
        "Cross-entropy",
        "Who is cited together at NIPS: nats per test document, as the set of the names it cites:",
        ("K", "model", "per document, as sets", "what it is"),
    ),
    Quote(
        "sampson",
        "This project, third wave",
        "Graphs: three groups among Sampson's 18 monks from who likes whom, third wave (ARI with the three "
        "groups, AUC of the choices; waverers, others: entropy of the memberships, nats):",
        ("method", "ARI 1.00", "ARI, three groups", "AUC", "waverers", "others", "CPU s"),
    ),
    Quote(
        "sampson",
        "Other programs, third wave",
        "The same by other programs:",
        ("method", "ARI 1.00", "ARI, three groups", "AUC", "waverers", "others", "CPU s"),
    ),
    Quote(
        "polblogs",
        "Two blocks, this project",
        "Graphs: the two sides of 1222 political blogs (min / median / max over the seeds):",
        ("method", "NMI", "ARI", "CPU s", "target", "met"),
    ),
    Quote(
        "polblogs",
        "Two blocks, other programs",
        "The same by other programs:",
        ("method", "NMI", "ARI", "CPU s"),
    ),
    Quote(
        "polblogs",
        "Links of held-out dyads",
        "Political blogs, a tenth of all dyads held out:",
        ("method", "K", "AUC", "AP", "log-loss", "CPU s"),
    ),
    Quote(
        "overlapping",
        "This project",
        "Graphs: 28 overlapping communities among 1000 nodes (F1: best matches, both ways):",
        ("method", "F1", "CPU s", "target", "met"),
    ),
    Quote(
        "overlapping",
        "Other programs",
        "The same by other programs:",
        ("method", "F1", "CPU s"),
    ),
    Quote(
        "kinds_of_graphs",
        "Blocks found",
        "Graphs: rings, hierarchies, common causes and common effects (002, Fig. 27.20), found again:",
        ("kind", "ARI 1.00", "truth's own", "no worse mode", "ARI", "CPU s"),
    ),
    Quote(
        "graphs_speed",
        "Whole fits",
        "Graphs: whole fits beside other programs (agreement: NMI of blocks, F1 of communities):",
        ("graph", "method", "agreement", "CPU s", "ratio to ours"),
    ),
    Quote(
        "calibration",
        "How many deviate",
        "Simulation-based calibration of models by methods (exact posteriors and samplers have to pass, posteriors "
        "spoiled on purpose have to fail; of the others over-confidence is what mean field is known for):",
        ("part", "posterior", "cases", "calibrated", "over-confident", "other", "as it should"),
    ),
    Quote(
        "streaming",
        "Peak memory",
        "Fits from disk: peak memory over that of the process before the fit, while the rows grow 1x, 4x, 16x:",
        ("fit", "rows from", "rows", "MB at the peak"),
    ),
    Quote(
        "distributed",
        "An iteration",
        "Several processes, whose rows grow with them (the graph's do not), on two cores:",
        ("engine", "processes", "rows in all", "ms", "of it adding up, ms", "rows a second", "bytes"),
    ),
)
