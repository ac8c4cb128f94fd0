"""Base class of the estimators of rows and of graphs: parameters from the model, seeds, one fit and its warning."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.core.registry import presentation_of
from custom_inference.gibbs import CollapsedGibbs
from custom_inference.methods import default_method, resolve_method
from custom_inference.methods import fit as fit_model
from ppl_models import Data, DataError, Example, MethodError, Model
from ppl_models.core.answer_models import of_each
from ppl_models.core.scales import OnOwnScale
from ppl_models.data import sparse
from ppl_models.data.adapt import adapt
from ppl_models.data.answers import ANSWERS, encode_answers, has_words, number_answers
from ppl_models.data.containers import axis_labels, frame_values
from ppl_models.data.covariates import read_before
from ppl_models.data.factors import Factors
from ppl_models.data.held import is_string, is_whole, labels_of, to_numpy
from ppl_models.data.lazy import is_pandas, is_xarray
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import as_matrix
from ppl_models.data.names import encode_labels
from ppl_models.data.times import count_slices

Array = NDArray[Any]
#: Rows by features, or nodes by nodes: lists, arrays, frames, tensors.
Table = ArrayLike | scipy.sparse.sparray | scipy.sparse.spmatrix
#: A value, a label or a weight of every row, or none.
Column = ArrayLike | None
Seed = int | np.random.RandomState | None

#: Parameter -> its text, of those that turn numbers into the entries that a model reads.
_READING = {
    "binarize": "entries above this threshold are 1, others 0, as in ``BernoulliNB``; None: they are 0/1 already.",
    "round_counts": "round the entries to whole numbers first, as of expected counts; NMF alone takes others.",
}
#: Parameter -> what methods call it.
_LIMITS = {"max_iter": ("max_iterations", "sweeps", "steps"), "tol": ("tolerance",)}
#: Fields of models that hold data: ``fit`` takes them, not the constructor.
_GIVEN = {"covariates"}


# eq, repr: scikit-learn has its own.
@dataclass(eq=False, repr=False)
class ModelEstimator(BaseEstimator):
    """What every estimator takes; a subclass that names its ``model_type`` adds what follows from the model.

    These are ``binarize`` or ``round_counts`` for models of binary entries or counts, the fields of the model that
    are no sizes, and the arguments of its ``with_concentration``. A field without a default is None: from the data.
    """

    n_components: int = 8
    _: KW_ONLY
    method: Any = None
    max_iter: int | None = None
    tol: float | None = None
    settings: Mapping[str, Any] | None = None
    priors: Mapping[str, Any] | None = None
    random_state: Any = None
    device: Any = None
    verbose: bool = False

    model_type: ClassVar[type[Model]]
    #: What the model conditions on beside a row, by the names of its sites, and the methods that take it.
    _given_rows: ClassVar[tuple[str, ...]] = ()
    _routed: ClassVar[tuple[str, ...]] = ()
    #: What an entry is, as :attr:`ppl_models.Model.data_kind` has it.
    _data_kind: ClassVar[str] = "real"

    def __init_subclass__(cls, **settings: Any) -> None:
        example = cls.model_type.example() if "model_type" in vars(cls) else None
        if example is not None:
            cls._given_rows = sites_given_with_rows(cls.model_type, example.model)
            for method in cls._routed:  # scikit-learn makes set_fit_request(covariates=...) and its like from these
                setattr(cls, f"__metadata_request__{method}", dict.fromkeys(cls._given_rows))
        super().__init_subclass__(**settings)
        if example is not None:
            cls._read(example)
            added = {name: default for name, default in cls._parameters().items() if not hasattr(cls, name)}
            for name, default in added.items():
                setattr(cls, name, default)
            cls.__annotations__ = {**dict.fromkeys(added, "Any"), **vars(cls).get("__annotations__", {})}
            cls.__doc__ = vars(cls).get("__doc__") or cls._text(added)
            dataclass(eq=False, repr=False, kw_only=True)(cls)

    @classmethod
    def _read(cls, example: Example) -> None:
        """Take from an example of the model what does not depend on sizes."""
        cls._data_kind = example.model.data_kind

    @classmethod
    def _parameters(cls) -> dict[str, Any]:
        """Parameter -> default, of those that follow from the model (None where a field has none, or makes one anew
        each time); not its sizes, which the data have."""
        kind, entries = cls.model_type, cls._data_kind
        counts = entries in ("counts", "documents") or entries.startswith("multi")
        reading = {"round_counts": False} if counts else {"binarize": None} if entries in _BINARY else {}
        sizes = {kind.axes["component"], kind._columns()}
        own = [field for field in fields(kind) if field.name not in {"priors", *_GIVEN, *sizes}]
        known = {field.name: None if field.default is MISSING else field.default for field in own}
        return {**reading, **known, **dict.fromkeys(cls._concentrations())}

    @classmethod
    def _concentrations(cls) -> dict[str, str]:
        """Parameter -> the argument of the model's ``with_concentration``, if it has that."""
        made = getattr(cls.model_type, "with_concentration", None)
        names = [] if made is None else list(inspect.signature(made).parameters)[1:]
        return {name: name for name in names}

    @classmethod
    def _text(cls, added: Mapping[str, Any]) -> str:
        """The docstring: what the model says of itself, and its own parameters."""
        kind = cls.model_type
        summary = kind.summary or inspect.cleandoc(kind.__doc__ or kind.__name__).splitlines()[0]
        own = cls._concentrations()
        known = {name: _READING.get(name) or _describe_parameter(own.get(name, name), kind) for name in added}
        lines = [f"{name}: {text}" for name, text in known.items()]
        last = ", and\n\n" + "\n".join(lines) if lines else "."
        head = f"{summary[:1].upper()}{summary[1:].rstrip('.')}: :class:`ppl_models.{kind.__name__}`."
        return f"{head}\n\nParameters: those of :class:`{cls.__bases__[0].__name__}`{last}"

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        positive = self._data_kind not in ("real", "ratings")
        tags.input_tags.positive_only = positive and getattr(self, "binarize", None) is None
        tags.input_tags.categorical = self._data_kind == "categories" or getattr(self, "visible", "") == "categorical"
        return tags

    def _entries(self, x: Any) -> Any:
        """The entries as the model reads them: binarised, rounded, or as they are."""
        threshold = getattr(self, "binarize", None)
        if threshold is not None:
            return threshold_entries(x, threshold)
        return np.round(x) if getattr(self, "round_counts", False) else x

    def _validate(self, X: Table, **settings: Any) -> Any:
        """X as an array or a CSR matrix of the entries that the model reads."""
        tags = self.__sklearn_tags__().input_tags
        settings |= {"accept_sparse": "csr" if tags.sparse else False, "ensure_non_negative": tags.positive_only}
        table: Any = X
        return self._entries(validate_data(self, table, dtype=np.float64, ensure_all_finite="allow-nan", **settings))

    def _data(self, X: Table, *, reset: bool = False, **settings: Any) -> Data:
        """Return rows X, in any container, with the labels that they came with; answers by those of the fit."""
        given: Any = adapt(X)
        given = given.to_pandas() if is_xarray(given, "DataArray") and given.ndim == 2 else given
        own, labels = read_before(given), [*axis_labels(given), None][:2]
        coords: dict[str, Any] = {"row": labels_of(labels[0] or [])}
        if own is not None:
            given, coords = _table_of(own), {**coords, "feature": labels[1], ANSWERS: own.coords.get(ANSWERS)}
        elif self.__sklearn_tags__().input_tags.categorical:
            known, sizes = None if reset else self.fit_.data.coords.get(ANSWERS), getattr(self, "num_categories", None)
            if reset:
                asked = None if sizes in (None, 1) else of_each(plain(sizes), np.shape(given)[-1])
                given, coords[ANSWERS] = number_answers(given, asked)
            elif known is not None:
                validate_data(self, given, reset=False, skip_check_array=True)  # the names and the number of columns
                given, coords[ANSWERS] = encode_answers(given, known)
        factors = Factors({} if reset else dict(self.fit_.data.recipe.get("levels", {})))
        if self._data_kind == "binary" and has_words(given):
            given = factors.number_two_valued("x", given)
        if is_pandas(given, "DataFrame") and not (hasattr(given, "sparse") and getattr(self, "takes_sparse", False)):
            given = pd.DataFrame(frame_values(given), given.index, given.columns)
        x = self._validate(given, reset=reset, **settings)
        names = getattr(self, "feature_names_in_", None)
        coords |= {} if names is None else {"feature": names.tolist()}
        coords = {axis: one for axis, one in coords.items() if one}
        recipe = {"levels": factors.columns} if factors.columns else {}
        return replace(as_matrix(x, keep_sparse=True, dtype=torch.float64), coords=coords, recipe=recipe)

    def _model(self, data: Data, given: Mapping[str, Any]) -> Model:
        """The model whose shape fits the data, with the estimator's settings and priors."""
        kind, defaults = self.model_type, {f.name: f.default for f in fields(self)}
        names = [f.name for f in fields(kind) if f.name in defaults and f.name != "priors"]
        values = {name: plain(getattr(self, name)) for name in names}
        changed = {name: value for name, value in values.items() if value is not defaults[name]}
        model: Any = kind.for_data(data, plain(self.n_components), **changed, **given)
        threshold = getattr(self, "binarize", None)
        if threshold is not None and model.data_kind in ("counts", "documents"):
            told = ", ".join(f"{name} = {value!r}" for name, value in changed.items())
            raise MethodError(
                f"binarize = {threshold:g} with {told}: entries are counts, not binary; expected binarize=None"
            )
        known = {argument: getattr(self, name) for name, argument in self._concentrations().items()}
        known = {argument: value for argument, value in known.items() if value is not None}
        model = model.with_concentration(**known) if known else model
        return model.with_priors(**self.priors) if self.priors else model

    def _beside(self, model: Model, y: Column, others: Mapping[str, Any]) -> dict[str, Any]:
        """What the model observes or conditions on beside x; ``y`` is that, where it is one thing."""
        beside = {name: value for name, value in others.items() if name not in self._sites_held()}
        alone = y is not None and len(model.other_sites) == 1
        return {**({model.other_sites[0]: y} if alone else {}), **beside}

    def _choose_method(self, model: Model) -> Any:
        """The method, as ``custom_inference.fit`` would choose it."""
        if self._method in (None, "default"):
            return default_method(model, None)
        return resolve_method(self._method, model=model)

    @property
    def _method(self) -> Any:
        """The method that was asked for."""
        return self.method

    def _settings(self, model: Model) -> dict[str, Any]:
        """Settings of the method: the limits under the names that it has for them, and ``settings``."""
        chosen, found = self._choose_method(model), {}
        for name, value in (("max_iter", self.max_iter), ("tol", self.tol)):
            if value is not None:
                known = next((field for field in _LIMITS[name] if hasattr(chosen, field)), None)
                if name == "max_iter" and isinstance(chosen, CollapsedGibbs):
                    known = "num_samples"
                if known is None:
                    problem = f"{name} = {value}, but {chosen.name} has no such limit"
                    raise MethodError(f"{problem}; expected its own fields, in settings={{...}}")
                found[known] = value
        return {name: plain(value) for name, value in {**found, **(self.settings or {})}.items()}

    def _sites_held(self) -> set[str]:
        """The data that the model itself holds."""
        return _GIVEN & {field.name for field in fields(self.model_type)}

    def _learn(self, data: Data, y: Column, others: Mapping[str, Any], weights: Column = None) -> Self:
        """Fit; ``others`` are what it observes or conditions on beside x, ``weights`` those of the rows. Warns at the
        limit of iterations."""
        if y is not None and self._given_rows == ("labels",):
            others, y = {"labels": y} | dict(others), None
        given = {name: value for name, value in others.items() if name in self._sites_held()}
        for site, size in (("covariates", "num_covariates"), ("labels", "num_labels")):
            if others.get(site) is not None and getattr(self, size, 0) is None:
                value = adapt(others[site])
                is_label = site == "labels"
                table, names = encode_labels(value, None, None) if is_label else (Factors().encode(site, value), None)
                # A list of class numbers 0, 1, ... has as many classes as its largest says.
                wide = np.shape(table)[1] if np.ndim(table) > 1 else int(np.nanmax(np.asarray(table, dtype=float))) + 1
                given[size] = wide if names is None else len(names)
        if getattr(self, "num_times", 0) is None and ("time" in others or y is not None):
            time: Any = others.get("time", y)
            given["num_times"] = count_slices(time)
        model = self._model(data, given)
        self.fit_: Fit = fit_model(
            model,
            data,
            seed=seed_of(self.random_state),
            method=self._method,
            device=self.device,
            progress=bool(self.verbose),
            **({} if weights is None else {"weights": weights}),
            **self._settings(model),
            **self._beside(model, y, others),
        )
        if self.fit_.ended in (Ended.LIMIT, Ended.FAILED):
            cure = "; increase max_iter or tol" if self.fit_.ended is Ended.LIMIT else ""
            message = f"{type(self).__name__}: {self.fit_.status}{cure}"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        return self._set_attributes()

    def _set_attributes(self) -> Self:
        """Set the attributes that are read off the fit."""
        self.components_: Array = to_numpy(presentation_of(self.fit_.model).matrix(self.fit_.model, self.fit_.globals))
        self.n_iter_ = len(self.fit_.elbo)
        return self


