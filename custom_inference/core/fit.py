"""The result that every inference method returns, with criteria, reports, figures and files."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from custom_inference.core import evaluate, predictive, store
from custom_inference.core.expected import Expectation, expect_entries, predict_given
from custom_inference.core.given_anew import describe_rows_given_anew
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.registry import family_of, presentation_of
from custom_inference.core.result import Result
from custom_inference.core.store_check import is_within
from custom_inference.core.summary import describe_globals
from ppl_models import Data, MethodError, Model, ModelError
from ppl_models.core.errors import a_value_of, unknown_name
from ppl_models.data.held import Source

#: What ``print`` shows of a fit: columns, components, and features of each.
_WIDE, _LINES, _FEATURES = 80, 20, 8


@dataclass(kw_only=True, repr=False)
class Fit(Result):
    """What was learned, and how it went: all of :class:`Result`, and criteria, reports, figures, files."""

    def __str__(self) -> str:
        """What ``print`` shows, 80 columns wide: the fit in a few words, the strongest features of each component."""
        anew = [f"  rows given anew: {self.rows_given_anew}"] if self.rows_given_anew else []
        lines = [*repr(self).splitlines(), *anew]
        wide = "\n".join(textwrap.fill(line, _WIDE, subsequent_indent="    ") for line in lines)
        if not self.model.has_components:
            return wide
        table = evaluate.component_report(self, top=_FEATURES)
        names = [self.component_names[i] for i in table.index.tolist()]
        size = max(map(len, names))
        lines = [_cut(f"{name:<{size}} {one}") for name, one in zip(names, table["strongest"], strict=True)]
        more = [f"and {len(lines) - _LINES} more: fit.report()"] if len(lines) > _LINES else []
        return "\n  ".join([wide, *lines[:_LINES], *more])

    @property
    def rows_given_anew(self) -> str:
        """Say by what ``transform`` infers new rows and some of the training rows, where the fit's own were not
        inferred by it, so that these have other values there; else ""."""
        return describe_rows_given_anew(self)

    @property
    def log_prior(self) -> float:
        """The log density of the priors at the globals, as the program states them; flat ones add 0.

        ``prior_term`` is another number where the M step has its maximum in other coordinates than the sites' own: of
        logits of probabilities, and of logarithms of rates, whose modes are never 0.
        """
        return float(self.model.log_prior({site: value.double() for site, value in self.globals.items()}))

    def bic(self, bound: str | None = None) -> float:
        """Return BIC = -2 log p(x) + psi log N with psi free parameters; smaller is better.

        bound: what stands for log p(x): "exact" or the name of a lower bound or an estimate; by default exact where
            that is feasible, else the fit's own bound, or the likelihood at point estimates of the locals. See
            :func:`custom_inference.core.evaluate.information_criterion`.
        """
        return evaluate.information_criterion(self, "bic", bound)

    def aic(self, bound: str | None = None) -> float:
        """Return AIC = -2 log p(x) + 2 psi, with the likelihood of :meth:`bic`."""
        return evaluate.information_criterion(self, "aic", bound)

    def report(self, **settings: Any) -> Any:
        """Return a table with one line per component: prior, strongest features, and whether it is shut off."""
        return evaluate.component_report(self, **settings)

    def summary(self) -> Any:
        """Return a DataFrame with a line for every number of the globals: of what is drawn or has a posterior "mean",
        "sd" and the ends of the central 90 % interval, "q5" and "q95", and of chains "ess" and "r_hat"; of point
        estimates the "estimate" alone, of which nothing says how far it may be off (``bootstrap`` and
        ``observed_information`` do); of what was not learned the value that is "known"."""
        return describe_globals(self)

    def shut_off(self, **thresholds: float) -> Tensor:
        """Return which components explain nothing, (K,) bool, by the thresholds of the model's presentation (for NOCA
        ``prior_below`` and ``links_below``; Singliar & Hauskrecht 2006, sections 3.3 and 4.2)."""
        return presentation_of(self.model).is_shut_off(self.model, self.params, **thresholds)

    def predict(self, x: Any = None, *, mask: Any = None, names: bool = False, **given: Any) -> Any:
        """Return the posterior mean of the response at new data: probabilities for classes.

        names: return the name of the most probable class, (N,), or the list of labels more probable than not, instead
        of probabilities.

        For models of ratings, x is a tuple (users, items), by their labels where the data have some, a list, an array
        or a frame of pairs, or what :func:`ppl_models.ratings` gives; ``positions=`` are such by their positions in the
        data, whatever their labels.
        Unknown users and items are an error, or are new ones with ``new="prior"``. ``ratings=`` and ``item_ratings=``
        are ratings of further users and items, ``user_covariates=`` covariates of further users, with or without
        ratings; ``uncertainty=True`` adds standard deviations and intervals, of responses, links and relations too.

        For programs of one's own whose rows are given something, E[x | what is given], latents averaged over what they
        are then, at the fit's globals: ``predict(effort=...)``; without arguments for the rows of the fit.

        Raises MethodError for models without responses, and for what is asked with names that the model's predictions
        do not have; DataError for labels that the data do not have.
        """
        family = family_of(self.model)
        predict = family.predict
        if predict is not None and family.reads_queries:
            if names:
                raise MethodError(f"names=True: {type(self.model).__name__} predicts no classes that have names")
            if mask is not None:
                raise MethodError(f"a mask beside what is asked of {type(self.model).__name__}; ask for fewer")
            asked, *taken = [*inspect.signature(predict).parameters][1:]  # after the fit
            x = given.pop(asked, None) if x is None else x
            for name in given:
                if name not in taken:
                    raise MethodError(unknown_name(f"argument of predict of {type(self.model).__name__}", name, taken))
            return predict(self, x, **given)
        if predict is None:
            unlike = {"x": x is not None, "mask": mask is not None, "names": names}
            return self._predict_given([name for name, asked in unlike.items() if asked], given)
        options = [*inspect.signature(predict).parameters][2:]
        taken = {name: given.pop(name) for name in options if name in given}
        if names and taken:
            raise MethodError(f"names=True beside {', '.join(taken)}= of predict; expected one of these")
        known = [*options, *(site for site in self.model.sites_of("given") if site != "labels")]
        for name in given:
            if name not in known:
                raise MethodError(unknown_name(f"argument of predict of {type(self.model).__name__}", name, known))
        found = predict(self, self.read(x, mask, **given), **taken)
        return evaluate.by_names(self, found) if names else found

    def recommend(self, users: Source | None = None, n: int = 10, *, exclude_seen: bool = True, **given: Any) -> Any:
        """Return a DataFrame with the ``n`` best items of each user, of all users by default, a line each: user, rank,
        item and mean, as :meth:`predict` has it, whose further arguments it takes.

        exclude_seen: leave out what a user has rated. ``uncertainty=True`` adds sd, low and high, a 90 % interval.

        Raises MethodError for models that do not predict pairs of users and items, DataError for unknown users.
        """
        make = family_of(self.model).recommend
        if make is None:
            found = f"{type(self.model).__name__} predicts no items for users"
            raise MethodError(f"{found}; expected a model of ratings or of clicks, PMF or BilinearPMF")
        return make(self, users, n, exclude_seen=exclude_seen, **given)

    def reconstruct(
        self,
        x: Any = None,
        *,
        mask: Any = None,
        how: str = "mode",
        bound: str | None = None,
        standard_error: bool = False,
        **others: Any,
    ) -> Any:
        """Return E[x_nj] at the most probable code of each row, (N, D), labelled as ``transform`` does, columns in
        the order of the fit; for 0/1 data P(x_nj = 1 | code).

        how: "mode", or "mean" for E[x_nj | what is observed of row n]: the mean over the posterior of the latents, and
            over the draws of the globals where the fit has such, else at its globals. It is a sum where there is
            one, an integral (to about 1e-5), or else the mean over draws.
        bound: the family of the posterior of the latents, as for ``local_posterior``: by default the exact one
            where that is feasible for rows of any length, else the fit's own, of which these are the means (of fits
            that estimate the latents as points, at the points); ``"exact"`` asks for the exact one of short rows.
        standard_error: return, beside the means, their standard errors as estimates of these, 0 where they are sums.
        """
        if how not in ("mode", "mean"):
            raise MethodError(unknown_name("kind of reconstruction", how, ("mode", "mean")))
        data = self.read(x, mask, **others)
        if how == "mean":
            found = expect_entries(self, data, bound=bound)
        else:
            local = self.posterior_of(data, bound=bound).mode
            predictive.require_copies(self.model, self.globals, local, data)
            at_mode = predictive.feature_mean(self.model, self.globals, local, like=data)
            found = Expectation(at_mode, torch.zeros_like(at_mode))
        labelled = [self.label_entries(x, one, data) for one in found]
        return tuple(labelled) if standard_error else labelled[0]

    def _predict_given(self, unlike: list[str], given: Mapping[str, Any]) -> Tensor:
        """E[x | what rows are given]. unlike: arguments that are not of this."""
        kind, sites = type(self.model).__name__, self.model.sites_of("given")
        if not is_own_of_rows(self.model) or not sites:
            of_graph = "; link_probability(fit, sources, targets) gives P(edge)" if self.model.is_graph else ""
            raise MethodError(f"{kind} has no response to predict{of_graph}; transform gives its latents")
        for name in unlike:
            raise MethodError(
                f"{name}= of predict of {kind}, which predicts x; expected {', '.join(f'{site}=' for site in sites)} "
                "alone, or reconstruct(x, ...), which gives E[x] at latents that are inferred from x"
            )
        return predict_given(self, given)

    def tokens(self, x: Any = None) -> Any:
        """Return a DataFrame with a line for every token, in order, of new documents or of those of the fit: document,
        sentence, position, word, most probable state and topic, and content_probability.

        Raises MethodError for models that do not read tokens in their order.
        """
        make = family_of(self.model).tokens
        if make is None:
            raise MethodError(f"{type(self.model).__name__} does not read tokens in their order; LDAHMM does")
        return make(self, self.read(x))

    def to_arviz(self, **settings: Any) -> Any:
        """Convert to ArviZ InferenceData (0.23) or DataTree (1.x) with named dims and coords."""
        from custom_inference.faces.arviz import to_arviz

        return to_arviz(self, **settings)

    def plot(self, kind: str = "components", **settings: Any) -> Any:
        """Draw a figure: "components", "loading", "elbo", "source", "topics", "documents"; see ``plots.plot``.

        settings: those of this kind of plot; ``ax`` (``axes`` for several panels) to draw on, which is then returned.
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

        model: the class, or an instance, of a model of your own: the file names it, but nothing is imported by name.

        Raises FileFormatError for a file that is no fit or one of another model, for a model of your own without
        ``model``, and for other sizes or sites than the instance's.
        """
        parts = store.load(Path(path), model)
        kind: Any = family_of(parts["model"]).result or cls
        return kind(**parts).to(device)


def _cut(line: str) -> str:
    """A list on one line of a page, cut behind a comma."""
    if len(line) <= _WIDE - 2:
        return line
    return f"{line[: _WIDE - 6].rpartition(',')[0] or line[: _WIDE - 6]}, ..."


def require_complete(fit: Fit) -> Fit:
    """Return the fit, or raise KeyboardInterrupt if it was interrupted: for fits that are one step of many."""
    if fit.interrupted:
        raise KeyboardInterrupt
    return fit


def check_init(model: Model, init: Fit | Mapping[str, Any] | None) -> dict[str, Tensor] | None:
    """Check starting values for the globals, from another fit or a mapping; latents in it are ignored.

    Raises MethodError for anything else and for a fit of another model, and what :func:`check_values` raises.
    """
    if init is None:
        return None
    if isinstance(init, Fit):
        require_fit_of(model, init)
        return check_values(model, init.params, called="init")
    return check_values(model, require_mapping(init), called="init")


def check_values(model: Model, given: Mapping[str, Any], *, called: str) -> dict[str, Tensor]:
    """Check values of the globals that somebody gives as the argument ``called``; latents among them are ignored.

    Raises ModelError for an unknown site, one that is missing, a wrong shape, and values that are not finite or not in
    the site's support.
    """
    for site in given:
        if site not in model.dims:
            raise ModelError(f"{called}: {unknown_name(f'site of {type(model).__name__}', site, model.shapes)}")
    checked = model.check_params({site: _as_tensor(called, site, value) for site, value in given.items()})
    for site, value in checked.items():
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            raise ModelError(f"{called} of '{site}' has {bad} of {value.numel()} values that are not finite")
        support = model.sites[site].support
        if site not in model.known and not is_within(support, value):
            raise ModelError(f"{called} of '{site}' has values outside its support, {support}")
    return checked


def check_globals(
    model: Model, given: Fit | Mapping[str, Any], data: Data, *, called: str
) -> tuple[Model, dict[str, Tensor]]:
    """Return the model that given globals belong to, and the globals, of the type of x.

    A fit may have fewer components than were asked for: its model is the one that its parameters belong to. Raises
    MethodError for a fit of another kind of model or of other sizes, and what ``check_values`` does.
    """
    if isinstance(given, Fit):
        chosen, values = given.model, given.params
        _require_shapes_of(model, chosen, called)
    else:
        chosen, values = model, require_mapping(given, called)
    return chosen, {site: value.to(data.x) for site, value in check_values(chosen, values, called=called).items()}


def _require_shapes_of(model: Model, fitted: Model, called: str) -> None:
    """Raise MethodError for a fit of another kind of model, or one whose sites have other shapes than the model's."""
    _require_kind_of(model, fitted, f"{called} is a fit of {{}}, beside a model {{}}; expected a fit of that")
    for site, shape in model.shapes.items():
        found = fitted.shapes.get(site)
        if found != shape:
            raise MethodError(
                f"{called} is a fit in which '{site}' has shape {found}, expected {shape}, as the model says"
            )


def require_fit_of(model: Model, init: Fit) -> None:
    """Raise MethodError for a start from the fit of another kind of model."""
    expected = f"expected a fit of that, or a mapping of its sites: {', '.join(model.shapes)}"
    _require_kind_of(model, init.model, f"init is a fit of {{}}, and {{}} is fitted; {expected}")


def _require_kind_of(model: Model, fitted: Model, problem: str) -> None:
    """Raise MethodError where neither model is one of the other's kind. problem: has places for the names of both."""
    own, other = type(model.summed_out), type(fitted.summed_out)
    if not (issubclass(own, other) or issubclass(other, own)):
        raise MethodError(problem.format(other.__name__, own.__name__))


def require_mapping(init: Any, called: str = "init") -> Mapping[str, Any]:
    """Raise MethodError for anything but a mapping."""
    if not isinstance(init, Mapping):
        raise MethodError(f"{called} = {a_value_of(type(init))}, expected a fit, or a mapping of sites to values")
    return init


def _as_tensor(called: str, site: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(f"{called} of '{site}' is {a_value_of(type(value))}, expected numbers") from None
