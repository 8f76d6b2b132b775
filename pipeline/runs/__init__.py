"""Which run answers: found, verified, listed, promoted, taken back."""
