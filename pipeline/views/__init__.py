"""What runs and tables look like in a notebook: HTML parts, columns at a glance, figures."""
