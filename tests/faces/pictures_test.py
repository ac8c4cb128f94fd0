"""Pictures of models: what depends on what, plates and priors as in the papers, and a drawing without collisions."""

import os
import stat
import sys
from functools import cache
from itertools import combinations

import pyro
import pyro.distributions as dist
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox
from pyro.infer.inspect import get_model_relations

from custom_inference import render
from custom_inference.faces.pictures import Structure, structure_of
from custom_inference.faces.pictures.drawing import HEIGHT, draw, plate_boxes
from custom_inference.faces.pictures.layout import SITE, _order_columns, columns, crossings, layout
from custom_inference.faces.pictures.structure import Node, Plate, prior_text
from ppl_models import (
    LDA,
    MODELS,
    NOCA,
    SBM,
    AspectBernoulliIndicator,
    LDAIndicator,
    MethodError,
    MMSBIndicator,
    ModelError,
    PPLError,
)
from ppl_models.distributions import Flat

KINDS = MODELS | {
    "aspect_bernoulli_indicator": AspectBernoulliIndicator,
    "lda_indicator": LDAIndicator,
    "mmsb_indicator": MMSBIndicator,
}

_MIXTURE = "mixing_proportion -> assignment, assignment -> x"
_TOPICS = "topic -> x, topic_proportion -> x"
_RESPONSE = "topic_proportion -> response, topic -> response, x -> response, response_weight -> response"
_HARMONIUM = "hidden -> x, weight -> x, visible_bias -> x"
_UNITS = "weight -> hidden, visible_bias -> hidden, hidden_bias -> hidden"
_SCORES = "score -> x, weight -> x, bias -> x"
_FACTORS = "activation -> x, loading -> x"
_BLOCKS = "block_proportion -> block, block -> x"
#: The graphs as their sources state them.
EDGES = {
    "aspect_bernoulli": "aspect_probability -> x, membership -> x",
    "aspect_bernoulli_indicator": "membership -> indicator, indicator -> x, aspect_probability -> x",
    "categorical_pca": _SCORES,
    "covariate_sbm": f"{_BLOCKS}, weight -> x",
    "ctm": "mean -> topic_logit, covariance -> topic_logit, topic_logit -> x, topic -> x",
    "bilinear_pmf": "item -> x, user -> x",
    "choice_pmf": "item -> x, user -> x",
    "cvq": "source_prior -> source, source -> x, weight -> x, scale -> x",
    "degree_corrected_sbm": f"{_BLOCKS}, edge_rate -> x, propensity -> x",
    "discriminative_categorical_pca": f"input_weight -> score, {_SCORES}",
    "dirichlet_multinomial_regression": "prevalence_bias -> topic_proportion, prevalence_weight -> topic_proportion, "
    + _TOPICS,
    "discriminative_lda": f"{_TOPICS}, transformation -> x",
    "dtm": "drift_variance -> topic_logit, background -> topic_logit, initial_scale -> topic_logit, topic_logit -> x, "
    "topic_proportion -> x",
    "gamma_poisson": _FACTORS,
    "gaussian_pca": f"{_SCORES}, scale -> x",
    "hdp": "stick_concentration -> topic_weight, topic_weight -> topic_proportion, concentration -> topic_proportion, "
    + _TOPICS,
    "labeled_lda": _TOPICS,
    "lda": _TOPICS,
    "ldahmm": f"{_TOPICS}, emission -> x, initial -> x, transition -> x",
    "lda_indicator": "topic_proportion -> indicator, indicator -> token, topic -> token",
    "logistic_pca": _SCORES,
    "mixture_of_bernoullis": f"{_MIXTURE}, probability -> x",
    "mixture_of_categoricals": f"{_MIXTURE}, response -> x",
    "mixture_of_multinomial_counts": f"{_MIXTURE}, topic -> x",
    "mixture_of_multinomials": f"{_MIXTURE}, topic -> x",
    "mixture_of_poissons": f"{_MIXTURE}, rate -> x",
    "mmsb": "membership -> x, edge_probability -> x",
    "mmsb_indicator": "membership -> sender, membership -> receiver, sender -> x, receiver -> x, edge_probability -> x",
    "multinomial_pca": _TOPICS,
    "nmf": _FACTORS,
    "noca": "source_prior -> source, source -> x, loading -> x, leak -> x",
    "multinomial_regression_lda": "prevalence_bias -> topic_proportion, prevalence_weight -> topic_proportion, "
    + _TOPICS,
    "partially_labeled_lda": _TOPICS,
    "plsa": _TOPICS,
    "pmf": "mean -> x, item -> x, item_bias -> x, scale -> x, user_profile -> x, user_profile -> user, "
    "user_profile -> user_bias",
    "poisson_pca": _SCORES,
    "poisson_sbm": f"{_BLOCKS}, edge_rate -> x",
    "random_effects_lda": "mean -> topic_logit, covariance -> topic_logit, topic_logit -> x, topic -> x",
    "helmholtz_machine": "bias_0 -> hidden, weight_1 -> hidden, bias_1 -> hidden, hidden -> hidden_0, "
    "hidden -> hidden_1, hidden -> x, weight_2 -> x, bias_2 -> x",
    "rbm": f"{_UNITS}, {_HARMONIUM}",
    "replicated_softmax": f"{_UNITS}, {_HARMONIUM}",
    "infinite_sbm": f"{_BLOCKS}, edge_probability -> x",
    "rtm": f"{_TOPICS}, topic_proportion -> topic_share, topic -> topic_share, x -> topic_share, topic_share -> links, "
    "link_weight -> links, link_bias -> links",
    "sbm": f"{_BLOCKS}, edge_probability -> x",
    "softmax_pca": _SCORES,
    "spike_gamma_poisson": _FACTORS,
    "supervised_lda": f"{_TOPICS}, {_RESPONSE}",
    "user_rating_profile": "response -> x, membership -> x",
}


