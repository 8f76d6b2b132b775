"""Models of clicks: from logistic regression to multi-task networks."""
