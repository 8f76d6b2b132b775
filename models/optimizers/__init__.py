"""Optimizers by name, schedules, averages of weights, precision, gradient noise."""
