"""Where a training step's time goes, and where it must."""
