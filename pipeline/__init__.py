"""Stages and what runs them: commands, configuration, artifacts, training, evaluation, serving."""
