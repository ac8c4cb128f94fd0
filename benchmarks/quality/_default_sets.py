"""Three data sets for every model, and how what is held out of them is scored."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pyro
import torch
from torch import Tensor

from custom_inference import fit
from custom_inference.checks.calibration.simulate import Problem
from custom_inference.checks.model_choice.held import Folds, Scores, group_of, make_folds, score_held_out
from custom_inference.core.isolation import isolated
from custom_inference.core.local_inference import log_likelihood, scalable_bound
from custom_inference.core.predictive import conditional_log_likelihood
from ppl_models import (
    IRM,
    MODELS,
    NMF,
    CapacityError,
    CovariateSBM,
    Data,
    DataWarning,
    MethodError,
    Model,
    Relations,
    datasets,
)
from ppl_models.core.model import Example

ALL = {**MODELS, "irm": IRM}
#: Parts of the items that are held out in turn; components of models of generated data, and where
#: they are integrated out; rows that are drawn.
FOLDS, _COMPONENTS, _FEW, _ROWS = 3, 4, 2, 200
#: Models of documents that are asked for what comes with a document, not for its words: the site.
_RESPONSES = {"supervised_lda": "response", "discriminative_lda": "labels"}
#: Models of documents without topics, whose words of one half nothing says given the other: whole documents are scored.
_WHOLE = ("replicated_softmax", "softmax_pca")
#: Models whose methods are slow: fewer and smaller rows, fewer components, and more CPU seconds.
SLOW = ("helmholtz_machine", "rbm", "replicated_softmax")
#: A model's score of one fold by a method; None: by the default.
Scorer = Callable[[int, str | None], Scores]


def data_sets(name: str) -> Iterator[tuple[str, Callable[[], tuple[Model, Data]]]]:
    """Of generators for the model's kind of data; else its example, and draws from its program at the truth of that."""
    example = ALL[name].example()
    own = example.data.others or isinstance(example.model, CovariateSBM) or name == "bilinear_pmf"
    kind = "graph" if example.model.is_graph else example.model.data_kind
    if kind in _GENERATED and not own:
        for title, generate in (_OF_SLOW if name in SLOW else _GENERATED)[kind]:
            yield title, partial(_of_generator, ALL[name], generate, few=name in SLOW)
        return
    yield "example", lambda: (example.model, example.data)
    for seed in (1, 2):
        yield f"drawn, seed {seed}", partial(_drawn, example, seed)


def _of_generator(kind: Any, generate: Callable[[], Any], *, few: bool) -> tuple[Model, Data]:
    """Few components where that is said, or the score of a row is an integral over theirs."""
    data = generate().data
    model: Model = kind.for_data(data, _COMPONENTS)
    integrals = group_of(model) == "rows" and model.has_continuous_locals
    return kind.for_data(data, _FEW) if few or integrals else model, data


_GENERATED: dict[str, list[tuple[str, Callable[[], Any]]]] = {
    "binary": [
        ("images of patterns", partial(datasets.image_patterns, 400, seed=0)),
        ("images of aspects", partial(datasets.aspect_images, 400, seed=0)),
        ("overlapping boxes", partial(datasets.overlapping_boxes, 200, seed=0)),
    ],
    "counts": [(f"counts {seed}", partial(datasets.sample_gamma_poisson, 200, seed=seed)) for seed in range(3)],
    "documents": [
        (f"topics {seed}", partial(datasets.topic_corpus, 150, 300, _COMPONENTS, seed=seed)) for seed in range(3)
    ],
    "ratings": [(f"ratings {seed}", partial(datasets.sample_ratings, 150, 80, seed=seed)) for seed in range(3)],
    "graph": [
        ("karate club", datasets.karate),
        ("ring of blocks", datasets.ring_graph),
        ("hierarchy of blocks", datasets.hierarchy_graph),
    ],
}

_OF_SLOW: dict[str, list[tuple[str, Callable[[], Any]]]] = {
    "binary": [
        (f"100 boxes {seed}", partial(datasets.overlapping_boxes, 100, seed=seed, side=6, num_sources=6))
        for seed in range(3)
    ],
    "documents": [
        (f"40 documents {seed}", partial(datasets.topic_corpus, 40, 50, _COMPONENTS, seed=seed)) for seed in range(3)
    ],
}


def _drawn(example: Example, seed: int) -> tuple[Model, Data]:
    """More rows than the example has, at its globals; times, covariates and lengths are those of the example's rows."""
    model, data = example.model, example.data
    if isinstance(model, IRM):
        with isolated(seed):
            made: Any = pyro.condition(model, data=dict(example.truth))
            return model, replace(data, x=cast(Tensor, made()))
    sizes = model.settings()
    like = None if model.is_graph else data.rows(torch.arange(_ROWS) % len(data))
    rows = _ROWS
    if isinstance(model, CovariateSBM):
        rows = 3 * len(data)
        model = replace(model, num_nodes=rows, covariates=torch.as_tensor(model.covariates).repeat(3, 1))
    elif "num_users" in sizes:
        model = replace(model, num_users=rows)  # pyright: ignore[reportCallIssue]
    at = {site: example.truth[site] for site in model.global_sites}
    problem = Problem(model=model, method=None, of="locals", num_rows=rows, num_draws=1, seed=seed, at=at, like=like)
    return model, problem.draw(problem.seeds(0)).data


