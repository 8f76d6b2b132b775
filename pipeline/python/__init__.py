"""From data frames in memory to a run, and scikit-learn's interface."""