def model_of(name):
    return KINDS[name].example().model


@cache
def structure(name):
    return structure_of(model_of(name))


@pytest.mark.parametrize("name", KINDS)
def test_what_depends_on_what(name):
    found = structure(name)
    assert {f"{a} -> {b}" for a, b in found.edges} == set(EDGES[name].split(", "))
    observed = {site.name for site in found.sites.values() if site.observed}
    assert observed == {"lda_indicator": {"token"}, "supervised_lda": {"x", "response"}, "rtm": {"x", "links"}}.get(
        name, {"x"}
    )
    inside = {site for site in found.sites if found.plates_of(site)}
    assert observed <= inside and not inside & set(model_of(name).global_sites)


@pytest.mark.parametrize("name", KINDS)
def test_pyros_own_picture_has_the_same_edges(name):
    """Its tracking would count a prior as dependent on whatever its numbers were moved to the dtype of."""
    example = KINDS[name].example()
    others = example.data.others
    found = get_model_relations(example.model, (example.data.x,), others)["sample_sample"]
    assert {f"{a} -> {b}" for b, sources in found.items() for a in sources} == set(EDGES[name].split(", "))
    assert pyro.render_model(example.model, (example.data.x,), others, render_distributions=True) is not None


def test_plates_and_axes():
    structure = structure_of(model_of("aspect_bernoulli_indicator"))
    assert structure.plates_of("indicator") == ["row", "feature"] and structure.plates_of("membership") == ["data"]
    assert structure.plates["data"].label == "data: rows"
    assert structure.sites["aspect_probability"].axes == ("component", "feature")
    assert structure.sites["membership"].axes == ("component",) and structure.sites["indicator"].axes == ()
    blocks = structure_of(model_of("sbm"))
    assert blocks.plates["data"].label == "data: dyads" and blocks.sites["block"].axes == ("node",)
    assert structure_of(model_of("lda")).plates["data"].label == "data: documents"


