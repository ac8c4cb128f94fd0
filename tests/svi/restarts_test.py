"""Several starts: which count as agreeing, and what a start at the best one's components keeps."""

from __future__ import annotations

import torch

from custom_inference.core.progress import Progress
from custom_inference.svi.restarts import Attempt, begins_at_best, draw_one_component, search
from ppl_models import NOCA, SBM


def run(scores, random, agree):
    """The search over attempts whose scores, and whether they are random, are given."""

    def attempt(number, best):
        assert (best is None) == (number == 0)
        return Attempt(None, {}, scores[number], random=random[number])

    return search(len(scores), 0, attempt, Progress(None, "", enabled=False), rows=10, agree=agree)


def test_starts_that_begin_alike_are_no_agreement():
    """Three at the components of one optimum agree on it whether it is the best or not."""
    scores = [-8.0, -7.0, -6.0, -5.0, -4.0, -4.0, -4.0, -3.0]
    found = run(scores, [True] * 4 + [False] * 4, agree=3)
    assert len(found.attempts) == 8 and found.best.score == -3.0
    assert found.agreement(10).startswith("0 of 4 random starts")


def test_random_starts_that_agree_end_the_search():
    found = run([-4.0, -4.0, -9.0, -4.0, -3.0], [True] * 5, agree=3)
    assert len(found.attempts) == 4 and found.agreement(10).startswith("3 of 4 starts")


def test_a_start_at_the_best_draws_one_component_anew():
    model = NOCA(num_components=3, num_features=4)
    best = {site: torch.zeros(model.shapes[site]) for site in model.global_sites}
    drawn = {site: torch.ones(model.shapes[site]) for site in model.global_sites}
    start = draw_one_component(model, drawn, best)
    assert start["source_prior"].sum() == 1 and not start["leak"].any()
    assert torch.equal(start["loading"].sum(-1), 4 * start["source_prior"])
    assert [begins_at_best(model, number) for number in range(7)] == [False] * 4 + [True, True, False]


def test_a_block_is_drawn_anew_with_its_row_and_its_column():
    model = SBM(num_blocks=3, num_nodes=5)
    best = {"block_proportion": torch.full((3,), 1 / 3), "edge_probability": torch.zeros(3, 3)}
    drawn = {"block_proportion": torch.tensor([0.2, 0.3, 0.5]), "edge_probability": torch.ones(3, 3)}
    start = draw_one_component(model, drawn, best)
    assert start["edge_probability"].sum() == 5 and torch.isclose(start["block_proportion"].sum(), torch.tensor(1.0))
