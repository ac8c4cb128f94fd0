"""Simulation-based calibration of any model and method."""
