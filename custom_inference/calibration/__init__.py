"""Simulation-based calibration of any model and method."""

from custom_inference.calibration._result import Calibration
from custom_inference.calibration._run import simulation_based_calibration

__all__ = ["Calibration", "simulation_based_calibration"]
