"""The one visible training loop, its step, checkpoints, drawn negatives."""
