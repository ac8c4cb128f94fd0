"""The estimators of models of rows (transformers and density models) and of graphs (clusterers of their nodes)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse
import torch
from sklearn.base import ClusterMixin, DensityMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from custom_inference.core.evaluate import criterion, require_probability
from custom_inference.core.latent_values import is_own_of_rows, layout_of_model
from custom_inference.core.local_inference import scalable_bound
from custom_inference.core.predictive import feature_mean
from custom_inference.core.settings import require_whole
from custom_inference.faces.sklearn import minibatches
from custom_inference.faces.sklearn.base import Array, Column, ModelEstimator, Seed, Table, plain, seed_of
from custom_inference.methods import with_settings
from ppl_models import DataError, Example, MethodError, Model, as_graph
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse
from ppl_models.data.covariates import in_rows_of, read_before
from ppl_models.data.held import is_string, is_whole, objects, to_numpy
from ppl_models.data.lazy import is_networkx, is_pandas

#: What only estimators of mixtures have.
_of_mixtures = available_if(attrgetter("_classes"))


def _has_means(self: RowEstimator) -> bool:
    """Whether entries have means at values of the latents alone: no categories, nothing that the fit was given."""
    known = {*self._given_rows, *self.fit_.model.sites_of("given")} if "fit_" in vars(self) else set()
    held = self.fit_.data.others if known else {}
    return self._data_kind not in ("categories", "sequences") and not known & set(held)


@dataclass(eq=False, repr=False)
class RowEstimator(TransformerMixin, DensityMixin, ModelEstimator):
    """A model of rows as a scikit-learn transformer and density model.

    A subclass names the model: ``class MyEstimator(RowEstimator): model_type = MyModel`` will do. Its further
    parameters are made from the model's.

    Parameters
    ----------
    n_components: K, components, topics or classes.
    method: a method object or its name; None: the default of ``custom_inference.fit`` for the model.
    max_iter, tol: limit of iterations and tolerance of the method; None: its own.
    settings: further settings of the method by name.
    priors: site -> distribution, as ``Model.with_priors`` takes them.
    bound: what ``score`` and ``score_samples`` report: "exact" for the exact log-likelihood, or the name of a lower
        bound on it. None: exact where the latents of a row have finitely many values; where they are continuous the
        model's scalable bound, whatever K, so that scores of different K are of one kind. See ``bound_name_``.
    total_samples: of how many rows those of ``partial_fit`` are a part; None: of those that it has seen.
    random_state: an int is the seed that ``custom_inference.fit`` would take.
    device: of torch, such as "cuda".
    verbose: whether to show progress.

    Attributes
    ----------
    fit_: the :class:`custom_inference.Fit`, with its parameters, figures and reports.
    components_: (K, F), what each component does to the features.
    n_iter_: iterations; n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    bound_name_: the name of what ``score`` reports.

    What the model conditions on beside a row (covariates, times) is given by its name, in ``fit`` and in every method
    of further rows: ``transform(X, covariates=...)``. Under scikit-learn's metadata routing ``set_fit_request``,
    ``set_transform_request`` and ``set_score_request`` say that it is to be passed on, so that cross-validation takes
    each fold's: ``cross_val_score(estimator, X, params={"covariates": covariates})``. Rows without what the fit had
    with its own are refused; labels alone may be left out, as new documents have none.

    NaN entries are missing. Bad data raise ``ppl_models.DataError``, bad settings other ``ppl_models.PPLError``: each
    is a ``ValueError``. A fit that stops at its limit of iterations warns with scikit-learn's ``ConvergenceWarning``.
    """

    _: KW_ONLY
    bound: str | None = None
    total_samples: float | None = None

    _routed: ClassVar[tuple[str, ...]] = ("fit", "transform", "score")
    #: Whether sparse matrices stay sparse in the model; they are refused elsewhere.
    takes_sparse: ClassVar[bool] = False
    #: Whether a row belongs to one of K classes.
    _classes: ClassVar[bool] = False

    @classmethod
    def _read(cls, example: Example) -> None:
        super()._read(example)
        model, x = example.model, example.data.dense().x.numpy()
        cls.takes_sparse = False
        with contextlib.suppress(DataError):  # of ratings a sparse matrix does not say what is unknown
            cls.takes_sparse = model.prepare(scipy.sparse.csr_array(x)).is_sparse
        cls._classes = model.code_bits is None and not model.has_continuous_locals

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.takes_sparse
        return tags

    def fit(self, X: Table, y: Column = None, *, sample_weight: Column = None, **others: Any) -> Self:
        """Learn the globals from rows X (N, D).

        y: what the model observes beside X, if it observes anything; otherwise it is ignored. sample_weight: (N,), how
        often each row counts, of methods that can weigh rows, as EM and variational EM; others refuse it. others: what
        the model observes or conditions on beside X, by the names of its sites.
        """
        # Components beyond the features are refused in scikit-learn's words, where the model would refuse them.
        narrow = getattr(self.model_type, "wide_reason", None) is not None and is_whole(self.n_components)
        data = self._data(X, reset=True, ensure_min_features=max(1, int(self.n_components)) if narrow else 1)
        self.__dict__.pop("_online", None)
        return self._learn(data, y, others, sample_weight)

    @available_if(lambda self: minibatches.takes_minibatches(self.model_type))
    def partial_fit(self, X: Table, y: Column = None, *, sample_weight: Column = None, **others: Any) -> Self:
        """Go on learning from further rows X, as a minibatch of stepwise EM; the first call, or ``fit``, starts it.

        ``max_iter`` and ``tol`` do not matter; ``method`` is EM or variational EM, whose ``delay`` and ``forgetting``
        (in ``settings``) say how much is kept of what was learned before. ``fit_`` has the objective of each call.

        Raises MethodError where the method does not learn from minibatches, and for ``sample_weight``.
        """
        if sample_weight is not None:
            raise MethodError("sample_weight of partial_fit, where every row counts once; expected fit, or no weights")
        first = not hasattr(self, "fit_")
        matrix = self._data(X, reset=first)
        model = self._model(matrix, {}) if first else self.fit_.model
        method = minibatches.require_stepwise(self._choose_method(model), model)
        settings, minibatch = self._stepwise(model)
        method = with_settings(method, settings)
        data = model.prepare(matrix, dtype=torch.float64, device=self.device, **self._beside(model, y, others))
        model = model.on_scale_of(data) if first else model
        size = len(data) if minibatch is None else minibatch
        require_whole("batch_size", size, 1)
        seed = self.fit_.seed if not first else seed_of(self.random_state)
        with torch.no_grad():
            if first:
                self._online = minibatches.begin(method, model, data, seed)
            elif not hasattr(self, "_online"):
                self._online = minibatches.resume(method, self.fit_, size)
            minibatches.learn(self._online, data, size, self.total_samples)
            self.fit_ = minibatches.fit_of(self._online, method, data, seed)
        return self._set_attributes()

    def _stepwise(self, model: Model) -> tuple[dict[str, Any], int | None]:
        """Settings of the method as ``partial_fit`` runs it, and rows of a minibatch; None: all that it is given."""
        return self._settings(model), (self.settings or {}).get("batch_size")

    def transform(self, X: Table, **given: Any) -> Array:
        """Posterior means of the latents of each row, (N, K): probabilities, memberships, proportions, scores.

        given: what the model conditions on beside X, by the names of its sites. Every row is inferred by itself, those
        of the fit too: ``fit_.transform`` gives what the fit found of these.
        """
        check_is_fitted(self)
        return to_numpy(self.fit_.posterior_of(self._data(X), **self._with_rows(given)).mean)

    def fit_transform(self, X: Table, y: Column = None, *, sample_weight: Column = None, **others: Any) -> Array:
        """``fit``, and ``transform`` of the same rows with what is given with them."""
        self.fit(X, y, sample_weight=sample_weight, **others)
        return self.transform(X, **self._with_rows({n: v for n, v in others.items() if n in self._given_rows}, y))

    def _with_rows(self, given: Mapping[str, Any], y: Column = None) -> dict[str, Any]:
        """What is given with further rows; ``y`` is that, where ``fit`` took it so.

        Raises DataError for what is missing where the fit had it, MethodError for what the model does not take.
        """
        known = {name: value for name, value in given.items() if value is not None}
        for name in known:
            if name not in self._given_rows:
                what = f"site that {self.model_type.__name__} is given"
                raise MethodError(unknown_name(what, name, self._given_rows))
        needed = [site for site in self._given_rows if site in self.fit_.data.others and site != "labels"]
        if y is not None and len(self.fit_.model.other_sites) == 1 and needed:
            known.setdefault(needed[0], y)
        for site in needed:
            if site not in known:
                expected = f"{site}=..., one for each row, as in fit; under metadata routing set_*_request({site}=True)"
                raise DataError(f"rows without their {site}", site=site, expected=expected)
        return known

    @available_if(_has_means)
    def inverse_transform(self, X: Table) -> Array:
        """Return E[x | latents] at what ``transform`` gives, (N, K): the expected entries (N, D), in the terms that the
        model reads; of documents the probabilities of the words.

        Posterior means of the latents are taken for their values, which gives the posterior mean of x where that is
        linear in them, as in mixtures and topic models; ``fit_.reconstruct(X, how="mean")`` averages over them.

        Raises DataError for latents of another shape.
        """
        check_is_fitted(self)
        fit, shape = self.fit_, self.fit_.model.local_shape
        local = torch.as_tensor(np.asarray(X, dtype=np.float64)).to(next(iter(fit.globals.values())))
        if local.ndim != 1 + len(shape) or local.shape[1:] != shape:
            raise DataError(f"latents of shape {tuple(local.shape)}", expected=f"(N, {', '.join(map(str, shape))})")
        with torch.no_grad():
            if is_own_of_rows(fit.model):
                layout_of_model(fit.model, fit.globals, fit.data)  # the program is read once
            mean = feature_mean(fit.model, fit.globals, local)
        return to_numpy(mean / mean.sum(-1, keepdim=True) if self._data_kind == "documents" else mean)

    def get_feature_names_out(self, input_features: Column = None) -> Array:
        """Names of the columns of ``transform``: the model's name and a number, "lda0", "lda1", ..."""
        check_is_fitted(self)
        _check_feature_names_in(self, input_features, generate_names=False)
        name = self.model_type.__name__.lower()
        return np.array([f"{name}{k}" for k in range(self.fit_.model.local_shape[0])], dtype=object)

    @property
    def bound_name_(self) -> str:
        """The name of what ``score`` and ``score_samples`` report; "exact" is exact."""
        check_is_fitted(self, "fit_")
        model = self.fit_.model
        return self.bound or (scalable_bound(model) if model.has_continuous_locals else "exact")

    def score_samples(self, X: Table, **given: Any) -> Array:
        """log p(x_n | globals) of each row, (N,), or the lower bound on it, or estimate, that ``bound_name_`` names.

        given: what the model conditions on beside X, by the names of its sites. Raises ``ppl_models.CapacityError``
        where the exact sum does not fit; it lists the bounds to choose from.
        """
        check_is_fitted(self)
        return to_numpy(self.fit_.log_likelihood(self._data(X), bound=self.bound_name_, **self._with_rows(given)))

    def score(self, X: Table, y: Column = None, *, sample_weight: Column = None, **given: Any) -> float:
        """The mean of ``score_samples``, by the weights of the rows where these are given: what cross-validation
        maximises. ``y`` is what ``fit`` took it for."""
        check_is_fitted(self)
        each = self.score_samples(X, **self._with_rows(given, y))
        return float(each.mean() if sample_weight is None else np.average(each, weights=in_rows_of(X, sample_weight)))

    def bic(self, X: Table, **given: Any) -> float:
        """BIC = -2 log p(X) + psi log N, psi free parameters, log p(X) as ``score_samples`` has it: lower is better.

        That of the rows fitted to, by the method's own likelihood, is ``fit_.bic()``.
        """
        return self._criterion(X, "bic", given)

    def aic(self, X: Table, **given: Any) -> float:
        """AIC = -2 log p(X) + 2 psi; as :meth:`bic`."""
        return self._criterion(X, "aic", given)

    def _criterion(self, X: Table, kind: str, given: Mapping[str, Any]) -> float:
        each = self.score_samples(X, **given)
        require_probability(self.fit_.model, self._data(X))
        return criterion(float(each.sum()), self.fit_.model.num_parameters(0), len(each), kind)

    def sample(self, n_samples: int = 1, random_state: Seed = None) -> Array:
        """New rows (n_samples, D) from the fitted model; by default with the estimator's ``random_state``."""
        check_is_fitted(self)
        seed = seed_of(self.random_state if random_state is None else random_state)
        return to_numpy(self.fit_.sample(plain(n_samples), seed=seed)[self.fit_.model.observed_site])

    @_of_mixtures
    def predict_proba(self, X: Table) -> Array:
        """Return P(class | row) of a mixture, (N, K): the same as ``transform``, always an array."""
        check_is_fitted(self)
        return to_numpy(self.fit_.posterior_of(self._data(X)).mean)

    @_of_mixtures
    def predict(self, X: Table) -> Array:
        """Return the most probable class of each row under a mixture, (N,)."""
        return self.predict_proba(X).argmax(-1)

    @_of_mixtures
    def fit_predict(self, X: Table, y: Column = None, *, sample_weight: Column = None, **others: Any) -> Array:
        """Fit a mixture and return the most probable class of each row, (N,)."""
        return self.fit(X, y, sample_weight=sample_weight, **others).predict(X)