def sites_given_with_rows(kind: type[Model], example: Model) -> tuple[str, ...]:
    """The sites that a model conditions on with every row; covariates also where its example has none. Of ratings the
    covariates of users, the rows; none of graphs, where they are of nodes."""
    if example.is_graph:
        return ()
    if example.data_kind == "ratings":
        return ("user_covariates",)
    scaled = [kind.scaled_site] if issubclass(kind, OnOwnScale) else []
    known = dict.fromkeys([*example.sites_of("given"), *scaled])
    held = _GIVEN & {field.name for field in fields(kind)}
    return tuple(name for name in known if name not in {*example.sites_of("observed"), *held})


_BINARY = ("binary", "graph", "digraph")


def _describe_parameter(name: str, kind: type[Model]) -> str:
    """Find what a model's docstrings say of a field or a concentration: the paragraph that begins with its name."""
    # The paragraph ends where another "name: " follows a sentence, or with the lines that are indented below it.
    end = r"(?=(?<=\.) \w+: |$(?!\n +\S))"
    for place in (*kind.__mro__, getattr(kind, "with_concentration", None)):
        text = inspect.getdoc(place) or ""
        found = re.search(rf"^(?:.*\. )?{name}: (.*?\.?(?:\n +\S.*)*?){end}", text, re.M)
        if found:
            return " ".join(found[1].split())
    return "of the model; None: its own, or from the data."


