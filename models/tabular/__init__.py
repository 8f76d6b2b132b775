"""Models of tables: fastai's network, FT-Transformer."""
