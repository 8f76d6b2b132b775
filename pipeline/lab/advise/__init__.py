"""How large a batch and how many devices pay for a training."""