def test_priors_are_those_of_the_model():
    model = NOCA(num_components=2, num_features=3).with_priors(leak=dist.Beta(2.0, 100.0))
    sites = structure_of(model).sites
    assert (sites["leak"].distribution, sites["loading"].distribution) == ("Beta(2, 100)", "Beta(1, 1)")
    assert (sites["source"].distribution, sites["x"].distribution) == ("BernoulliVector", "NoisyOr")
    rates = structure_of(model_of("poisson_sbm")).sites["edge_rate"]
    assert rates.distribution == "Gamma(1, 1), symmetric" and rates.axes == ("component", "to_component")


@pytest.mark.parametrize(("prior", "text"), [
    (dist.Normal(0.0, 2.5), "Normal(0, 2.5)"),
    (dist.Dirichlet(torch.full((4,), 0.1)), "Dirichlet(0.1)"),
    (dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0, 4.0])), "Dirichlet([1, 2, 3, …])"),
    (dist.InverseGamma(3.0, 1.0), "InverseGamma(3, 1)"),
    (dist.Bernoulli(0.25), "Bernoulli(0.25)"),
    (Flat(dist.Normal(0.0, 1.0)), "flat"),
    (dist.Uniform(0.0, 1.0), "Uniform(0, 1)"),
])  # fmt: skip
def test_priors_as_one_would_write_them(prior, text):
    assert prior_text(prior) == text


