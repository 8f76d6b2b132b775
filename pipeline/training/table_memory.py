"""Which id columns and lists have tables that take much of the memory, before they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from gigabatch.models.shelf import ModelSpec
from gigabatch.pipeline.display import about_bytes

LARGE_SHARE = 0.1  # of the free memory that a column's tables may take without a word
FLOAT_BYTES = 4
WIDTH_SETTINGS = ("embedding_widths", "embedding_width_max", "embedding_dim")  # of models; the first that is set counts


def large_tables(spec: ModelSpec, names: Sequence[str], free_bytes: int) -> list[str]:
    """A sentence for each id column whose tables take more than `LARGE_SHARE` of the free memory, and for each list
    with a vocabulary of its own.

    Parameters
    ----------
    spec
        The model; none of its tables is allocated.
    names
        Of the id columns, then of the lists that share no vocabulary, in the order of `spec.inputs.table_sizes`.
    free_bytes
        Of the device that the model is trained on.

    Returns
    -------
    list[str]
        Column, bytes, share and the settings to change, the largest first.

    Examples
    --------
    >>> from gigabatch.models.inputs import ModelInputs
    >>> from gigabatch.models.tabular.tabular import TabularSettings
    >>> spec = ModelSpec("tabular", ModelInputs(num_ids=(1_000_003, 12), num_floats=0), TabularSettings())
    >>> (text,) = large_tables(spec, ["person", "shop"], free_bytes=1 << 30)
    >>> text[:78]
    "column 'person': its table of 1,000,003 ids x 32 numbers takes 120 MiB, 12% of"
    >>> large_tables(spec, ["person", "shop"], free_bytes=4 << 30)
    []
    """
    sizes = spec.inputs.table_sizes
    of_size = dict.fromkeys(sizes, 0)  # columns of one size have tables of one width
    for rows, width in spec.table_shapes:
        if rows in of_size:
            of_size[rows] += rows * width
    taken = {name: of_size[size] * FLOAT_BYTES // sizes.count(size) for name, size in zip(names, sizes, strict=True)}
    if (widths := getattr(spec.settings, "embedding_widths", None)) is not None:
        taken = {name: size * w * FLOAT_BYTES for name, size, w in zip(names, sizes, widths, strict=True)}
    found = []
    for name, size in sorted(zip(names, sizes, strict=True), key=lambda column: -taken[column[0]]):
        if taken[name] <= LARGE_SHARE * free_bytes:
            continue
        found.append(
            f"column {name!r}: its table of {size:,} ids x {taken[name] // size // FLOAT_BYTES:,} numbers takes "
            f"{about_bytes(taken[name])}, {taken[name] / max(free_bytes, 1):.0%} of the {about_bytes(free_bytes)} of "
            f"memory that are free (more than {LARGE_SHARE:.0%}); the optimizer's state and the best weights come on "
            f"top. {_what_helps(spec)}"
        )
    return found


def _what_helps(spec: ModelSpec) -> str:
    known = [field.name for field in fields(spec.settings)]
    settings = [name for name in WIDTH_SETTINGS if name in known and getattr(spec.settings, name) is not None]
    return f"Lower model.{settings[0]}, or raise preprocess.min_count." if settings else "Raise preprocess.min_count."
