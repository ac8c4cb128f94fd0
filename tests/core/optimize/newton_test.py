"""Steps of many problems at once, cut short where they descend; roots in brackets."""

import torch

from custom_inference.core.optimize.newton import cut_steps, decreasing_root


def test_every_step_is_cut_until_its_value_is_high_enough():
    """-(x - goal)^2 from 0 by a step of 1: taken as it is, cut to 1/4, and, where the way leads down, not taken."""
    goal = torch.tensor([1.0, 0.2, -1.0])
    sizes = []

    def move(size):
        sizes.append(size.clone())
        return size, -(size - goal).square()

    assert cut_steps(move, -goal.square()).tolist() == [1.0, 0.25, 0.0]
    assert len(sizes) == 25  # 24 sizes of the third, and 0
    assert cut_steps(move, -goal.square(), size=torch.tensor([0.0, 0.3, 0.0])).tolist() == [0.0, 0.3, 0.0]


def test_a_step_that_leads_to_no_number_is_cut():
    found = cut_steps(lambda size: (size, torch.log(0.3 - size)), torch.log(torch.tensor([0.01])), divisor=4.0)
    assert found.tolist() == [0.25]


def test_roots_are_found_inside_the_bracket_and_at_its_ends():
    target = torch.tensor([0.3, -2.0, 9.0], dtype=torch.float64)
    low, high = torch.zeros_like(target), torch.ones_like(target)
    found = decreasing_root(lambda x: (target**3 - x**3, -3 * x**2), low, high, torch.full_like(target, 0.5))
    assert torch.allclose(found, torch.tensor([0.3, 0.0, 1.0], dtype=torch.float64), atol=1e-8)
