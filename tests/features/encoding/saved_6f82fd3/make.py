"""Wrote the folders beside it, with the code of commit 6f82fd3: `PYTHONPATH=<that tree> python make.py <here>`.

fitted: of FIRST; updated: by SECOND; bare: as updated, without statistics.
"""

import sys

import numpy as np
import pandas as pd

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import CategorySettings, PreprocessorSettings
from gigabatch.features.schema import Column, Schema, Target

SCHEMA = Schema(
    (
        Column("city", "categorical", "string"),
        Column("shop", "categorical", "int64"),
        Column("price", "continuous", "float32"),
        Column("sold", "target", "float32"),
    ),
    (Target("sold", "binary"),),
)
SETTINGS = PreprocessorSettings(min_count=2, columns={"shop": CategorySettings(oov_buckets=3)})
FIRST = [*[("Oslo", 1, 1.0)] * 3, *[("Bonn", 2, 3.0)] * 2, ("Rome", 2, None), (None, 7, 5.0)]
SECOND = [*[("Lima", 1, 9.0)] * 2, ("Oslo", 9, 2.0)]


def table(rows):
    frame = pd.DataFrame(rows, columns=["city", "shop", "price"])
    frame = frame.astype({"city": "str", "shop": "Int64", "price": "float32"})
    return frame.assign(sold=np.zeros(len(frame), "float32"))


if __name__ == "__main__":
    made = Preprocessor(SCHEMA, SETTINGS).fit([table(FIRST)])
    made.save(f"{sys.argv[1]}/fitted")
    made.update([table(SECOND)])
    made.save(f"{sys.argv[1]}/updated")
    Preprocessor(SCHEMA, SETTINGS, made.vocabularies, made.fills, made.scales).save(f"{sys.argv[1]}/bare")
