"""Which labels new documents have.

With p(s) the share of the training documents that had the set of labels s (one more counted for each, so that none is
impossible), and the evidence of a document's words under the topics that s allows:

    p(s | words)  proportional to  p(s) p(words | s),        p(label l | words) = sum over sets s with l of p(s | words)

Only sets that some training document had are considered: where all had one label these are the labels, and the result
sums to 1. The evidence is the variational bound of LDA's posterior, at the fit's topics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.families.labels.engines import LabelledDirichlet
from ppl_models import Data, MethodError


def predict_labels(fit: Any, data: Data) -> Tensor:
    """Compute the probability of every label (N, L) by the words alone."""
    model, params, engine = fit.model, fit.globals, LabelledDirichlet()
    sets, count = label_sets(fit)
    joint = []
    for labels, number in zip(sets, count.tolist(), strict=True):
        given = Data(x=data.x, mask=data.mask, others={"labels": labels.to(data.x).expand(len(data), -1)})
        bound = engine.e_step(model, params, engine.rows(model, given)).bound
        joint.append(bound + torch.log(bound.new_tensor(number + 1)))
    return torch.softmax(torch.stack(joint, -1), -1) @ sets.to(joint[0])


def label_sets(fit: Any) -> tuple[Tensor, Tensor]:
    """Return the sets of labels (S, L) of the fit's documents, without the empty one, and how many have each (S,)."""
    if "labels" not in fit.data.others:
        raise MethodError("the model was fitted without labels: fit(model, words, labels=...) to predict them")
    labels = fit.data.others["labels"].cpu()
    sets, count = labels[labels.any(-1)].unique(dim=0, return_counts=True)
    return sets, count
