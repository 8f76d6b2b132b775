"""Parts of a model that run side by side on one machine. Importing it does nothing."""
