"""Restricted Boltzmann machines under the names of scikit-learn's ``BernoulliRBM``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self, cast

import numpy as np
import scipy.sparse
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from custom_inference.core.method import Call
from custom_inference.faces.sklearn.base import Array, Column, Seed, Table, seed_of
from custom_inference.faces.sklearn.estimators import RowEstimator
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.annealing import all_log_pseudo_likelihoods
from custom_inference.families.boltzmann.common import HarmoniumRows
from custom_inference.families.boltzmann.exact import ExactHarmonium
from custom_inference.families.boltzmann.online import Online
from custom_inference.families.boltzmann.sampling import entries_of
from custom_inference.families.boltzmann.stochastic import ContrastiveDivergence, PersistentCD
from custom_inference.methods import with_settings
from ppl_models import Data, MethodError, Model
from ppl_models.data.held import to_numpy
from ppl_models.rbm import HarmoniumModel

#: What scikit-learn calls the settings of stochastic learning.
_SETTINGS = {"learning_rate": "learning_rate", "batch_size": "batch_size", "n_iter": "max_iterations"}
_PSEUDO = "pseudo_likelihood"


@dataclass(eq=False, repr=False)
class MachineEstimator(RowEstimator):
    """A restricted Boltzmann machine under the names of scikit-learn's ``BernoulliRBM``.

    Binary units take numbers between 0 and 1 as probabilities: ``fit_.model`` has ``visible="probability"``. Sparse
    rows are made dense.

    Parameters
    ----------
    learning_rate: of the first update, falling to 0 during ``fit``, and that of all updates of ``partial_fit``.
    batch_size: rows an update. n_iter: passes over the rows. Where one of these three is given, the method is
        persistent CD by default; None: the method's own.
    bound: as of :class:`RowEstimator`, or "pseudo_likelihood": sum_d log p(x_d | the other entries), of probabilities
        against 1 - x_d; which is also what
        ``score_samples`` reports by default where log Z is out of reach.
    Others: see :class:`RowEstimator`. With ``verbose``, stochastic fits list how they went.

    Attributes
    ----------
    components_: (K, D) weights; intercept_hidden_: (K,); intercept_visible_: (D,).
    Others: see :class:`RowEstimator`.
    """

    _: KW_ONLY
    learning_rate: float | None = None
    batch_size: int | None = None
    n_iter: int | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _entries(self, x: Any) -> Any:
        return super()._entries(x.toarray() if scipy.sparse.issparse(x) else x)

    def _model(self, data: Data, given: Mapping[str, Any]) -> Model:
        model: Any = super()._model(data, given)
        return replace(model, visible="probability") if model.visible == "binary" else model

    @property
    def _method(self) -> Any:
        stochastic = any(getattr(self, name) is not None for name in _SETTINGS)
        return PersistentCD() if self.method is None and stochastic else self.method

    def _settings(self, model: Model) -> dict[str, Any]:
        given = {known: getattr(self, name) for name, known in _SETTINGS.items() if getattr(self, name) is not None}
        return {**given, **super()._settings(model)}

    def fit(self, X: Table, y: Column = None, *, sample_weight: Column = None, **others: Any) -> Self:
        """Learn the weights from rows X (N, D); ``y`` is ignored. sample_weight: as of :class:`RowEstimator`."""
        super().fit(X, y, sample_weight=sample_weight, **others)
        watched = self.fit_.details.get("watched", {}).get("log_pseudo_likelihood", [])
        if self.verbose and watched:
            passes, seconds = self.fit_.details["passes"], float(self.fit_.details["seconds"])
            every = max(1, passes // len(watched))
            for number, value in enumerate(watched, 1):
                done = min(number * every, passes)
                said = f"Iteration {done}, pseudo-likelihood = {value:.2f}, time = {seconds * done / passes:.2f}s"
                print(f"[{type(self).__name__}] {said}")
        return self

    def partial_fit(self, X: Table, y: Column = None) -> Self:
        """Go on learning from further rows X, by one pass over minibatches of them; the first call, or ``fit``, starts
        it. ``y`` is ignored.

        Raises MethodError for methods that are not stochastic.
        """
        del y
        first = not hasattr(self, "fit_")
        matrix = self._data(X, reset=first).dense()
        model: Any = self._model(matrix, {}) if first else self.fit_.model
        data = model.prepare(matrix, dtype=torch.float64, device=self.device)
        model = model.on_scale_of(data)
        if not hasattr(self, "_online"):
            method = PersistentCD() if self.method is None else self._choose_method(model)
            if not isinstance(method, ContrastiveDivergence):
                problem = f"partial_fit by {method.name}, which does not learn from minibatches one after the other"
                raise MethodError(f"{problem}; expected 'cd', 'pcd' or 'parallel_tempering'")
            seed = seed_of(self.random_state) if first else self.fit_.seed
            call = Call(seed, None if first else self.fit_, False, torch.float64, self.device)
            self._online = Online(with_settings(method, self._settings(model)), model, data, call)
        with torch.no_grad():
            self.fit_ = self._online.learn(data)
        return self._set_attributes()

    def transform(self, X: Table) -> Array:
        """E[hidden units | row], (N, K): of binary ones probabilities. Single precision stays that."""
        found = super().transform(X)
        return found.astype(np.float32) if getattr(X, "dtype", None) == np.float32 else found

    @property
    def bound_name_(self) -> str:
        """The name of what ``score`` and ``score_samples`` report; "exact" is exact."""
        check_is_fitted(self, "fit_")
        return self.bound or ("exact" if ExactHarmonium().feasible(cast(HarmoniumModel, self.fit_.model)) else _PSEUDO)

    def score_samples(self, X: Table) -> Array:
        """log p(x_n) of each row, (N,), or what ``bound_name_`` names."""
        check_is_fitted(self)
        if self.bound_name_ != _PSEUDO:
            return super().score_samples(X)
        rows = self._rows(X)
        return to_numpy(all_log_pseudo_likelihoods(common.free_energy_of(self._machine, self.fit_.globals, rows), rows))

    def gibbs(self, X: Table, random_state: Seed = None) -> Array:
        """Rows (N, D) after one sweep of Gibbs sampling from rows X without missing entries.

        random_state: None goes on with the estimator's own, so that every call draws anew.
        """
        statistic = self._energy.draw_visible(self._hidden(X, random_state), self._generator(random_state))
        return to_numpy(entries_of(self._machine, statistic))

    def sample_hidden(self, X: Table, random_state: Seed = None) -> Array:
        """Draws (N, K) of the hidden units given rows X without missing entries; random_state: as of :meth:`gibbs`."""
        return to_numpy(self._hidden(X, random_state))

    def _hidden(self, X: Table, random_state: Seed) -> torch.Tensor:
        energy = self._energy
        rows = self._rows(X)
        if rows.missing is not None or rows.times is not None:
            raise MethodError("Gibbs sampling from rows with missing entries; expected custom_inference.complete")
        return energy.draw_hidden(rows.statistic, self._generator(random_state))

    @property
    def _machine(self) -> Any:
        return self.fit_.model

    @property
    def _energy(self) -> Any:
        check_is_fitted(self)
        return self._machine.energy(self.fit_.globals)

    def _rows(self, X: Table) -> HarmoniumRows:
        return HarmoniumRows.of(self._machine, self.fit_.read(self._data(X)))

    def _generator(self, random_state: Seed) -> torch.Generator:
        if random_state is None:
            if not hasattr(self, "_random"):
                self._random = check_random_state(self.random_state)
            random_state = self._random
        return torch.Generator().manual_seed(seed_of(random_state))

    def _set_attributes(self) -> Self:
        super()._set_attributes()
        self.intercept_hidden_: Array = to_numpy(self.fit_.globals["hidden_bias"])
        self.intercept_visible_: Array = to_numpy(self.fit_.globals["visible_bias"])
        return self