@dataclass(eq=False, repr=False)
class GraphEstimator(ClusterMixin, ModelEstimator):
    """A model of a graph as a scikit-learn clusterer of its nodes: X is the adjacency matrix (N, N), dense or sparse, a
    frame with the nodes on both axes, in any order, or what else names its nodes: a graph of networkx, GraphData.

    A graph is one observation: there are no rows to hold out, so no ``score``, and no ``transform`` of further nodes.
    ``custom_inference.choose_num_blocks`` and ``link_prediction`` choose and judge such models.

    Parameters
    ----------
    n_components: K, blocks.
    directed: whether (i, j) and (j, i) are two dyads; None: whether X is asymmetric, or says that it is directed.
    self_loops: whether (i, i) is a dyad; otherwise the diagonal is left out, with a DataWarning where it is not zero.
    method, max_iter, tol, settings, priors, random_state, device, verbose: as of :class:`RowEstimator`.

    Attributes
    ----------
    labels_: (N,), the most probable block of each node.
    membership_: (N, K), P(block | graph), or the mixed memberships of the nodes.
    components_: (K, K), what each block sends to the others.
    fit_: the :class:`custom_inference.Fit`.
    n_iter_: iterations; n_features_in_: nodes; feature_names_in_: their names in the order of ``labels_``, where all
        are strings; ``fit_.data.nodes`` has them whatever they are.

    NaN entries are dyads that were not observed.
    """

    n_components: int = 2
    _: KW_ONLY
    directed: bool | None = None
    self_loops: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = tags.input_tags.sparse = True
        return tags

    def fit(self, X: Table, y: Column = None, **others: Any) -> Self:
        """Find the blocks of the nodes of the graph X (N, N); ``y`` is ignored.

        others: what the model conditions on beside X, such as the features ``covariates`` (N, P) of the nodes.
        """
        if others.pop("sample_weight", None) is not None:
            raise MethodError("sample_weight of a graph, whose nodes are no independent rows; expected no weights")
        kind: Any = "counts" if self._data_kind.startswith("multi") else "binary"
        settings: Any = {"directed": self.directed, "self_loops": bool(self.self_loops), "dtype": torch.float64}
        if is_networkx(X, "Graph") or is_pandas(X, "DataFrame") or read_before(X) is not None:
            data = as_graph(X, kind=None, **settings)  # its nodes have names, which scikit-learn does not look at
            x = self._validate(sparse.to_scipy(data.x), ensure_min_samples=2)
            data = as_graph(replace(data, x=sparse.from_scipy(x, dtype=torch.float64)), kind=kind, **settings)
            if all(map(is_string, data.nodes)):
                self.feature_names_in_: Array = objects(data.nodes)
        else:
            x = self._validate(X, ensure_min_samples=2)
            if x.shape[0] != x.shape[1]:
                raise DataError(f"shape {tuple(x.shape)}", expected="a square adjacency matrix (N, N)")
            data = as_graph(x, kind=kind, **settings)
        given = {name: np.asarray(value, dtype=np.float64) for name, value in others.items() if value is not None}
        self._learn(data, None, given)
        self.membership_: Array = to_numpy(self.fit_.posterior.mean)
        self.labels_: Array = self.membership_.argmax(-1)
        return self
