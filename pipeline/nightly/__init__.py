"""Train, compare with the current model, promote or keep."""
