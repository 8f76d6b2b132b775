"""The preprocessor: features to ids, filled floats and packed rows; one row at a time without a data frame."""
