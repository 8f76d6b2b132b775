"""Experiments on a run: tune, compare, profile, plan."""
