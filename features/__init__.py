"""Frames to frames: operators, workflows, the preprocessor and the recipes of data sets."""