def _table_of(data: Data) -> Any:
    """Data as scikit-learn reads them: a frame where their columns are called by words."""
    if data.is_sparse:
        return sparse.to_scipy(data.x)
    values, names = to_numpy(data.x_with_nan), data.coords.get("feature")
    return values if names is None or not all(map(is_string, names)) else pd.DataFrame(values, columns=names)


def seed_of(random_state: Seed) -> int:
    """The seed of a fit: a whole number as it is, so that results are those of ``custom_inference.fit``; else drawn."""
    if is_whole(random_state):
        return int(random_state)  # pyright: ignore[reportArgumentType]
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def plain(value: Any) -> Any:
    """A NumPy scalar, as parameter grids hold them, as Python's own number; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def threshold_entries(x: Any, threshold: float) -> Any:
    """1 where an entry exceeds the threshold, 0 elsewhere, dense or sparse; NaN stays NaN, and missing."""
    if not scipy.sparse.issparse(x):
        return np.where(np.isnan(x), np.nan, (x > threshold).astype(np.float64))
    if threshold < 0:
        problem = f"a sparse matrix with binarize = {threshold:g}, which would turn its zeros into ones"
        raise DataError(problem, expected="a threshold of at least 0, or a dense array")
    x = x.copy()
    x.data = threshold_entries(x.data, threshold)
    x.eliminate_zeros()
    return x