# ----- scores -------------------------------------------------------------------------------------------------------


def scorer(name: str, model: Model, data: Data) -> Scorer:
    """How a fit to all folds but one scores that one. Raises MethodError where nothing can be held out."""
    if isinstance(model, IRM) and isinstance(data, Relations):
        return partial(_score_cells, model, data)
    folds = make_folds(model, data, FOLDS, 0)
    if isinstance(model, NMF):
        return partial(_score_entries, model, data)
    if name in _WHOLE:
        return partial(_score_documents, model, data, folds.part)
    if name in _RESPONSES:
        return partial(_score_responses, model, data, folds.part, _RESPONSES[name])
    return lambda fold, method: score_held_out(
        model, data, _only(folds, fold), seed=fold, progress=False, method=method
    )


def unit_of(name: str, model: Model) -> str:
    """What is scored."""
    if isinstance(model, NMF):
        return "entry"
    if name in _WHOLE:
        return "document"
    if name in _RESPONSES:
        return _RESPONSES[name].rstrip("s")
    units = {"rows": "row", "documents": "token", "graph": "pair of nodes", "ratings": "rating", "relations": "cell"}
    return units[group_of(model)]


def _only(folds: Folds, fold: int) -> Folds:
    """The folds in turn, so that this one is the first, and the only one to be scored."""
    pairs = folds.pairs[fold:] + folds.pairs[:fold]
    return folds._replace(part=(folds.part - fold) % folds.number, pairs=pairs, number=1)


def _score_entries(model: Model, data: Data, fold: int, method: str | None) -> Scores:
    """log p(held-out entries of a row | posterior mean of its activations): improper priors of these give rows no
    probability."""
    part = torch.as_tensor(np.random.default_rng(0).permutation(np.arange(data.x.numel()) % FOLDS))
    held = (part == fold).reshape(data.x.shape)
    found = fit(model, data.x, mask=~held, seed=fold, method=method, progress=False)
    masked = model.prepare(data.x, mask=held, dtype=torch.float64)
    each = conditional_log_likelihood(model, found.globals, masked, torch.as_tensor(found.transform()))
    return Scores(each.double().numpy(), held.sum(1).double().numpy(), "entry")


def _score_documents(model: Model, data: Data, part: np.ndarray, fold: int, method: str | None) -> Scores:
    """log p(document | globals), or for every method the same bound of that."""
    inside, outside = (torch.as_tensor(np.flatnonzero(chosen)) for chosen in (part == fold, part != fold))
    found = fit(model, data.rows(outside), seed=fold, method=method, progress=False)
    test = data.rows(inside)
    try:
        each = log_likelihood(found.model, found.globals, test, seed=fold)
    except (MethodError, CapacityError):
        each = log_likelihood(found.model, found.globals, test, bound=scalable_bound(found.model), seed=fold)
    return Scores(each.detach().double().numpy(), np.ones(len(each)), "document")


def _score_responses(model: Model, data: Data, part: np.ndarray, site: str, fold: int, method: str | None) -> Scores:
    """log P(class | words) of documents that were held out."""
    inside, outside = (torch.as_tensor(np.flatnonzero(chosen)) for chosen in (part == fold, part != fold))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        found = fit(model, data.rows(outside), seed=fold, method=method, progress=False)
    test = data.rows(inside)
    truth = test.others[site].double()
    chance = cast(Tensor, found.predict(replace(test, others={}))).double().clamp(1e-12, 1 - 1e-12)
    each = truth * chance.log() + (1 - truth) * (1 - chance).log() if truth.ndim == 1 else (truth * chance.log()).sum(1)
    return Scores(each.numpy(), np.ones(len(each)), site)


def _score_cells(model: IRM, data: Relations, fold: int, method: str | None) -> Scores:
    """log P(0 or 1) of listed cells that were held out."""
    part = np.random.default_rng(0).permutation(np.arange(len(data)) % FOLDS)
    train, held = data, torch.as_tensor(part == fold)
    which = data.x[:, 0].long()
    for r, relation in enumerate(data.relations):
        train = train.without(relation, held[which == r])
    found = fit(model, train, seed=fold, method=method, progress=False)
    each = []
    for r, relation in enumerate(data.relations):
        chosen = held[which == r]
        value = data.of(r)[chosen, -1].double().numpy()
        chance = found.predict(relation, positions=tuple(data.entities(r)[chosen].T.numpy()))
        each.append(value * np.log(chance) + (1 - value) * np.log1p(-chance))
    score = np.concatenate(each)
    return Scores(score, np.ones(len(score)), "cell")
