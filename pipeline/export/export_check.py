"""Rows to compare an exported model on, made from a preprocessor's vocabularies, and what counts as the same score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.engines.frame import engine_of
from gigabatch.features.exact.column_statistics import ENDLESS
from gigabatch.features.vocabulary.vocabulary import Vocabulary
from gigabatch.loaders.tables.jagged import JaggedColumn
from gigabatch.pipeline.bundle import Bundle, frame_lists, model_outputs
from gigabatch.pipeline.export.asked import ExportError

# Another runtime adds the terms of a product in another order. A score may differ by this much, no more; one of a
# regression target in deviations of the target, since far from 0 a share of its value is as large as all that differs.
ABSOLUTE, RELATIVE = 1e-5, 1e-4
SAMPLE_ROWS = 300
LONGEST_LIST = 7  # of a column without a max_length


@dataclass(frozen=True)
class Sample:
    """Rows to compare on. frame: of the features stage; ids int32 [N, C], floats float32 [N, F], lists of N rows each:
    what the preprocessor makes of it; outputs [N, O], predictions [N, O]: what the bundle makes of these. mean, std:
    [O] of regression targets, 0 and 1 for others."""

    preprocessor: Preprocessor
    frame: pd.DataFrame
    ids: Tensor
    floats: Tensor
    outputs: np.ndarray
    predictions: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    lists: tuple[JaggedColumn, ...] = ()

    @property
    def parts(self) -> list[tuple[int, int]]:
        """First and last row, exclusive, of what is compared: one row alone (whose lists are empty), which is not the
        number that was traced, another one where there are lists, and all rows."""
        another = [(1, 2)] if self.lists else []
        return [(0, 1), *another, (0, len(self.ids))]

    @classmethod
    def of(cls, bundle: Bundle) -> Sample:
        frame = sample_rows(bundle.preprocessor)
        rows = torch.from_numpy(bundle.preprocessor.pack(frame, targets=False))
        num_ids = len(bundle.schema.names("categorical"))
        ids, floats = rows[:, :num_ids].contiguous(), rows[:, num_ids:].view(torch.float32).contiguous()
        lists = frame_lists(bundle.preprocessor, frame)
        outputs = torch.cat(list(model_outputs(bundle.model, ids, floats, lists)))
        mean, std = np.zeros(outputs.shape[1]), np.ones(outputs.shape[1])
        for scale in bundle.model.target_scales:
            mean[scale.output], std[scale.output] = scale.mean, scale.std
        predictions = bundle.named(outputs, frame).to_numpy()  # predict would warn of the nulls that were made up
        return cls(bundle.preprocessor, frame, ids, floats, outputs.numpy(), predictions, mean, std, lists)


def sample_rows(preprocessor: Preprocessor, rows: int = SAMPLE_ROWS, seed: int = 0) -> pd.DataFrame:
    """Rows of the features stage with known, unseen and null values in every column that may hold them.

    Known values are the first, the last and random ones of each vocabulary; floats are about their column's mean. Lists
    are null, empty, or of known, unseen and null elements, some more than `max_length`; in the first row all are empty.
    """
    draw, schema = np.random.default_rng(seed), preprocessor.schema
    dtypes, columns = schema.dtypes(), {}
    for name in schema.names("categorical"):
        known = vocabulary_values(preprocessor.vocabularies[name])
        values: list[Any] = [None, *_unseen(dtypes[name], known), *known[:1], *known[-1:]]
        if known:
            values += [known[place] for place in draw.integers(len(known), size=max(rows, 1))]
        order = draw.permutation(np.arange(rows) % len(values))
        kinds = {"string": "str", "int32": "Int32", "int64": "Int64", "bool": "boolean"}
        columns[name] = pd.Series([values[place] for place in order], dtype=kinds.get(dtypes[name], dtypes[name]))
    for name in schema.names("continuous"):
        scale, fill = preprocessor.scales.get(name), preprocessor.fills[name].value
        mean, std = (scale.mean, scale.std) if scale else (fill, 1.0)
        std = 1.0 if std == ENDLESS else std
        numbers = (mean + std * draw.normal(size=rows)).astype(np.float32)
        if dtypes[name].startswith("float"):
            numbers[draw.random(rows) < 0.2] = np.nan
            columns[name] = pd.Series(numbers.astype(dtypes[name]))
        elif dtypes[name] == "bool":
            columns[name] = pd.Series(draw.random(rows) < 0.5)
        else:
            columns[name] = pd.Series(np.clip(numbers.round(), -(2**24), 2**24).astype(dtypes[name]))
    for item in schema.lists:
        known = vocabulary_values(preprocessor.list_vocabulary(item.name))
        elements: list[Any] = [None, *_unseen(item.elements, known), *known[:1], *known[-1:]]
        elements += [known[place] for place in draw.integers(len(known), size=rows)] if known else []
        lengths = draw.integers(0, LONGEST_LIST if item.max_length is None else item.max_length + 3, size=rows)
        if rows:
            lengths[0] = 0
        lists = [[elements[place] for place in draw.integers(len(elements), size=length)] for length in lengths]
        columns[item.name] = _with_nulls(lists)
        if item.weights is not None:
            columns[item.weights] = _with_nulls(
                [draw.normal(size=length).astype(np.float32).tolist() for length in lengths]
            )
    return pd.DataFrame(columns)


def _with_nulls(lists: list[list[Any]]) -> pd.Series:
    """A column of lists, of which every eleventh is null."""
    return pd.Series([None if place % 11 == 10 else own for place, own in enumerate(lists)], dtype=object)


def _unseen(dtype: str, known: Sequence[Any]) -> list[Any]:
    """A value that is not among the known ones, where there is one."""
    taken = set(known)
    if dtype == "string":
        return [next(text for text in (f"unseen {number}" for number in range(len(taken) + 1)) if text not in taken)]
    if dtype == "bool":
        return [flag for flag in (False, True) if flag not in taken]
    if dtype.startswith("float"):
        return [next(float(number) for number in range(len(taken) + 1) if float(number) not in taken)]
    return [next(number for number in range(len(taken) + 1) if number not in taken)]


def vocabulary_values(vocabulary: Vocabulary) -> list[Any]:
    """The vocabulary as Python values, in id order."""
    column = vocabulary.values
    return engine_of(column).to_pandas(column.to_frame("value"))["value"].tolist()


def difference(what: str, found: np.ndarray, expected: np.ndarray, sample: Sample) -> float:
    """Largest difference; `ExportError` if one exceeds the tolerance, or shapes differ, or a value is NaN."""
    if found.shape != expected.shape:
        raise ExportError(f"{what}: it gives {list(found.shape)} for {list(expected.shape)}.")
    apart = np.abs(found.astype(np.float64) - expected)
    rounding = np.finfo(np.float32).eps * np.abs(expected) if found.dtype == np.float32 else 0.0
    wrong = ~(apart <= ABSOLUTE * sample.std + RELATIVE * np.abs(expected - sample.mean) + rounding)
    if wrong.any():
        raise ExportError(
            f"{what}: {int(wrong.sum())} of {wrong.size} values differ from the bundle's, by up to "
            f"{np.nanmax(apart):.3g}. The file was removed."
        )
    return float(apart.max(initial=0.0))