def test_a_picture_leaves_no_trace():
    pyro.param("bystander", torch.tensor(1.0))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    render(model_of("noca"))
    assert torch.equal(torch.rand(3), expected) and list(pyro.get_param_store().keys()) == ["bystander"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_models_are_looked_at_in_small(dtype):
    torch.set_default_dtype(dtype)
    assert len(structure_of(SBM(num_blocks=4, num_nodes=200_000)).sites) == 4
    assert len(structure_of(LDA(num_topics=50, vocabulary_size=20_000)).sites) == 3


@pytest.mark.parametrize("name", KINDS)
def test_nothing_collides(name):
    """Texts within the page and apart from each other and from the sites; plates around their own and nothing else."""
    found = structure(name)
    figure = draw(found)
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [(text.get_text(), text.get_window_extent(renderer)) for text in figure.axes[0].texts]
    page = figure.bbox
    for label, box in texts:
        assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1, label
    for (one, a), (other, b) in combinations(texts, 2):
        assert not a.padded(-1).overlaps(b.padded(-1)), (one, other)
    assert set(found.sites) <= {label for label, _ in texts}
    ovals = [box for label, box in texts if label in found.sites]  # an axis may be called as a site is
    for patch in (p for p in figure.axes[0].patches if type(p).__name__ == "Ellipse"):
        oval = patch.get_window_extent(renderer)
        for label, box in texts:
            assert label in found.sites or not oval.padded(-2).overlaps(box.padded(-2)), label
        assert any(oval.x0 < box.x0 and box.x1 < oval.x1 for box in ovals), "names fit into their ovals"


@pytest.mark.parametrize("name", KINDS)
def test_plates_are_around_their_own_sites(name):
    found = structure(name)
    widths = {site: 0.4 + 0.083 * len(site) for site in found.sites}
    places = layout(found, widths)
    boxes = {s: Bbox.from_extents(x - widths[s] / 2, y - HEIGHT, x + widths[s] / 2, y + HEIGHT / 2)
             for s, (x, y) in places.place.items()}  # fmt: skip
    plates = plate_boxes(found, boxes, places)
    for plate in found.plates.values():
        for site, box in boxes.items():
            assert _inside(box, plates[plate.name]) == (site in plate.members)
            assert site in plate.members or not _overlap(box, plates[plate.name])
        if plate.parent is not None:
            assert _inside(plates[plate.name], plates[plate.parent])
        for ends, bends in places.bends.items():
            if not set(ends) & set(plate.members):
                assert not any(_overlap(Bbox([point, point]), plates[plate.name]) for point in bends), "a foreign edge"
    for one, other in combinations(found.plates.values(), 2):
        if not set(one.members) & set(other.members):
            assert not _overlap(plates[one.name], plates[other.name])
    assert not any(_overlap(a, b) for a, b in combinations(boxes.values(), 2))
    assert all(places.place[a][0] < places.place[b][0] for a, b in found.edges), "from left to right"


def _inside(inner, outer):
    across = outer.x0 < inner.x0 and inner.x1 < outer.x1
    return across and outer.y0 < inner.y0 and inner.y1 < outer.y1


def _overlap(a, b):
    return a.x0 <= b.x1 and b.x0 <= a.x1 and a.y0 <= b.y1 and b.y0 <= a.y1


def test_columns_keep_what_is_outside_a_plate_left_of_it():
    """A root in a plate is drawn in it, not beside the globals; what depends on the plate comes after all of it."""
    sites = {name: Node(name, "") for name in ("a", "b", "root", "end", "after")}
    edges = [("a", "b"), ("b", "end"), ("root", "end"), ("root", "after")]
    structure = Structure("", sites, edges, {"p": Plate("p", "p", ("root", "end"))})
    assert columns(structure) == {"a": 0, "b": 1, "root": 2, "end": 3, "after": 4}


def test_crossings_are_avoided():
    layers = [["a", "b", "c"], ["x", "y", "z"]]
    links = [("a", "z"), ("b", "y"), ("c", "x")]
    assert crossings(layers, links) == 3 and crossings(_order_columns(layers, links), links) == 0
    sites = {name: Node(name, "") for name in "abcxyz"}
    places = layout(Structure("", sites, links), dict.fromkeys(sites, 1.0)).place
    assert all(abs(places[a][1] - places[b][1]) < 1e-9 for a, b in links), "level where nothing is in the way"
    assert abs(abs(places["a"][1] - places["b"][1]) - SITE) < 1e-9


@pytest.mark.parametrize("ending", [".svg", ".png", ".pdf"])
def test_files(ending, tmp_path):
    path = tmp_path / f"noca{ending}"
    figure = render(model_of("noca"), path)
    assert path.stat().st_size > 3000 and figure.axes
    if ending == ".svg":
        first = path.read_bytes()
        render(model_of("noca"), path)
        assert path.read_bytes() == first, "the same picture is the same file"


def test_without_distributions():
    texts = {text.get_text() for text in render(model_of("noca"), distributions=False).axes[0].texts}
    assert not any("Beta" in text for text in texts) and "component × feature" in texts


def test_graphviz_source_needs_no_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    model = model_of("aspect_bernoulli_indicator")
    graph = render(model, tmp_path / "picture.gv", engine="graphviz")
    source = graph.source
    assert (tmp_path / "picture.gv").read_text() == source
    assert source.index("subgraph cluster_row") < source.index("subgraph cluster_feature") < source.index("indicator [")
    assert "Beta(1, 1)" in source and "membership -> indicator" in source and "fillcolor=lightgrey" in source
    assert "Beta" not in render(model, engine="graphviz", distributions=False).source
    with pytest.raises(PPLError, match=r"Graphviz' program dot, which draws it, is not on the PATH; .*picture.gv"):
        render(model, tmp_path / "picture.svg", engine="graphviz")


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for Graphviz' program is a shell script")
def test_graphviz_draws_where_its_program_is(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\nwhile [ "$#" -gt 0 ]; do [ "$1" = -o ] && target=$2; last=$1; shift; done\n'
                       'cp "$last" "$target"\n')  # fmt: skip
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    render(model_of("noca"), tmp_path / "noca.svg", engine="graphviz")
    assert "loading -> x" in (tmp_path / "noca.svg").read_text()


def test_errors(monkeypatch, tmp_path):
    with pytest.raises(MethodError, match="unknown engine 'tikz'; valid: graphviz, matplotlib"):
        render(model_of("noca"), engine="tikz")
    with pytest.raises(MethodError, match=r"unknown ending of a picture '\.foo'; valid: .*\.png"):
        render(model_of("noca"), tmp_path / "a.foo")
    with pytest.raises(ModelError, match="5 is not a model"):
        render(5)  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ImportError, match="needs the Python package graphviz: pip install graphviz, or engine="):
        render(model_of("noca"), engine="graphviz")
