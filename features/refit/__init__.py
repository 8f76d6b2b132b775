"""Statistics of a fit, updates that move no id, and churn: what changed since."""
