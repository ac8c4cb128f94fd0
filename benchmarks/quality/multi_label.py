"""Multi-label prediction, some labels seen: discriminative categorical PCA beside logistic regressions of each label.

    python -m benchmarks.quality.multi_label

Sets: scikit-learn's ``make_multilabel_classification``; labels drawn from the model itself; and real images,
scikit-learn's digits: the inputs are the left half of an image, the labels which pixels of the other are bright.
Half of the test rows' labels, at random, are shown; the score is the log-loss of the others, a label, and the share
that is wrong. Regressions of each label by itself have no use for the labels that are shown.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.linear_model import LogisticRegression

from benchmarks._report import Table, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from custom_inference import VariationalEM
from custom_inference.em.search import Search
from ppl_models import DiscriminativeCategoricalPCA

Array = NDArray[Any]
COLUMNS = ("set", "method", "log-loss, half seen", "wrong, half seen", "log-loss, none seen", "CPU s")
NOTE = (
    "Log-loss (nats a label) and share of wrong ones among the hidden labels of test rows; lower is better. K: scores "
    "of discriminative categorical PCA with Bernoulli outputs, by variational EM from one start; of 1, 3, 5 and 8 the "
    "one with the least log-loss on a fifth of the training rows, half of their labels seen, after a fit to the "
    "others. The time is that of the last fit."
)
#: The share of each set that is learned from, and that of the labels that is shown.
_TRAIN, _SHOWN = 0.7, 0.5
#: Numbers of scores to choose from, and the share of the training rows that is fitted for the choice.
_NUMBERS, _FITTED = (1, 3, 5, 8), 0.8


class Labelled(NamedTuple):
    """Inputs (N, P) and labels (N, D) of 0 and 1."""

    name: str
    inputs: Array
    labels: Array


def sets() -> list[Labelled]:
    inputs: Any
    labels: Any
    inputs, labels = make_multilabel_classification(
        1500, n_features=20, n_classes=12, n_labels=4, allow_unlabeled=True, random_state=0
    )[:2]
    found = [Labelled("make_multilabel_classification", inputs, labels)]
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((1500, 10))
    score = inputs @ rng.standard_normal((10, 3)) / np.sqrt(10) + rng.standard_normal((1500, 3))
    chance = 1 / (1 + np.exp(-(score @ (1.5 * rng.standard_normal((3, 15))) - 0.5)))
    found.append(Labelled("drawn from the model", inputs, (rng.random(chance.shape) < chance).astype(int)))
    digits: Any = load_digits()
    images = digits.images
    right = (images[:, :, 4:].reshape(len(images), -1) > 7).astype(int)
    kept = (right.mean(0) > 0.03) & (right.mean(0) < 0.97)
    found.append(Labelled("digits, right halves", images[:, :, :4].reshape(len(images), -1), right[:, kept]))
    return found


class Split(NamedTuple):
    """Standardised inputs, labels, and which of the test rows' labels are shown."""

    train: tuple[Array, Array]
    test: tuple[Array, Array]
    shown: Array

    @classmethod
    def of(cls, labelled: Labelled) -> Split:
        return cls._cut(labelled.inputs.astype(float), labelled.labels, _TRAIN, 0)

    def within(self) -> Split:
        """The training rows split again: what choices are made on."""
        return self._cut(*self.train, _FITTED, 1)

    @classmethod
    def _cut(cls, inputs: Array, labels: Array, share: float, seed: int) -> Split:
        rng = np.random.default_rng(seed)
        order, cut = rng.permutation(len(inputs)), int(share * len(inputs))
        first, rest = order[:cut], order[cut:]
        scale = inputs[first].std(0)
        inputs = (inputs - inputs[first].mean(0))[:, scale > 0] / scale[scale > 0]
        parts = [(inputs[some], labels[some]) for some in (first, rest)]
        return cls(parts[0], parts[1], rng.random(parts[1][1].shape) < _SHOWN)


def regressions(split: Split) -> tuple[Array, Array, float]:
    """Probabilities with half of the labels seen, and with none, which are the same; CPU seconds of the fits."""
    (inputs, labels), columns = split.train, []

    def fitted() -> list[Any]:
        return [LogisticRegression(max_iter=2000).fit(inputs, label) for label in labels.T]

    models, seconds = cpu_seconds(fitted)
    columns = np.stack([model.predict_proba(split.test[0])[:, 1] for model in models], 1)
    return columns, columns, seconds


def discriminative(split: Split, num_components: int) -> tuple[Array, Array, float]:
    (inputs, labels), (new, hidden) = split.train, split.test
    sizes = {"num_features": labels.shape[1], "num_covariates": inputs.shape[1]}
    model = DiscriminativeCategoricalPCA(num_components=num_components, outputs="bernoulli", **sizes)
    method = VariationalEM(guide="variational", tolerance=1e-3, search=Search(restarts=1))
    found, seconds = cpu_seconds(lambda: method.fit(model, labels, covariates=inputs, progress=False, seed=0))
    half = np.where(split.shown, hidden, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows without any label
        chances = [found.predict(torch.tensor(x), covariates=new).numpy() for x in (half, np.full(half.shape, np.nan))]
    return chances[0], chances[1], seconds


def chosen(split: Split) -> int:
    """The number of scores that predicts best within the training rows."""
    part = split.within()
    losses = {k: line("", "", part, discriminative(part, k))[2] for k in _NUMBERS}
    print({k: round(loss, 4) for k, loss in losses.items()}, flush=True)
    return min(losses, key=losses.__getitem__)


def line(name: str, method: str, split: Split, found: tuple[Array, Array, float]) -> list[Any]:
    hidden, truth = ~split.shown, split.test[1]
    seen, none = (np.clip(chance[hidden], 1e-6, 1 - 1e-6) for chance in found[:2])
    losses = [-float(np.mean(np.log(np.where(truth[hidden] == 1, one, 1 - one)))) for one in (seen, none)]
    wrong = float(np.mean((seen > 0.5) != (truth[hidden] == 1)))
    return [name, method, losses[0], wrong, losses[1], found[2]]


def main() -> None:
    quiet_and_single_threaded()
    table = Table("Half of the labels seen", COLUMNS, note=NOTE)
    for labelled in sets():
        split = Split.of(labelled)
        k = chosen(split)
        table.rows.append(line(labelled.name, "logistic regressions", split, regressions(split)))
        own = line(labelled.name, f"discriminative PCA, K = {k}", split, discriminative(split, k))
        table.rows.append(own)
        print(*table.rows[-2:], sep="\n", flush=True)
    print(write_report("multi_label", "Multi-label prediction with some labels seen", [table]))


if __name__ == "__main__":
    main()
