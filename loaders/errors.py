"""Errors that a user of `loaders` can mend: each names the column, file or setting, what was found, what to do."""


class LoaderError(ValueError):
    """A column, a packed table on disk or a loader's setting is wrong; the message says how to mend it."""
