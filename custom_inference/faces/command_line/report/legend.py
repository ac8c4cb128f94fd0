"""What the words of a report mean: of column headings, names of facts, and words in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Word -> what it means. Those that end in "…" are how longer ones begin.
LEGEND = {
    "component": "one of the patterns that the model explains the data by: a source, class, topic, factor or block. s0 "
    "is the first in the fit's own numbering; tables and figures list them by how much they matter, most first.",
    "components": "how many components a model has; none: every column, word, pair or rating by itself.",
    "share": "how much of the data a fit assigns to the component; the shares add up to 1.",
    "share at the mean": "the share of the component where its logit is at its mean.",
    "prior": "how probable a component is before a row is seen: the share of rows that have it. Of sites of a model: "
    "the distribution that their values have before the data are seen.",
    "proportion": "how large a part of the rows or nodes belongs to the component; proportions add up to 1.",
    "prominence": "how much the component matters: the sum of the sizes of its numbers.",
    "norm": "how strong the component is: the length of its row of numbers.",
    "bias": "what is added to the log odds of the component whatever the row.",
    "features on": "how many features the component turns on, where it is present.",
    "counts per row": "how many counts a row of this component has, on average.",
    "words": "of a topic: over how many words its probability spreads, the exponential of its entropy. Of data: how "
    "many different words there are.",
    "tokens": "words of the documents, each as often as it occurs.",
    "change": "how much a topic's words changed from the first slice of time to the last, between 0 and 1.",
    "link weight": "how much two documents' sharing of the topic adds to the log odds of a link.",
    "weight…": "how much the component adds to the response, or to that class of it.",
    "strongest": "the features with the largest numbers of the component, and these numbers; those below 1 % of its "
    "largest are left out.",
    "shut off": "whether the component explains nothing: none of the data need it.",
    "best rows": "the rows, documents, users or nodes that show the component best: those with the largest posterior "
    "mean of it, and that mean.",
    "posterior mean": "what is expected of a quantity given the data.",
    "objective": "what the fit made as large as it could, in nats (natural logarithms).",
    "objective a row": "the objective divided by the number of rows.",
    "log-likelihood…": "the log probability (or density) that the fitted model gives to the data, in nats; higher is "
    "better. Only fits to the same data compare.",
    "bound": "a number that is known not to be larger than the log-likelihood, which itself is too costly.",
    "no bound": "a number that estimates the log-likelihood, or what stands for it, and may lie above it.",
    "evidence": "the probability of the data with what is unknown of each row summed out; its logarithm is the "
    "log-likelihood.",
    "BIC": "-2 log-likelihood + number of parameters * log(rows): of models of the same data the lowest is best. It "
    "trades fit against size, and is only a rule of thumb.",
    "held-out score": "the log probability, in nats, that the model gives to an entry (token, pair of nodes, rating) "
    "that was hidden when it was fitted, on average; higher is better.",
    "gain over none": "the held-out score less that of no components; above 0 the components are worth something.",
    "nats": "the unit of natural logarithms: a difference of 1 is a factor of 2.7 in probability.",
    "seed": "the number that all random numbers of the fit began with: the same seed gives the same fit.",
    "starts": "the fit begins several times at different values, and keeps the best end. '3 of 10 starts found these "
    "components (3 of 4 at random)': 3 of all 10 ended in the components that are shown, and 3 of those 4 that began "
    "at random; the others ended in components that fit less well.",
    "converged": "further steps change nothing that matters.",
    "point estimate": "one best value, without a statement of how far the truth may be from it.",
    "interval": "a range that holds the value with a probability of 90 %, if the model is true.",
    "number": "the name of a number that was learned: its site, and its place there.",
    "quantity": "what the interval is of: a number of the component, or the component's number for a feature.",
    "estimate": "the one value that the fit found.",
    "mean": "the mean of the posterior of the number.",
    "sd": "the standard deviation of the posterior of the number.",
    "q5": "the lower end of the 90 % interval: 5 % of the posterior lies below.",
    "q95": "the upper end of the 90 % interval: 5 % of the posterior lies above.",
    "ess": "effective sample size: how many independent draws these are worth.",
    "r_hat": "R-hat, whether chains of draws agree: above 1.01 they do not yet.",
    "R-hat": "whether chains of draws agree: above 1.01 they do not yet.",
    "density": "how many of the entries, pairs or ratings that could be there are.",
    "missing": "entries that are not known. The fit uses the others.",
    "stage": "a part of the fit, in the order in which they ran.",
    "seconds": "how long it took.",
    "type": "a kind of entity in the relations.",
    "cluster": "entities that behave alike in all relations; 0 is the largest.",
    "size": "how many entities are in the cluster.",
    "members": "the first of the entities in the cluster.",
    "sureness": "how probable it is that two members of the cluster belong together, on average over the draws.",
    "log joint": "the log probability of the data and the clusters together.",
    "method": "how the fit was computed.",
    "status": "how the fit ended.",
    "role": "of a site of the model: whether it is global, of each row, or observed.",
    "axes": "what the numbers of a site are of.",
    "site": "a quantity of the model: what is observed, or what is learned.",
}  # fmt: skip
#: Names of facts that say by themselves what they are.
PLAIN = frozenset({
    "file", "command", "version", "made", "rows", "columns", "entries", "nodes", "edges", "documents", "users", "items",
    "ratings", "took", "values", "rows with a label", "model", "cells", "tokens a document", "entities", "relations",
    "sentences", "not in the fit",
})  # fmt: skip


#: Words that are explained wherever they occur, and not only above a column or beside a value.
_TERMS = (
    "objective", "BIC", "bound", "evidence", "nats", "seed", "starts", "converged", "point estimate", "interval",
    "posterior mean", "held-out score", "R-hat", "log joint", "prior", "density", "log-likelihood…",
)  # fmt: skip


def explain_words(headings: Iterable[str], text: str) -> dict[str, str]:
    """Return word -> what it means, of the headings that have an explanation and of terms that occur in the text."""
    wanted = {entry for entry in map(find_entry, headings) if entry is not None}
    wanted |= {word for word in _TERMS if re.search(rf"(?<![\w-]){re.escape(word.rstrip('…'))}s?(?![\w-])", text, re.I)}
    return {word.rstrip("…"): meaning for word, meaning in LEGEND.items() if word in wanted}


def find_entry(heading: str) -> str | None:
    """Return the key of the entry that explains a heading, or None."""
    if heading in LEGEND:
        return heading
    return next((word for word in LEGEND if word.endswith("…") and heading.startswith(word[:-1])), None)
