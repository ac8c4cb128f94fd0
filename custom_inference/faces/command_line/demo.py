"""``ppl demo``: NOCA learns the sources of images, and its approximations are measured against the exact posterior."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from custom_inference.checks.compare import Comparison, compare
from custom_inference.core.align import Alignment, match_components
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import log_likelihood
from custom_inference.faces import plots
from custom_inference.faces.command_line import output
from custom_inference.faces.command_line.files import Files
from custom_inference.methods import fit as default_fit
from custom_inference.methods import methods_for, resolve_method
from ppl_models import NOCA
from ppl_models.datasets import Generated, image_patterns

_METHODS = ("exact", "truncated", "mean_field", "factorized")
_THRESHOLD = 0.95
#: Rows of the comparison: the gaps are averages, and the slower approximations need not see every image.
_COMPARED = 300


def run(out: Path, *, rows: int, seed: int, components: int, json: Path | None, progress: bool) -> None:
    """Generate, fit, match with the truth, compare, draw, and say what to look at."""
    problem = image_patterns(rows, seed)
    model = NOCA(num_components=components, num_features=problem.data.num_features)
    output.prepare(out, json, problem.image_shape, problem.data)
    print(f"{rows} images of 8x8 pixels, each the noisy OR of some of 8 patterns; learning {components} sources ...")
    fit = default_fit(model, problem.data, seed=seed, progress=progress)
    match = match_components(problem.truth["loading"], fit.params["loading"])
    found = int((match.similarity > _THRESHOLD).sum())
    learned = float(fit.evidence.mean())
    truth = {site: problem.truth[site].to(fit.data.x) for site in model.global_sites}
    true = float(log_likelihood(replace(model, num_components=len(truth["loading"])), truth, fit.data).mean())
    print(f"{fit.method_name}: {fit.status} ({fit.details.get('seconds', float('nan')):.1f} s)\n")
    print(f"sources found: {found} of {len(match.similarity)} (cosine of the loading with the truth > {_THRESHOLD})")
    off = int(fit.shut_off().sum())
    if off:
        print(f"shut off: {off} of {len(fit.params['source_prior'])} sources")
    print(f"exact log-likelihood per row: {learned:.4f} learned, {true:.4f} at the true parameters\n")
    chosen = [resolve_method(name) for name in _METHODS if name in methods_for(model)]
    some = fit.data.rows(slice(0, _COMPARED))
    comparison = compare(chosen, model, some, at=fit, seed=seed, progress=progress)
    output.print_comparison(comparison, len(some))
    files = _write(fit, problem, match, comparison, out)
    print(_guide_to(out))
    output.write_json(json, {
        **output.summarise(fit, top=5),
        "sources_found": found,
        "sources": len(match.similarity),
        "similarity": match.similarity.tolist(),
        "true_log_likelihood_per_row": true,
        **output.of_comparison(comparison),
        "files": files.written,
    })  # fmt: skip
    files.require_all()


def _write(fit: Fit, problem: Generated, match: Alignment, comparison: Comparison, out: Path) -> Files:
    """Write figures and the fit."""
    assert problem.image_shape is not None
    names = [str(name) for name in problem.coords["component"]]
    shape, leak = problem.image_shape, problem.truth["leak"][None]
    true = [row.tolist() for row in (*problem.truth["loading"], *leak)]
    title = "The patterns that made the images"
    figures = {
        "true_patterns": partial(plots.plot_pictures, true, shape, [*names, "leak"], title=title),
        "learned_components": partial(_draw_components, fit, match, names, shape),
        "comparison": comparison.plot,
        "objective": partial(fit.plot, "elbo"),
        "sources_of_images": partial(fit.plot, "source"),
    }
    files = Files(out)
    with files.writing("fit", "fit.safetensors") as path:
        fit.save(path)
    for name, figure in figures.items():
        with files.writing(name, f"{name}.png") as path:
            output.save_figure(figure(), path)
    return files


def _draw_components(fit: Fit, match: Alignment, names: list[str], shape: tuple[int, int]) -> Any:
    """The learned components, in the order of the patterns that they match; surplus ones follow."""
    loading, prior = fit.params["loading"].tolist(), fit.params["source_prior"].tolist()
    pairs = zip(names, match.similarity.tolist(), strict=True)
    # A cosine of 0: there were too few learned ones.
    found = [(name, f", cos {cosine:.3f}") for name, cosine in pairs if cosine > 0]
    found += [("surplus", "")] * (len(match.order) - len(found))
    captions = [f"{name}\nπ = {prior[i]:.2f}{cosine}" for i, (name, cosine) in zip(match.order, found, strict=True)]
    pictures = [*(loading[i] for i in match.order), fit.params["leak"].tolist()]
    return plots.plot_pictures(pictures, shape, [*captions, "leak"], title="What was learned")


def _guide_to(out: Path) -> str:
    return "\n" + textwrap.dedent(f"""\
        written to {out}/:
          true_patterns.png       the eight patterns and the leak that made the images
          learned_components.png  what was learned, in the same order: the two should look alike
          comparison.png          how far each approximation is from the exact posterior: shorter bars are better
          objective.png           the log-likelihood rising to its maximum, from the best of the starts
          sources_of_images.png   which sources each image was found to contain
          fit.safetensors         the fit: custom_inference.Fit.load("{out}/fit.safetensors")
        next: ppl fit noca YOUR_FILE.csv -k 8""")
