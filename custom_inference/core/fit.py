"""The result that every inference method returns, with all that is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from custom_inference.core import evaluate, store
from custom_inference.core.registry import family_of, presentation_of
from custom_inference.core.result import Result
from custom_inference.core.store_check import is_within
from ppl_models import MethodError, Model, ModelError
from ppl_models.core.errors import unknown_name


@dataclass(kw_only=True, repr=False)
class Fit(Result):
    """What was learned, and how it went: all of :class:`Result`, and criteria, reports, figures, files."""

    def bic(self, bound: str | None = None) -> float:
        """BIC = -2 log p(x) + psi log N, psi free parameters: of several models the smallest is the best.

        bound: what stands for log p(x): "exact" or the name of a lower bound; by default exact where that is feasible,
            else the fit's own bound; of fits with point estimates of the locals the likelihood at these. See
            :func:`custom_inference.core.evaluate.information_criterion`.
        """
        return evaluate.information_criterion(self, "bic", bound)

    def aic(self, bound: str | None = None) -> float:
        """AIC = -2 log p(x) + 2 psi; the likelihood as for :meth:`bic`."""
        return evaluate.information_criterion(self, "aic", bound)

    def report(self, **settings: Any) -> Any:
        """One line a component: prior, strongest features, and whether it is shut off."""
        return evaluate.component_report(self, **settings)

    def shut_off(self, **thresholds: float) -> Tensor:
        """The components that explain nothing, (K,) bool; thresholds as the model's presentation has them (of NOCA
        ``prior_below`` and ``links_below``; 000, sections 3.3 and 4.2)."""
        return presentation_of(self.model).is_shut_off(self.model, self.params, **thresholds)

    def predict(self, x: Any = None, *, mask: Any = None, names: bool = False, **given: Any) -> Any:
        """The posterior mean of what the model responds with, at new data: probabilities for classes.

        names: of classes that have names, (N,) that of the most probable class instead; of labels the list of those
        that are more probable than not.

        Of models of ratings x is (users, items), by their labels where the data have some, or what
        :func:`ppl_models.ratings` gives; ``positions=(users, items)`` are numbers in the data, whatever their labels.
        Unknown ones are an error, with ``new="prior"`` somebody new. ``ratings=``, ``item_ratings=`` are those of
        further users and items, ``user_covariates=`` what is known of further users, with ratings or without; with
        ``uncertainty=True`` there are also standard deviations and intervals.

        Raises MethodError for models without responses; DataError for labels that the data do not have.
        """
        family = family_of(self.model)
        predict = family.predict
        if predict is not None and family.reads_queries:
            if names:
                raise MethodError(f"names=True: {type(self.model).__name__} predicts no classes that have names")
            if mask is not None:
                raise MethodError(f"a mask beside what is asked of {type(self.model).__name__}; ask for fewer")
            return predict(self, x, **given)
        if predict is None:
            raise MethodError(f"{type(self.model).__name__} has no response to predict; transform gives its latents")
        found = predict(self, self.as_data(x, mask, **given))
        return evaluate.by_names(self, found) if names else found

    def tokens(self, x: Any = None) -> Any:
        """What the fit says of every token, in their order, of new documents or of those it was fitted to: a DataFrame
        of its document, sentence, position, word, most probable state and topic, and content_probability.

        Raises MethodError for models that do not read tokens in their order.
        """
        make = family_of(self.model).tokens
        if make is None:
            raise MethodError(f"{type(self.model).__name__} does not read tokens in their order; LDAHMM does")
        return make(self, self.as_data(x))

    def to_arviz(self, **settings: Any) -> Any:
        """ArviZ InferenceData (0.23) or DataTree (1.x) with named dims and coords."""
        from custom_inference.faces.arviz import to_arviz

        return to_arviz(self, **settings)

    def plot(self, kind: str = "components", **settings: Any) -> Any:
        """A figure: "components", "loading", "elbo", "source", "topics", "documents"; see ``plots.plot``.

        settings: of that kind of plot; ``ax`` (of several panels ``axes``) to draw on, which is then what is returned.
        """
        from custom_inference.faces import plots

        return plots.plot(self, kind, **settings)

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.of_fit(self)

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file (tensors, with the settings as JSON in its header); atomic, no pickle."""
        return store.save(self, Path(path))

    @classmethod
    def load(
        cls, path: str | Path, *, model: Model | type[Model] | None = None, device: torch.device | str = "cpu"
    ) -> Fit:
        """Read what :meth:`save` wrote, onto a device, wherever it was fitted; executes no code from the file.

        model: the class, or an instance, of a model of your own: the file names it, and nothing is imported for that.

        Raises FileFormatError for a file that is no fit, or one of another model; of a model of your own without
        ``model``, of other sizes or sites than the instance's.
        """
        parts = store.load(Path(path), model)
        kind: Any = family_of(parts["model"]).result or cls
        return kind(**parts).to(device)


def require_complete(fit: Fit) -> Fit:
    """The fit. Raises KeyboardInterrupt if it was interrupted, where it is one step of many: all of them end."""
    if fit.interrupted:
        raise KeyboardInterrupt
    return fit


def check_init(model: Model, init: Fit | Mapping[str, Any] | None) -> dict[str, Tensor] | None:
    """Starting values for the globals from another fit, or from a mapping; of latents in it nothing is said.

    Raises MethodError for anything else and for a fit of another model; ModelError for an unknown site, one that is
    missing, a wrong shape, and values that are not finite or not in the site's support.
    """
    if init is None:
        return None
    if isinstance(init, Fit):
        require_fit_of(model, init)
        given: Mapping[str, Any] = init.params
    else:
        given = require_mapping(init)
        for site in given:
            if site not in model.dims:
                raise ModelError(f"init: {unknown_name(f'site of {type(model).__name__}', site, model.shapes)}")
    checked = model.check_params({site: _as_tensor(site, value) for site, value in given.items()})
    for site, value in checked.items():
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            raise ModelError(f"init of '{site}' has {bad} of {value.numel()} values that are not finite")
        support = model.sites[site].support
        if site not in model.known and not is_within(support, value):
            raise ModelError(f"init of '{site}' has values outside its support, {support}")
    return checked


def require_fit_of(model: Model, init: Fit) -> None:
    """Raises MethodError for a fit of a model of another kind, as what to start from."""
    own, other = type(model.summed_out), type(init.model)
    if not (issubclass(own, other) or issubclass(other, own)):
        found = f"init is a fit of {other.__name__}, and {own.__name__} is fitted"
        raise MethodError(f"{found}; expected a fit of that, or a mapping of its sites: {', '.join(model.shapes)}")


def require_mapping(init: Any) -> Mapping[str, Any]:
    """Raises MethodError for what is no mapping."""
    if not isinstance(init, Mapping):
        raise MethodError(f"init = a {type(init).__name__}, expected a fit, or a mapping of sites to values")
    return init


def _as_tensor(site: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(f"init of '{site}' is a {type(value).__name__}, expected numbers") from None
