"""What a training refuses; a module of its own, so that commands can say it before torch is imported."""


class TrainingError(ValueError):
    """Training cannot start or has diverged; the message says which setting to change."""
