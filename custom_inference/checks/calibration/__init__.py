"""Simulation-based calibration of any model and method."""

from custom_inference.checks.calibration.result import Calibration
from custom_inference.checks.calibration.run import simulation_based_calibration

__all__ = ["Calibration", "simulation_based_calibration"]
